// Control flow, and all by which threads affect each other: the operations of cuda/ptx.h, here by
// their instructions.
#include "emulator/numbers.h"
#include "emulator/operations.h"
#include "ptx_interpreter/frame.h"
#include "ptx_interpreter/opcodes.h"
#include "ptx_interpreter/shared.h"

namespace prnn::interpreter {
namespace {

using Word = std::uint32_t;

void branch(Frame& frame, const Instruction& i) {
  frame.next = &frame.entry.code[static_cast<std::size_t>(i.target)];
}
void leave(Frame& frame, const Instruction&) { frame.next = nullptr; }
void trap(Frame& frame, const Instruction&) { emulator::trap(frame.where()); }
void nothing(Frame&, const Instruction&) {}

// The whole warp must be here: what ".aligned" means.
void require_aligned_warp(Frame& frame) { emulator::vote(true, frame.where()); }

// ---- within a block ----

// bar a, of all threads for 0; bar a, n
void bar_sync(Frame& frame, const Instruction& i) {
  const Word barrier = read<Word>(frame, i.operands[0]);
  const bool has_count = i.operands.size() == 2;
  if (barrier != (has_count ? 1 : 0)) frame.fail("a barrier other than 0, and 1 with a count");
  if (has_count)
    emulator::second_barrier(read<int>(frame, i.operands[1]), true, frame.where());
  else
    emulator::block_barrier(frame.where());
}
void bar_arrive(Frame& frame, const Instruction& i) {
  if (read<Word>(frame, i.operands[0]) != 1) frame.fail("a barrier other than 1");
  emulator::second_barrier(read<int>(frame, i.operands[1]), false, frame.where());
}

void require_whole_warp(Frame& frame, const Operand& members) {
  if (read<Word>(frame, members) != ~Word{0}) frame.fail("not for the whole warp");
}
void bar_warp_sync(Frame& frame, const Instruction& i) {
  require_whole_warp(frame, i.operands[0]);
  emulator::warp_barrier(frame.where());
}
// shfl.sync.bfly.b32 d|p, a, mask, clamp, members
void shfl(Frame& frame, const Instruction& i) {
  const auto& o = i.operands;
  require_whole_warp(frame, o[5]);
  if (read<Word>(frame, o[4]) != 31) frame.fail("of less than a warp");
  write(frame, o[0],
        emulator::shuffle(read<Word>(frame, o[2]), read<int>(frame, o[3]), frame.where()));
  write(frame, o[1], true);
}
void vote(Frame& frame, const Instruction& i) {
  require_whole_warp(frame, i.operands[2]);
  write(frame, i.operands[0], emulator::vote(read<bool>(frame, i.operands[1]), frame.where()));
}

// mma d[4], a[4], b[2], c[4]
template <emulator::MatrixKind kKind>
void mma(Frame& frame, const Instruction& i) {
  const auto& o = i.operands;
  emulator::Fragments fragments;
  for (std::size_t n = 0; n < 4; ++n) fragments.a[n] = read<Word>(frame, o[4 + n]);
  for (std::size_t n = 0; n < 2; ++n) fragments.b[n] = read<Word>(frame, o[8 + n]);
  for (std::size_t n = 0; n < 4; ++n) fragments.c[n] = read<float>(frame, o[10 + n]);
  const emulator::Products products = emulator::matrix_product(kKind, fragments, frame.where());
  for (std::size_t n = 0; n < 4; ++n) {
    const float d = products.d[n];
    write(frame, o[n], d == d ? d : emulator::float_of(emulator::kFloatNan));
  }
}

// ---- global memory, visible to other blocks ----

// A thread that asks again for what it has seen lets others run first.
void wait_if_again(Frame& frame, const Instruction& i, std::uint64_t address) {
  Frame::Poll& poll = frame.polls[(address >> 4) % Frame::kPolls];
  if (poll.instruction == &i && poll.address == address) emulator::spin(frame.where());
  poll = {&i, address};
}
void ld_relaxed(Frame& frame, const Instruction& i) {
  const auto address = read<std::uint64_t>(frame, i.operands[2]);
  const auto* granules = reinterpret_cast<const std::uint64_t*>(address);
  emulator::require_aligned(granules, 16, frame.where());
  wait_if_again(frame, i, address);
  for (std::size_t n = 0; n < 2; ++n)
    write(frame, i.operands[n], emulator::load_granule(granules + n));
}
void st_relaxed(Frame& frame, const Instruction& i) {
  auto* to = reinterpret_cast<void*>(read<std::uint64_t>(frame, i.operands[0]));
  emulator::require_aligned(to, 8, frame.where());
  emulator::store_granule(to, read<std::uint64_t>(frame, i.operands[1]));
}

// ---- waiting ----

void globaltimer(Frame& frame, const Instruction& i) {
  write(frame, i.operands[0], std::uint64_t{emulator::clock()} << 20);
}
void clock(Frame& frame, const Instruction& i) { write(frame, i.operands[0], emulator::cycles()); }
void atom_cas(Frame& frame, const Instruction& i) {
  auto* p = reinterpret_cast<Word*>(read<std::uint64_t>(frame, i.operands[1]));
  write(frame, i.operands[0],
        emulator::compare_and_swap(p, read<Word>(frame, i.operands[2]),
                                   read<Word>(frame, i.operands[3])));
}
void nanosleep(Frame& frame, const Instruction&) { emulator::spin(frame.where()); }

// ---- clusters ----

void mapa(Frame& frame, const Instruction& i) {
  const Word address = read<Word>(frame, i.operands[1]);
  const int rank = read<int>(frame, i.operands[2]);
  emulator::remote_address(in_shared(frame, address, 1), rank, frame.where());  // or an error
  write(frame, i.operands[0], address | static_cast<Word>(rank + 1) << kRankShift);
}
char* in_cluster(const Frame& frame, const Operand& operand, std::size_t bytes) {
  const Word address = read<Word>(frame, operand);
  char* here = in_shared(frame, address & ((1u << kRankShift) - 1), bytes);
  const int rank = static_cast<int>(address >> kRankShift) - 1;
  return rank < 0 ? here : emulator::remote_address(here, rank, frame.where());
}
// st.async.v2 [a], {b, c}, [mbarrier]
void st_async(Frame& frame, const Instruction& i) {
  const auto& o = i.operands;
  const std::uint64_t value = read<Word>(frame, o[1]) | std::uint64_t{read<Word>(frame, o[2])}
                                                            << 32;
  emulator::store_remote(in_cluster(frame, o[0], 8), value, in_cluster(frame, o[3], 8),
                         frame.where());
}
char* mbarrier_of(const Frame& frame, const Operand& operand) {
  return in_shared(frame, read<Word>(frame, operand), 8);
}
void mbarrier_init(Frame& frame, const Instruction& i) {
  emulator::mbarrier_init(mbarrier_of(frame, i.operands[0]), read<Word>(frame, i.operands[1]),
                          frame.where());
}
void mbarrier_fence(Frame&, const Instruction&) { emulator::mbarrier_fence(); }
void mbarrier_arrive(Frame& frame, const Instruction& i) {
  emulator::mbarrier_arrive(mbarrier_of(frame, i.operands[1]), read<Word>(frame, i.operands[2]),
                            frame.where());
}
void mbarrier_try_wait(Frame& frame, const Instruction& i) {
  write(frame, i.operands[0],
        emulator::mbarrier_complete(mbarrier_of(frame, i.operands[1]),
                                    read<Word>(frame, i.operands[2]), frame.where()));
}
void cluster_arrive(Frame& frame, const Instruction&) {
  require_aligned_warp(frame);
  emulator::cluster_arrive(frame.where());
}
void cluster_wait(Frame& frame, const Instruction&) {
  require_aligned_warp(frame);
  emulator::cluster_wait(frame.where());
}

// cvta: addresses of global memory are generic ones.
void cvta_global(Frame& frame, const Instruction& i) {
  write(frame, i.operands[0], read<std::uint64_t>(frame, i.operands[1]));
}

}  // namespace

Opcodes device() {
  using emulator::MatrixKind;
  return {
      {"bra", branch},
      {"bra.uni", branch},
      {"ret", leave},
      {"exit", leave},
      {"trap", trap},
      {"bar.sync", bar_sync},
      {"bar.arrive", bar_arrive},
      {"bar.warp.sync", bar_warp_sync},
      {"shfl.sync.bfly.b32", shfl},
      {"vote.sync.all.pred", vote},
      {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", mma<MatrixKind::kBf16>},
      {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", mma<MatrixKind::kF16>},
      {"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", mma<MatrixKind::kTf32>},
      {"ld.relaxed.gpu.global.v2.b64", ld_relaxed},
      {"st.relaxed.gpu.global.b64", st_relaxed},
      {"prefetch.global.L2", nothing},
      {"mov.u64.globaltimer", globaltimer},
      {"mov.u32.clock", clock},
      {"atom.relaxed.gpu.global.cas.b32", atom_cas},
      {"fence.acq_rel.sys", nothing},  // threads run one at a time
      {"nanosleep.u32", nanosleep},
      {"cvta.to.global.u64", cvta_global},
      {"mapa.shared::cluster.u32", mapa},
      {"st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32", st_async},
      {"mbarrier.init.shared::cta.b64", mbarrier_init},
      {"fence.mbarrier_init.release.cluster", mbarrier_fence},
      {"mbarrier.arrive.expect_tx.shared::cta.b64", mbarrier_arrive},
      {"mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64", mbarrier_try_wait},
      {"barrier.cluster.arrive.release.aligned", cluster_arrive},
      {"barrier.cluster.wait.acquire.aligned", cluster_wait},
  };
}

}  // namespace prnn::interpreter
