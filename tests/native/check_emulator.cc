// Checks tests/emulator: each operation against its definition, what an error is answered with, and
// that every fault it can inject is one that shows. Exits with 1 and a line on a failure.
//
// With an argument, runs one kernel that is wrong in a way only a sanitizer sees. Built and run,
// plainly and under sanitizers, by tests/test_emulator.py.
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cuda/ptx.h"
#include "emulator/emulator.h"

namespace {

namespace ptx = prnn::ptx;
namespace emulator = prnn::emulator;
using emulator::EmulatorError;
using emulator::Launch;
using emulator::Options;
using ptx::Word2;
using ptx::Word4;
using Kernel = std::function<void()>;

constexpr std::uint32_t kUnwritten = ~0u;

void expect(bool ok, const std::string& what) {
  if (ok) return;
  std::printf("FAILED: %s\n", what.c_str());
  std::exit(1);
}

std::uint32_t bits(float v) { return std::bit_cast<std::uint32_t>(v); }
float value(std::uint32_t v) { return std::bit_cast<float>(v); }

Options seeded(std::uint64_t seed) {
  Options options;
  options.seed = seed;
  return options;
}

// Granules that no block has written yet.
class Mailbox {
 public:
  explicit Mailbox(std::size_t granules)
      : size_(granules), granules_(new (std::align_val_t{16}) std::uint64_t[granules]) {
    for (std::size_t i = 0; i < size_; ++i) granules_[i] = ~std::uint64_t{0};
  }
  ~Mailbox() { ::operator delete[](granules_, std::align_val_t{16}); }
  Mailbox(const Mailbox&) = delete;
  std::uint64_t* operator[](std::size_t i) { return granules_ + i; }
  std::vector<std::uint64_t> contents() const { return {granules_, granules_ + size_}; }

 private:
  std::size_t size_;
  std::uint64_t* granules_;
};

Word4 poll(const void* p) {
  std::uint32_t turns = 0;
  for (;;) {
    const Word4 v = ptx::ld_relaxed_gpu_v2_b64(p);
    if (v.x != kUnwritten && v.z != kUnwritten) return v;
    ptx::spin(turns);
  }
}
void wait(ptx::MBarrier* b, std::uint32_t parity) {
  std::uint32_t turns = 0;
  while (!ptx::mbarrier_try_wait_parity(b, parity)) ptx::spin(turns);
}
void cluster_sync() {
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
}

// ---- conversions ----

void check_half(float v, const char* where) {
  const std::uint32_t ours = ptx::cvt_rn_f16x2(v, 0) & 0xffff;
  const auto half = static_cast<_Float16>(v);
  const std::uint32_t right = v != v ? 0x7fff : std::bit_cast<std::uint16_t>(half);
  expect(ours == right, std::string("cvt.rn.f16x2 of ") + std::to_string(v) + " " + where);
}

void check_conversions() {
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    const float ours = ptx::cvt_f32_f16(static_cast<std::uint16_t>(h));
    const float right = std::bit_cast<_Float16>(static_cast<std::uint16_t>(h));
    expect(right != right ? bits(ours) == 0x7fffffff : bits(ours) == bits(right), "cvt.f32.f16");
    if (right != right) continue;
    // The numbers themselves, and those halfway to the next and beside that.
    check_half(right, "as it is");
    const std::uint32_t half_step = bits(right) + 0x1000;
    for (int i = -1; i <= 1; ++i) check_half(value(half_step + i), "near a half");
  }
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const float v = value(random());
    check_half(v, "at random");
    const std::uint32_t pair = ptx::cvt_rn_bf16x2(v, 1.0f);
    expect(pair >> 16 == 0x3f80, "cvt.rn.bf16x2: the high half");
    const double below = value(bits(v) & 0xffff0000),
                 above = value((bits(v) >> 16 << 16) + 0x10000);
    const double ours = value(pair << 16);
    if (v != v) {
      expect((pair & 0xffff) == 0x7fff, "cvt.rn.bf16x2: NaN");
      expect(ptx::cvt_rna_tf32(v) == 0x7fffffff, "cvt.rna.tf32: NaN");
      continue;
    }
    if (std::isinf(v) || std::isinf(above)) continue;
    const double error = std::fabs(ours - v);
    expect((ours == below || ours == above) && error <= std::fabs(below - v) &&
               error <= std::fabs(above - v),
           "cvt.rn.bf16x2: to the nearest");
    const double tf32 = value(ptx::cvt_rna_tf32(v));
    const double unit = std::fabs(value((bits(v) & ~0x1fffu) + 0x2000) - value(bits(v) & ~0x1fffu));
    expect((ptx::cvt_rna_tf32(v) & 0x1fff) == 0 && std::fabs(tf32 - v) <= unit / 2,
           "cvt.rna.tf32: to the nearest");
  }
  expect((ptx::cvt_rn_bf16x2(value(0x3f808000), 0) & 0xffff) == 0x3f80, "bf16: half to even, down");
  expect((ptx::cvt_rn_bf16x2(value(0x3f818000), 0) & 0xffff) == 0x3f82, "bf16: half to even, up");
  expect(ptx::cvt_rna_tf32(value(0x3f801000)) == 0x3f802000, "tf32: half away from zero");
}

// ---- matrix products ----

// The fragments as the PTX ISA defines them: element i of the lane's a is A(row, column).
struct Element {
  int row, column;
};
Element a_of_k16(int lane, int i) {
  const int group = lane >> 2, in_group = lane % 4;
  return {(i < 2 || (4 <= i && i < 6)) ? group : group + 8,
          in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)};
}
Element b_of_k16(int lane, int i) {
  return {(lane % 4) * 2 + (i & 1) + (i < 2 ? 0 : 8), lane >> 2};
}
Element a_of_k8(int lane, int i) {
  return {(lane >> 2) + (i == 1 || i == 3 ? 8 : 0), lane % 4 + (i >= 2 ? 4 : 0)};
}
Element b_of_k8(int lane, int i) { return {lane % 4 + 4 * i, lane >> 2}; }
Element d_of(int lane, int i) { return {(lane >> 2) + (i < 2 ? 0 : 8), (lane % 4) * 2 + (i & 1)}; }

struct Matrices {
  float a[16][16], b[16][8], d[16][8];
};

enum class Kind { kBf16, kF16, kTf32 };

std::uint32_t pack(Kind kind, float low, float high) {
  return kind == Kind::kBf16 ? ptx::cvt_rn_bf16x2(low, high) : ptx::cvt_rn_f16x2(low, high);
}

void multiply_lane(Kind kind, Matrices& m) {
  const int lane = ptx::tid();
  std::uint32_t a[4], b[2];
  if (kind == Kind::kTf32) {
    // Garbage in the bits that the tensor core does not read.
    for (int i = 0; i < 4; ++i)
      a[i] = bits(m.a[a_of_k8(lane, i).row][a_of_k8(lane, i).column]) | 0x1abc;
    for (int i = 0; i < 2; ++i)
      b[i] = bits(m.b[b_of_k8(lane, i).row][b_of_k8(lane, i).column]) | 0x0fff;
  } else {
    const auto a_at = [&](int i) { return m.a[a_of_k16(lane, i).row][a_of_k16(lane, i).column]; };
    const auto b_at = [&](int i) { return m.b[b_of_k16(lane, i).row][b_of_k16(lane, i).column]; };
    for (int i = 0; i < 4; ++i) a[i] = pack(kind, a_at(2 * i), a_at(2 * i + 1));
    for (int i = 0; i < 2; ++i) b[i] = pack(kind, b_at(2 * i), b_at(2 * i + 1));
  }
  float d[4];
  for (int i = 0; i < 4; ++i) d[i] = m.d[d_of(lane, i).row][d_of(lane, i).column];
  const Word4 fragment{a[0], a[1], a[2], a[3]};
  if (kind == Kind::kBf16) ptx::mma_m16n8k16_bf16(d, fragment, b[0], b[1]);
  if (kind == Kind::kF16) ptx::mma_m16n8k16_f16(d, fragment, b[0], b[1]);
  if (kind == Kind::kTf32) ptx::mma_m16n8k8_tf32(d, fragment, b[0], b[1]);
  for (int i = 0; i < 4; ++i) m.d[d_of(lane, i).row][d_of(lane, i).column] = d[i];
}

void check_matrix_products() {
  std::mt19937 random(2);
  for (const Kind kind : {Kind::kBf16, Kind::kF16, Kind::kTf32}) {
    const int depth = kind == Kind::kTf32 ? 8 : 16;
    Matrices m;
    // Integers of few bits: exact in every format, and in any order of summation.
    const auto draw = [&](auto& matrix) {
      for (auto& row : matrix) {
        for (float& v : row) v = static_cast<float>(static_cast<int>(random() % 15) - 7);
      }
    };
    draw(m.a);
    draw(m.b);
    draw(m.d);
    const Matrices before = m;
    emulator::launch({}, [&] { multiply_lane(kind, m); });
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        float right = before.d[i][j];
        for (int k = 0; k < depth; ++k) right += before.a[i][k] * before.b[k][j];
        expect(m.d[i][j] == right, "mma: a product, kind " + std::to_string(int(kind)));
      }
    }
  }
  std::uint32_t nan = 0;
  emulator::launch({}, [&] {
    float d[4] = {value(kUnwritten), 0, 0, 0};
    ptx::mma_m16n8k16_bf16(d, {}, 0, 0);
    if (ptx::tid() == 0) nan = bits(d[0]);
  });
  expect(nan == 0x7fffffff, "mma: NaN as the device writes it");
}

// ---- within a block ----

void check_shuffles_and_votes() {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    emulator::launch(
        {.grid = 2, .block = 64},
        [&] {
          const int lane = ptx::tid() % 32;
          for (int mask = 0; mask < 32; ++mask) {
            const auto got =
                ptx::shfl_bfly(static_cast<std::uint32_t>(100 * mask + ptx::tid()), mask);
            expect(got == static_cast<std::uint32_t>(100 * mask + (ptx::tid() ^ mask)),
                   "shfl.bfly");
            expect(
                ptx::vote_all(true) && !ptx::vote_all(lane != mask) && !ptx::vote_all(lane == mask),
                "vote.all");
          }
        },
        seeded(seed));
  }
}

// Every thread writes a word and reads that of another, `rounds` times.
void exchange(int threads, void (*barrier)(), int rounds, bool single_buffer = false) {
  auto* words = reinterpret_cast<std::uint32_t*>(ptx::shared());
  const int base = ptx::tid() / threads * threads;
  for (int r = 0; r < rounds; ++r) {
    std::uint32_t* buffer = words + (single_buffer ? 0 : r % 2 * 64);
    buffer[ptx::tid()] = static_cast<std::uint32_t>(1000 * r + ptx::tid());
    barrier();
    const int other = base + (ptx::tid() - base + 5) % threads;
    if (buffer[other] != static_cast<std::uint32_t>(1000 * r + other) && !single_buffer)
      throw std::runtime_error("a word of another thread is not there");
  }
}

void check_barriers() {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Launch shape{.grid = 2, .block = 64, .shared_bytes = 512};
    emulator::launch(shape, [] { exchange(64, [] { ptx::bar_sync(); }, 5); }, seeded(seed));
    emulator::launch(shape, [] { exchange(32, [] { ptx::bar_warp_sync(); }, 5); }, seeded(seed));
  }
  emulator::launch({.shared_bytes = 4}, [] {
    expect(*reinterpret_cast<std::uint32_t*>(ptx::shared()) == kUnwritten,
           "shared memory is poisoned");
    expect(reinterpret_cast<std::uintptr_t>(ptx::shared()) % 128 == 0, "shared memory is aligned");
  });
}

// ---- between blocks ----

// Block 0 writes two granules, block 1 watches them arrive.
void check_granules() {
  bool first_alone = false, second_alone = false, neither = false;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Mailbox mail(2);
    emulator::launch(
        {.grid = 2},
        [&] {
          if (ptx::tid() != 0) return;
          if (ptx::ctaid() == 0) {
            ptx::st_relaxed_gpu_b64(mail[0], {1, 2});
            ptx::st_relaxed_gpu_b64(mail[1], {3, 4});
            // Its own stores, it sees at once.
            const Word4 own = ptx::ld_relaxed_gpu_v2_b64(mail[0]);
            expect(own.x == 1 && own.y == 2 && own.z == 3 && own.w == 4, "own stores");
            return;
          }
          std::uint32_t turns = 0;
          for (;;) {
            const Word4 v = ptx::ld_relaxed_gpu_v2_b64(mail[0]);
            const bool first = v.x != kUnwritten, second = v.z != kUnwritten;
            expect(v.y == (first ? 2 : kUnwritten) && v.w == (second ? 4 : kUnwritten),
                   "a granule arrives as one");
            if (first && second) return;
            (first ? first_alone : second ? second_alone : neither) = true;
            ptx::spin(turns);
          }
        },
        seeded(seed));
    expect(*mail[0] == (std::uint64_t{2} << 32 | 1) && *mail[1] == (std::uint64_t{4} << 32 | 3),
           "all stores have arrived at the end");
  }
  expect(first_alone && second_alone && neither, "seeds show granules arriving in any order");
}

// A grid of blocks that sum what all have published in the step before. Uses all operations of the
// grid exchange so that a fault in any shows; the result depends on every bit.
std::vector<std::uint64_t> grid_relay(const Options& options) {
  constexpr int kBlocks = 4, kSteps = 4;
  Mailbox mail(2 * kBlocks * (kSteps + 1));
  for (int i = 0; i < 2 * kBlocks; ++i) *mail[i] = 0x3f8f1234'3fa0abcd + i * 0x01234567;
  const Kernel kernel = [&] {
    auto* words = reinterpret_cast<std::uint32_t*>(ptx::shared());  // [2][64]
    const int tid = ptx::tid(), lane = tid % 32, warp = tid / 32;
    float carried[4] = {};
    for (int step = 0; step < kSteps; ++step) {
      Word4 v{1, 2, 3, 4};
      std::uint32_t turns = 0;
      for (;;) {
        if (lane < kBlocks) v = ptx::ld_relaxed_gpu_v2_b64(mail[2 * (step * kBlocks + lane)]);
        if (ptx::vote_all(v.x != kUnwritten && v.z != kUnwritten)) break;
        ptx::spin(turns);
      }
      // A permutation of lanes through shared memory, then through the shuffle.
      std::uint32_t* mine = words + 64 * (step % 2) + 32 * warp;
      mine[lane] = v.x + 3 * v.y + 5 * v.z + 7 * v.w;
      ptx::bar_warp_sync();
      const std::uint32_t other =
          ptx::shfl_bfly(mine[(lane + 7) % 32], 2) + static_cast<unsigned>(lane);
      const float f = 1.0f + static_cast<float>(other % 8191) / 8192.0f;
      float d[4] = {carried[0], carried[1], carried[2], carried[3]};
      const Word4 a{ptx::cvt_rn_bf16x2(f, 0.5f * f), ptx::cvt_rn_bf16x2(-f, 2 * f),
                    ptx::cvt_rn_bf16x2(3 * f, f), ptx::cvt_rn_bf16x2(f, -5 * f)};
      ptx::mma_m16n8k16_bf16(d, a, ptx::cvt_rn_bf16x2(f, 7 * f), ptx::cvt_rn_bf16x2(-f, f));
      ptx::bar_warp_sync();
      mine[lane] = bits(d[0] + 2 * d[1] + 3 * d[2] + 5 * d[3]);
      ptx::bar_sync();
      for (int i = 0; i < 4; ++i) carried[i] = 0.125f * d[i];
      if (tid >= 2) continue;
      Word2 out{0, 0};
      for (int i = 0; i < 64; ++i) {
        out.x = 31 * out.x + words[64 * (step % 2) + i];
        out.y ^= out.x + static_cast<unsigned>(tid + ptx::ctaid());
      }
      out.x &= 0x7fffffff;
      ptx::st_relaxed_gpu_b64(mail[2 * ((step + 1) * kBlocks + ptx::ctaid()) + tid], out);
    }
  };
  const Launch shape{.grid = kBlocks, .block = 64, .shared_bytes = 512, .cooperative = true};
  emulator::launch(shape, kernel, options);
  return mail.contents();
}

// A cluster whose blocks send each other a granule per step and warp, counted by mbarriers.
std::vector<std::uint64_t> cluster_relay(const Options& options) {
  constexpr int kBlocks = 4, kClusters = 2, kSteps = 6, kWarps = 2;
  struct Shared {
    ptx::MBarrier arrived[2];
    Word2 values[2][kBlocks * kWarps];
  };
  std::vector<std::uint64_t> results(kBlocks * kClusters * kWarps);
  const Kernel kernel = [&] {
    auto& shared = *reinterpret_cast<Shared*>(ptx::shared());
    const int tid = ptx::tid(), lane = tid % 32, warp = tid / 32;
    const int rank = ptx::cluster_ctarank();
    if (tid == 0) {
      for (ptx::MBarrier& b : shared.arrived) {
        ptx::mbarrier_init(&b, 1);
        ptx::mbarrier_arrive_expect_tx(&b, sizeof(shared.values[0]));
      }
      ptx::fence_mbarrier_init();
    }
    cluster_sync();
    Word2 mine{static_cast<std::uint32_t>(ptx::ctaid()), static_cast<std::uint32_t>(warp)};
    for (int step = 0; step < kSteps; ++step) {
      const int now = step % 2;
      const std::uint32_t parity = step / 2 % 2;
      if (lane < kBlocks) {
        const auto to = [&](const void* p) { return ptx::mapa(p, lane); };
        const Word2 sent{mine.x, mine.y + static_cast<std::uint32_t>(lane)};  // each another
        ptx::st_async_v2_b32(to(&shared.values[now][rank * kWarps + warp]), sent,
                             to(&shared.arrived[now]));
      }
      wait(&shared.arrived[now], parity);
      for (const Word2& v : shared.values[now]) {
        mine.x = 31 * mine.x + v.x;
        mine.y ^= mine.x + v.y;
      }
      // All have read the values before any warp tells other blocks, by its next st.async, that
      // they may overwrite them two steps on; the mbarrier must expect those first.
      ptx::bar_sync();
      if (tid == 0 && step + 2 < kSteps)
        ptx::mbarrier_arrive_expect_tx(&shared.arrived[now], sizeof(shared.values[0]));
    }
    cluster_sync();
    if (lane == 0) results[ptx::ctaid() * kWarps + warp] = mine.x | std::uint64_t{mine.y} << 32;
  };
  const Launch shape{.grid = kBlocks * kClusters,
                     .cluster = kBlocks,
                     .block = 32 * kWarps,
                     .shared_bytes = sizeof(Shared)};
  emulator::launch(shape, kernel, options);
  return results;
}

void check_relays(int seeds) {
  Options plain;
  plain.random_order = plain.weak_stores = false;
  const auto grid = grid_relay(plain), cluster = cluster_relay(plain);
  for (int seed = 0; seed < seeds; ++seed) {
    expect(grid_relay(seeded(seed)) == grid, "the grid's result depends on the schedule");
    Options options = seeded(seed);
    if (seed % 2 == 1) options.resident_blocks = 4;  // one cluster at a time
    expect(cluster_relay(options) == cluster, "the cluster's result depends on the schedule");
  }
}

// ---- faults ----

void check_faults() {
  const auto grid = grid_relay({}), cluster = cluster_relay({});
  for (const std::string_view name : emulator::fault_names()) {
    constexpr int kSeeds = 20;
    int noticed = 0;
    for (int seed = 0; seed < kSeeds; ++seed) {
      Options options = seeded(seed);
      options.fault = name;
      bool wrong = false;
      for (const bool of_grid : {true, false}) {
        try {
          wrong |= of_grid ? grid_relay(options) != grid : cluster_relay(options) != cluster;
        } catch (const EmulatorError&) {
          wrong = true;
        }
      }
      noticed += wrong;
    }
    expect(noticed == kSeeds, "the fault " + std::string(name) + " shows only with " +
                                  std::to_string(noticed) + " seeds of " + std::to_string(kSeeds));
  }
}

// ---- errors ----

struct Wrong {
  const char* expected;  // part of the message
  Launch shape;
  Kernel kernel;
  Options options;
};

ptx::MBarrier* first_mbarrier() { return reinterpret_cast<ptx::MBarrier*>(ptx::shared()); }
void init_mbarrier(bool fence = true) {
  if (ptx::tid() == 0) {
    ptx::mbarrier_init(first_mbarrier(), 1);
    if (fence) ptx::fence_mbarrier_init();
  }
  cluster_sync();
}
void send(int offset, int rank) {
  if (ptx::tid() == 0 && ptx::cluster_ctarank() == 0)
    ptx::st_async_v2_b32(ptx::mapa(ptx::shared() + offset, rank), {1, 2},
                         ptx::mapa(ptx::shared(), rank));
}

std::vector<Wrong> wrong_kernels(Mailbox& mail) {
  const Launch one{.block = 64, .shared_bytes = 64};
  const Launch pair{.grid = 2, .cluster = 2, .shared_bytes = 64};
  const Launch four{.grid = 4, .block = 64};
  Options two_resident;
  two_resident.resident_blocks = 2;
  const auto wait_for_all = [&mail] {
    if (ptx::tid() < 2) ptx::st_relaxed_gpu_b64(mail[2 * ptx::ctaid() + ptx::tid()], {1, 2});
    for (int b = 0; b < ptx::nctaid(); ++b) poll(mail[2 * b]);
  };
  return {
      {"block 3 @ spin x 64 (check_emulator.cc:",
       four,
       [&mail] {
         if (ptx::ctaid() == 3) poll(mail[14]);
       },
       {}},
      {"2 blocks have not started", four, wait_for_all, two_resident},
      {"cooperative, but of a grid of 4 blocks only 2",
       {.grid = 4, .block = 64, .cooperative = true},
       wait_for_all,
       two_resident},
      {"block 0 @ bar.sync x 32",
       one,
       [&mail] {
         if (ptx::tid() < 32) poll(mail[14]);
         ptx::bar_sync();
       },
       {}},
      {"of its block wait at bar.sync", one,
       [] {
         if (ptx::tid() >= 32) ptx::bar_sync();
       },
       seeded(3)},
      {"threads of the block have exited",
       one,
       [] {
         if (ptx::tid() < 32) return;
         for (int i = 0; i < 1000; ++i) ptx::bar_warp_sync();
         ptx::bar_sync();
       },
       {}},
      {"divergence: lanes of one warp wait at different bar.sync",
       one,
       [] {
         if (ptx::tid() % 2 == 0) {
           ptx::bar_sync();
         } else {
           ptx::bar_sync();
         }
       },
       {}},
      {"divergence",
       one,
       [] {
         if (ptx::tid() % 2 == 0) {
           ptx::bar_sync();
         } else {
           ptx::vote_all(true);
         }
       },
       {}},
      {"lanes of the warp wait at shfl.sync",
       {},
       [] {
         if (ptx::tid() == 7) {
           ptx::vote_all(true);
         } else {
           ptx::shfl_bfly(1, 1);
         }
       },
       {}},
      {"exited",
       {},
       [] {
         if (ptx::tid() != 7) ptx::vote_all(true);
       },
       {}},
      {"no lane is 32 away", {}, [] { ptx::shfl_bfly(1, 32); }, {}},
      {"no multiple of 16", {}, [&mail] { ptx::ld_relaxed_gpu_v2_b64(mail[1]); }, {}},
      {"no multiple of 8",
       {},
       [&mail] { ptx::st_relaxed_gpu_b64(reinterpret_cast<char*>(mail[1]) + 4, {1, 2}); },
       {}},
      {"null", {}, [] { ptx::st_relaxed_gpu_b64(nullptr, {1, 2}); }, {}},
      {"not an address of this block's shared memory",
       pair,
       [] { ptx::mapa(ptx::shared() + 64, 1); },
       {}},
      {"no block of rank 2", pair, [] { ptx::mapa(ptx::shared(), 2); }, {}},
      {"no address of the cluster's shared memory",
       pair,
       [] {
         const auto last = ptx::mapa(ptx::shared() + 56, 1);
         ptx::st_async_v2_b32(last + 8, {1, 2}, last);
       },
       {}},
      {"the mbarrier does not lie in block 1",
       pair,
       [] {
         init_mbarrier();
         ptx::st_async_v2_b32(ptx::mapa(ptx::shared() + 8, 1), {1, 2}, ptx::mapa(ptx::shared(), 0));
       },
       {}},
      {"the mbarrier is not initialised",
       pair,
       [] {
         send(8, 1);
         cluster_sync();
       },
       {}},
      {"lacks fence.mbarrier_init",
       pair,
       [] {
         init_mbarrier(false);
         send(8, 1);
         cluster_sync();
       },
       {}},
      {"has exited",
       pair,
       [] {
         init_mbarrier();
         send(8, 1);
       },
       {}},
      {"which has exited",
       pair,
       [] {
         init_mbarrier();
         if (ptx::cluster_ctarank() == 1) return;
         for (int i = 0; i < 1000; ++i) ptx::bar_warp_sync();
         send(8, 1);
       },
       {}},
      {"has been overwritten",
       pair,
       [] {
         init_mbarrier();
         if (ptx::tid() == 0) *first_mbarrier() = 0;
         ptx::bar_warp_sync();
         ptx::mbarrier_try_wait_parity(first_mbarrier(), 0);
       },
       {}},
      {"more arrivals than its count",
       pair,
       [] {
         init_mbarrier();
         if (ptx::tid() == 0) {
           ptx::mbarrier_arrive_expect_tx(first_mbarrier(), 8);
           ptx::mbarrier_arrive_expect_tx(first_mbarrier(), 8);
         }
       },
       {}},
      {"block 1 @ ",  // 16 bytes are expected, 8 come
       pair,
       [] {
         init_mbarrier();
         if (ptx::cluster_ctarank() == 1 && ptx::tid() == 0)
           ptx::mbarrier_arrive_expect_tx(first_mbarrier(), 16);
         send(8, 1);
         if (ptx::cluster_ctarank() == 1) wait(first_mbarrier(), 0);
         cluster_sync();
       },
       {}},
      {"second st.async to an address",
       pair,
       [] {
         init_mbarrier();
         send(8, 1);
         send(8, 1);
         cluster_sync();
       },
       {}},
      {"initialised before", pair, [] { ptx::mbarrier_init(first_mbarrier(), 1); }, {}},
      {"without arrive", pair, [] { ptx::barrier_cluster_wait(); }, {}},
      {"a second time without wait",
       pair,
       [] {
         ptx::barrier_cluster_arrive();
         ptx::barrier_cluster_arrive();
       },
       {}},
      {"between barrier.cluster.arrive and wait", pair, [] { ptx::barrier_cluster_arrive(); }, {}},
      {"1 to 32 warps", {.block = 33}, [] {}, {}},
      {"not a number of clusters", {.grid = 3, .cluster = 2}, [] {}, {}},
      {"from within a kernel", {}, [] { emulator::launch({}, [] {}); }, {}},
  };
}

void check_errors() {
  Mailbox mail(16);
  int index = 0;
  for (const Wrong& wrong : wrong_kernels(mail)) {
    const std::string name = "error " + std::to_string(index++) + " (" + wrong.expected + "): ";
    try {
      emulator::launch(wrong.shape, wrong.kernel, wrong.options);
      expect(false, name + "none came");
    } catch (const EmulatorError& error) {
      const std::string message = error.what();
      expect(message.find(wrong.expected) != std::string::npos, name + "instead came " + message);
    }
  }
}

// After an error all stacks are unwound; what a kernel throws comes out of launch().
void check_exceptions() {
  std::atomic<int> living = 0;
  struct Counted {
    explicit Counted(std::atomic<int>& n) : n(n) { ++n; }
    ~Counted() { --n; }
    std::atomic<int>& n;
  };
  try {
    emulator::launch({.grid = 2, .block = 64}, [&] {
      const Counted counted(living);
      if (ptx::ctaid() == 1 && ptx::tid() == 40) throw std::logic_error("of the kernel");
      ptx::bar_sync();
    });
    expect(false, "what the kernel throws is lost");
  } catch (const std::logic_error& error) {
    expect(std::string(error.what()) == "of the kernel", "another exception");
  }
  expect(living == 0, "a stack is not unwound");
}

// ---- launches ----

void check_residency() {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    std::atomic<int> started = 0, ended = 0, most = 0;
    Options options = seeded(seed);
    options.resident_blocks = 5;  // two clusters of two
    emulator::launch(
        {.grid = 12, .cluster = 2},
        [&] {
          if (ptx::tid() == 0) most = std::max<int>(most, ++started - ended);
          cluster_sync();
          if (ptx::tid() == 0) ++ended;
        },
        options);
    expect(started == 12 && ended == 12 && most <= 4, "residency");
  }
}

void check_order_by_seed() {
  const auto order = [](std::uint64_t seed) {
    std::vector<int> out(96);
    std::atomic<int> size = 0;
    emulator::launch(
        {.grid = 3}, [&] { out[size++] = 32 * ptx::ctaid() + ptx::tid(); }, seeded(seed));
    return out;
  };
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    orders.insert(order(seed));
    expect(order(seed) == order(seed), "one seed, two orders");
  }
  expect(orders.size() == 20, "two seeds, one order");
}

void check_concurrent_launches() {
  const auto right = grid_relay({});
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&wrong, &right, i] {
      for (int n = 0; n < 5; ++n) wrong += grid_relay(seeded(10 * i + n)) != right;
    });
  }
  for (std::thread& t : threads) t.join();
  expect(wrong == 0, "launches from several threads at once");
}

// ---- for sanitizers ----

struct Hidden {
  const char* name;
  Kernel kernel;
};

std::vector<Hidden> hidden_mistakes(Mailbox& mail) {
  const auto bar_sync = [] { ptx::bar_sync(); };
  const auto no_barrier = [] {};
  return {
      // ThreadSanitizer
      {"race_without_bar_sync", [=] { exchange(64, no_barrier, 1, true); }},
      {"race_over_warps", [] { exchange(64, [] { ptx::bar_warp_sync(); }, 1, true); }},
      {"race_single_buffer", [=] { exchange(64, bar_sync, 3, true); }},
      {"race_shuffle_is_no_barrier", [] { exchange(32, [] { ptx::shfl_bfly(0, 1); }, 1, true); }},
      {"race_relaxed_is_no_acquire",
       [&mail] {
         static std::uint32_t data;
         if (ptx::tid() != 0) return;
         if (ptx::ctaid() == 0) {
           data = 1;
           for (int i = 0; i < 2; ++i) ptx::st_relaxed_gpu_b64(mail[i], {1, 2});
         } else if (ptx::ctaid() == 1) {
           poll(mail[0]);
           mail[2][0] = data;
         }
       }},
      {"race_granule_read_plainly",
       [&mail] {
         if (ptx::tid() != 0) return;
         if (ptx::ctaid() == 0) ptx::st_relaxed_gpu_b64(mail[0], {1, 2});
         if (ptx::ctaid() == 1) mail[2][0] = *mail[0];
       }},
      {"race_remote_read_early",
       [&mail] {
         init_mbarrier();
         if (ptx::ctaid() == 1 && ptx::tid() == 0) {
           ptx::mbarrier_arrive_expect_tx(first_mbarrier(), 8);
           *mail[0] = first_mbarrier()[1];
         }
         send(8, 1);
         if (ptx::ctaid() == 1) wait(first_mbarrier(), 0);
         cluster_sync();
       }},
      // AddressSanitizer
      {"overrun_of_shared_memory", [] { ptx::shared()[256 + ptx::tid()] = 1; }},
      {"overrun_of_relaxed_store", [&mail] { ptx::st_relaxed_gpu_b64(mail[4], {1, 2}); }},
      {"overrun_of_relaxed_load", [&mail] { ptx::ld_relaxed_gpu_v2_b64(mail[4]); }},
      {"overrun_of_registers",
       [&mail] {
         std::uint32_t registers[4] = {1, 2, 3, 4};
         const volatile int index = 4;
         *mail[0] = registers[index];
       }},
  };
}

int run_hidden(const std::string& name) {
  Mailbox mail(4);
  for (const Hidden& h : hidden_mistakes(mail)) {
    if (name != h.name) continue;
    emulator::launch({.grid = 2, .cluster = 2, .block = 64, .shared_bytes = 256}, h.kernel);
    std::printf("not noticed\n");
    return 0;
  }
  std::printf("no mistake is named %s\n", name.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) return run_hidden(argv[1]);
  check_conversions();
  check_matrix_products();
  check_shuffles_and_votes();
  check_barriers();
  check_granules();
  check_residency();
  check_order_by_seed();
  check_exceptions();
  // ThreadSanitizer would report the mistakes themselves.
  constexpr bool kThreadSanitizer = emulator::sanitizers::kThread;
  check_relays(kThreadSanitizer ? 20 : 200);
  if (!kThreadSanitizer) {
    check_errors();
    check_faults();
  }
  check_concurrent_launches();
  std::printf("ok\n");
}
