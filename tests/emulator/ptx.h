// The functions of cuda/ptx.h on the host. Included by it, after its Word2 and Word4.
//
// Those that may wait or fail have one argument more, with a default: the place that calls, for
// the emulator's messages.
#pragma once
#include <cstdint>
#include <source_location>

#include "emulator/numbers.h"
#include "emulator/operations.h"
#include "emulator/sanitizers.h"

namespace prnn::ptx {

using Where = std::source_location;

// ---- who am I ----
inline int tid() { return emulator::thread_in_block(); }
inline int ctaid() { return emulator::block_in_grid(); }
inline int nctaid() { return emulator::blocks_in_grid(); }
inline char* shared() { return emulator::shared_memory(); }
inline int opaque(int v) { return v; }
inline float opaque(float v) { return v; }

// ---- within a block ----
inline void bar_sync(Where where = Where::current()) { emulator::block_barrier(where); }
inline void bar_sync(int, int threads, Where where = Where::current()) {
  emulator::second_barrier(threads, true, where);
}
inline void bar_arrive(int, int threads, Where where = Where::current()) {
  emulator::second_barrier(threads, false, where);
}
inline void bar_warp_sync(Where where = Where::current()) { emulator::warp_barrier(where); }
inline std::uint32_t shfl_bfly(std::uint32_t v, int mask, Where where = Where::current()) {
  return emulator::shuffle(v, mask, where);
}
inline bool vote_all(bool v, Where where = Where::current()) { return emulator::vote(v, where); }

// ---- matrix products ----
inline void mma(emulator::MatrixKind kind, float (&d)[4], const Word4& a, std::uint32_t b0,
                std::uint32_t b1, Where where) {
  const emulator::Fragments fragments{{a.x, a.y, a.z, a.w}, {b0, b1}, {d[0], d[1], d[2], d[3]}};
  const emulator::Products products = emulator::matrix_product(kind, fragments, where);
  for (int i = 0; i < 4; ++i) {
    d[i] = products.d[i];
    // Processors of hosts hand on the bits of a NaN, the device does not.
    if (d[i] != d[i]) d[i] = emulator::float_of(emulator::kFloatNan);
  }
}
inline void mma_m16n8k16_bf16(float (&d)[4], const Word4& a, std::uint32_t b0, std::uint32_t b1,
                              Where where = Where::current()) {
  mma(emulator::MatrixKind::kBf16, d, a, b0, b1, where);
}
inline void mma_m16n8k16_f16(float (&d)[4], const Word4& a, std::uint32_t b0, std::uint32_t b1,
                             Where where = Where::current()) {
  mma(emulator::MatrixKind::kF16, d, a, b0, b1, where);
}
inline void mma_m16n8k8_tf32(float (&d)[4], const Word4& a, std::uint32_t b0, std::uint32_t b1,
                             Where where = Where::current()) {
  mma(emulator::MatrixKind::kTf32, d, a, b0, b1, where);
}

// ---- conversions ----
inline std::uint32_t cvt_rn_bf16x2(float low, float high) {
  const bool truncate = emulator::truncates();
  return emulator::bf16_of(low, truncate) | emulator::bf16_of(high, truncate) << 16;
}
inline std::uint32_t cvt_rn_f16x2(float low, float high) {
  const bool truncate = emulator::truncates();
  return emulator::f16_of(low, truncate) | emulator::f16_of(high, truncate) << 16;
}
inline float cvt_f32_f16(std::uint16_t bits) { return emulator::float_of_f16(bits); }
inline std::uint32_t cvt_rna_tf32(float v) { return emulator::tf32_of(v, emulator::truncates()); }

// ---- global memory, visible to other blocks ----
// The sanitizers are told here, in the kernel's own code, so that they show its line.
inline Word4 ld_relaxed_gpu_v2_b64(const void* p, Where where = Where::current()) {
  emulator::require_aligned(p, 16, where);
  const auto* granules = static_cast<const std::uint64_t*>(p);
  emulator::sanitizers::relaxed_read8(granules);
  emulator::sanitizers::relaxed_read8(granules + 1);
  const std::uint64_t low = emulator::load_granule(granules);
  const std::uint64_t high = emulator::load_granule(granules + 1);
  return {static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
          static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32)};
}
inline void st_relaxed_gpu_b64(void* p, Word2 v, Where where = Where::current()) {
  emulator::require_aligned(p, 8, where);
  emulator::sanitizers::relaxed_write8(p);
  emulator::store_granule(p, v.x | std::uint64_t{v.y} << 32);
}
inline void prefetch_global_l2(const void*) {}

// ---- waiting ----
inline void spin(Where where = Where::current()) { emulator::spin(where); }
inline constexpr std::uint32_t kTurnsPerLook = 1;
inline std::uint32_t clock() { return emulator::cycles(); }
inline std::uint32_t globaltimer() { return emulator::clock(); }
inline std::uint32_t atom_cas(std::uint32_t* p, std::uint32_t expected, std::uint32_t v) {
  return emulator::compare_and_swap(p, expected, v);
}
inline void fence_acq_rel_sys() {}
inline void nanosleep(Where where = Where::current()) { emulator::spin(where); }
inline void trap(Where where = Where::current()) { emulator::trap(where); }

// ---- clusters ----
using RemoteAddress = char*;  // in the other block's memory
using MBarrier = std::uint64_t;

inline int cluster_ctarank() { return emulator::rank_in_cluster(); }
inline RemoteAddress mapa(const void* p, int rank, Where where = Where::current()) {
  return emulator::remote_address(p, rank, where);
}
inline void st_async_v2_b32(RemoteAddress to, Word2 v, RemoteAddress mbarrier,
                            Where where = Where::current()) {
  emulator::store_remote(to, v.x | std::uint64_t{v.y} << 32, mbarrier, where);
}
inline void mbarrier_init(MBarrier* b, std::uint32_t count, Where where = Where::current()) {
  emulator::mbarrier_init(b, count, where);
}
inline void fence_mbarrier_init() { emulator::mbarrier_fence(); }
inline void mbarrier_arrive_expect_tx(MBarrier* b, std::uint32_t bytes,
                                      Where where = Where::current()) {
  emulator::mbarrier_arrive(b, bytes, where);
}
inline bool mbarrier_try_wait_parity(MBarrier* b, std::uint32_t parity,
                                     Where where = Where::current()) {
  return emulator::mbarrier_complete(b, parity, where);
}
inline void barrier_cluster_arrive(Where where = Where::current()) {
  emulator::cluster_arrive(where);
}
inline void barrier_cluster_wait(Where where = Where::current()) { emulator::cluster_wait(where); }

}  // namespace prnn::ptx
