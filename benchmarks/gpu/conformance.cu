// Does every function of cuda/ptx.h do on this GPU what the emulator says it does?
//
//   conformance          one row of JSON for each check
//   conformance --host   the definitions here against those of tests/emulator; needs no GPU
//
// Build: nvcc -std=c++20 -O2 -I<repository> -gencode=arch=compute_90a,code=sm_90a
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#include "benchmarks/gpu/report.h"
#include "benchmarks/gpu/wait.cuh"
#include "cuda/ptx.h"
#if __has_include("tests/emulator/numbers.h")
#include "tests/emulator/numbers.h"
#define PRNN_HAS_EMULATOR 1
#endif
#ifdef PRNN_EMULATOR_MATRIX
#include "tests/emulator/matrix.h"
#endif

namespace ptx = prnn::ptx;
using bench::Array;
using bench::Launch;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using Counter = unsigned long long;

namespace {

int failures = 0;

// `required`: the kernels rely on it. Otherwise it is only good to know.
void report(const char* check, long long wrong, long long of, bool required = true) {
  bench::row("part", "conformance", "check", check, "ok", wrong == 0, "wrong", wrong, "of", of,
             "required", required);
  failures += required && wrong != 0;
}

// ---- definitions ---------------------------------------------------------------------
// In integers, so that nothing of what is to be tested is used.

#define HD __host__ __device__ constexpr

constexpr uint32_t kSign = 0x80000000u, kInfinity = 0x7f800000u;
HD bool is_nan(uint32_t f) { return (f & ~kSign) > kInfinity; }
// v without its lowest n bits, to nearest, ties to even.
HD uint32_t to_even(uint32_t v, int n) {
  const uint32_t cut = v >> n, rest = v & ((1u << n) - 1), half = 1u << (n - 1);
  return cut + (rest > half || (rest == half && (cut & 1u)));
}
HD uint32_t bf16_of(uint32_t f) { return is_nan(f) ? 0x7fffu : to_even(f, 16); }
HD uint32_t f16_of(uint32_t f) {
  if (is_nan(f)) return 0x7fffu;
  const uint32_t sign = f >> 16 & 0x8000u, size = f & ~kSign;
  if (size >= 0x477ff000u) return sign | 0x7c00u;                          // from 65520 on
  if (size >= 0x38800000u) return sign | to_even(size - 0x38000000u, 13);  // from 2^-14 on
  const int shift = 126 - static_cast<int>(size >> 23);                    // units of 2^-24
  if (shift > 25) return sign;
  return sign | to_even((size & 0x7fffffu) | 0x800000u, shift);
}
HD uint32_t float_of_f16(uint32_t h) {
  const uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31u;
  uint32_t mantissa = h & 0x3ffu;
  if (exponent == 31) return mantissa ? 0x7fffffffu : sign | kInfinity;
  if (exponent) return sign | (exponent + 112) << 23 | mantissa << 13;
  if (!mantissa) return sign;
  uint32_t e = 113;
  for (; !(mantissa & 0x400u); mantissa <<= 1) --e;
  return sign | e << 23 | (mantissa & 0x3ffu) << 13;
}
// Ties away from zero.
HD uint32_t tf32_of(uint32_t f) { return is_nan(f) ? 0x7fffffffu : (f + 0x1000u) & ~0x1fffu; }

#undef HD

// ---- a block -------------------------------------------------------------------------

__global__ void who_am_i(int* out) {
  int* own = out + 3 * (ptx::ctaid() * static_cast<int>(blockDim.x) + ptx::tid());
  own[0] = ptx::tid();
  own[1] = ptx::ctaid();
  own[2] = ptx::nctaid();
}
void check_who_am_i() {
  constexpr int kBlocks = 5, kThreads = 96;
  Array<int> out(3 * kBlocks * kThreads);
  out.fill(0xff);
  bench::launch(who_am_i, {.blocks = kBlocks, .threads = kThreads}, out.get());
  long long wrong = 0;
  const auto read = out.read();
  for (int n = 0; n < kBlocks * kThreads; ++n)
    wrong += read[3 * n] != n % kThreads || read[3 * n + 1] != n / kThreads ||
             read[3 * n + 2] != kBlocks;
  report("tid, ctaid, nctaid", wrong, kBlocks * kThreads);
}

// Threads write to shared memory and read what others wrote, round after round.
template <bool kWarp>
__global__ void barrier(int rounds, Counter* wrong) {
  const int threads = static_cast<int>(blockDim.x), me = ptx::tid();
  volatile int* values = reinterpret_cast<int*>(ptx::shared());
  if (reinterpret_cast<uint64_t>(ptx::shared()) % 128 != 0) atomicAdd(wrong, 1);
  for (int n = 0; n < rounds; ++n) {
    values[me] = n * 1000 + me;
    kWarp ? ptx::bar_warp_sync() : ptx::bar_sync();
    const int from = kWarp ? me / 32 * 32 + (me + 1 + n) % 32 : (me + 33 + n) % threads;
    if (values[from] != n * 1000 + from) atomicAdd(wrong, 1);
    kWarp ? ptx::bar_warp_sync() : ptx::bar_sync();
  }
}
template <bool kWarp>
void check_barrier(const char* name) {
  Array<Counter> wrong(1);
  wrong.fill(0);
  constexpr int kBlocks = 64, kThreads = 256, kRounds = 1000;
  bench::launch(barrier<kWarp>,
                {.blocks = kBlocks, .threads = kThreads, .shared_bytes = 4 * kThreads}, kRounds,
                wrong.get());
  report(name, static_cast<long long>(wrong.read()[0]), 1ll * kBlocks * kThreads * kRounds);
}

__global__ void shuffle(uint32_t* out) {
  for (int mask = 0; mask < 32; ++mask)
    out[32 * mask + ptx::tid()] = ptx::shfl_bfly(static_cast<uint32_t>(ptx::tid()) * 7919u, mask);
}
void check_shuffle() {
  Array<uint32_t> out(32 * 32);
  bench::launch(shuffle, {}, out.get());
  const auto read = out.read();
  long long wrong = 0;
  for (uint32_t n = 0; n < 1024; ++n) wrong += read[n] != (n % 32 ^ n / 32) * 7919u;
  report("shfl_bfly", wrong, 1024);
}

// Vote n: all but lane n say yes; vote 32: all do.
__global__ void vote(int* out) {
  for (int n = 0; n <= 32; ++n) out[32 * n + ptx::tid()] = ptx::vote_all(ptx::tid() != n);
}
void check_vote() {
  Array<int> out(32 * 33);
  bench::launch(vote, {}, out.get());
  const auto read = out.read();
  long long wrong = 0;
  for (int n = 0; n < 32 * 33; ++n) wrong += read[n] != (n / 32 == 32);
  report("vote_all", wrong, 32 * 33);
}

// ---- matrix products -----------------------------------------------------------------

enum class Kind { kBf16, kF16, kTf32 };

struct Fragment {
  ptx::Word4 a;
  uint32_t b0, b1;
  float d[4];
};
template <Kind kKind>
__global__ void product(Fragment* warps) {
  Fragment& f = warps[ptx::ctaid() * 32 + ptx::tid()];
  if constexpr (kKind == Kind::kBf16) ptx::mma_m16n8k16_bf16(f.d, f.a, f.b0, f.b1);
  if constexpr (kKind == Kind::kF16) ptx::mma_m16n8k16_f16(f.d, f.a, f.b0, f.b1);
  if constexpr (kKind == Kind::kTf32) ptx::mma_m16n8k8_tf32(f.d, f.a, f.b0, f.b1);
}

// Where a lane's registers lie in the matrices: PTX ISA, "Matrix Fragments for mma.m16n8k16 with
// floating point type" and "... for mma.m16n8k8".
template <Kind kKind>
struct Matrices {
  static constexpr int kPerWord = kKind == Kind::kTf32 ? 1 : 2, kDepth = 8 * kPerWord;
  float a[16][16] = {}, b[16][8] = {}, c[16][8] = {};

  static uint32_t word(float first, float second) {
    const auto bits = [](float v) { return std::bit_cast<uint32_t>(v); };
    if (kKind == Kind::kTf32) return bits(first);
    if (kKind == Kind::kBf16) return bf16_of(bits(first)) | bf16_of(bits(second)) << 16;
    return f16_of(bits(first)) | f16_of(bits(second)) << 16;
  }
  Fragment fragment(int lane) const {
    const int row = lane / 4, column = lane / 4, k = lane % 4 * kPerWord, half = 4 * kPerWord;
    const auto of_a = [&](int r, int c) { return word(a[r][c], a[r][(c + 1) % 16]); };
    const auto of_b = [&](int r) { return word(b[r][column], b[(r + 1) % 16][column]); };
    const int pair = lane % 4 * 2;
    return {{of_a(row, k), of_a(row + 8, k), of_a(row, k + half), of_a(row + 8, k + half)},
            of_b(k),
            of_b(k + half),
            {c[row][pair], c[row][pair + 1], c[row + 8][pair], c[row + 8][pair + 1]}};
  }
  // What lane holds afterwards.
  float expected(int lane, int i) const {
    const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
    float sum = c[row][column];
    for (int k = 0; k < kDepth; ++k) sum += a[row][k] * b[k][column];
    return sum;
  }
};

template <Kind kKind>
std::vector<Fragment> multiply(const std::vector<Matrices<kKind>>& matrices) {
  std::vector<Fragment> lanes;
  for (const auto& m : matrices)
    for (int lane = 0; lane < 32; ++lane) lanes.push_back(m.fragment(lane));
  Array<Fragment> array(lanes);
  bench::launch(product<kKind>, {.blocks = static_cast<int>(matrices.size())}, array.get());
  return array.read();
}

// Small integers, whose products and sums are exact. In every second one there is a value that is
// not finite, which only its row or column may feel.
template <Kind kKind>
std::vector<Matrices<kKind>> random_matrices() {
  std::mt19937 random(7);
  const auto fill = [&](auto& matrix) {
    for (auto& row : matrix)
      for (float& v : row) v = static_cast<float>(static_cast<int>(random() % 15) - 7);
  };
  std::vector<Matrices<kKind>> all(200);
  for (std::size_t n = 0; n < all.size(); ++n) {
    auto& m = all[n];
    fill(m.a), fill(m.b), fill(m.c);
    const float odd = n / 4 % 2 ? INFINITY : NAN;
    if (n % 4 == 1) m.a[random() % 16][random() % m.kDepth] = odd;
    if (n % 4 == 3) m.b[random() % m.kDepth][random() % 8] = odd;
  }
  return all;
}
bool same(float a, float b) { return a == b || (a != a && b != b); }

template <Kind kKind>
void check_product(const char* name) {
  const auto all = random_matrices<kKind>();
  const auto out = multiply(all);
  long long wrong = 0;
  for (std::size_t n = 0; n < out.size(); ++n)
    for (int i = 0; i < 4; ++i)
      wrong += !same(out[n].d[i], all[n / 32].expected(static_cast<int>(n % 32), i));
  report(name, wrong, static_cast<long long>(4 * out.size()));
}

// What the kernels do not rely on, and the emulator assumes.
void note_products() {
  std::vector<Matrices<Kind::kTf32>> one(1);
  one[0].a[0][0] = std::bit_cast<float>(0x3f801fffu);
  one[0].b[0][0] = 1.0f;
  const float cut = multiply(one)[0].d[0];
  report("mma_m16n8k8_tf32 cuts low bits off", cut != 1.0f, 1, false);

  std::vector<Matrices<Kind::kBf16>> denormal(1);
  denormal[0].a[0][0] = std::bit_cast<float>(0x00010000u);  // bf16's smallest
  denormal[0].b[0][0] = 1.0f;
  const float kept = multiply(denormal)[0].d[0];
  report("mma_m16n8k16_bf16 keeps denormal numbers", kept != denormal[0].a[0][0], 1, false);
}

// ---- conversions ---------------------------------------------------------------------

enum class Conversion { kBf16Low, kBf16High, kF16Low, kF16High, kTf32, kTf32Nan };

// All floats with these high bits. The other half of a pair is a number that must not show.
template <Conversion kConversion>
__global__ void convert(uint32_t high, Counter* wrong) {
  const uint32_t low =
      static_cast<uint32_t>(ptx::ctaid()) * blockDim.x + static_cast<uint32_t>(ptx::tid());
  const uint32_t f = high << 24 | low;
  const float v = __uint_as_float(f);
  uint32_t is = 0, expected = 0;
  if constexpr (kConversion == Conversion::kBf16Low)
    is = ptx::cvt_rn_bf16x2(v, -1.0f), expected = bf16_of(f) | 0xbf800000u;
  if constexpr (kConversion == Conversion::kBf16High)
    is = ptx::cvt_rn_bf16x2(-1.0f, v), expected = bf16_of(f) << 16 | 0xbf80u;
  if constexpr (kConversion == Conversion::kF16Low)
    is = ptx::cvt_rn_f16x2(v, -1.0f), expected = f16_of(f) | 0xbc000000u;
  if constexpr (kConversion == Conversion::kF16High)
    is = ptx::cvt_rn_f16x2(-1.0f, v), expected = f16_of(f) << 16 | 0xbc00u;
  if constexpr (kConversion == Conversion::kTf32) {
    is = ptx::cvt_rna_tf32(v), expected = tf32_of(f);
    if (is_nan(f)) expected = is_nan(is) && is != 0xffffffffu ? is : ~is;
  }
  if constexpr (kConversion == Conversion::kTf32Nan)
    is = is_nan(f) ? ptx::cvt_rna_tf32(v) : tf32_of(f), expected = tf32_of(f);
  if (is != expected) atomicAdd(wrong, 1);
}
template <Conversion kConversion>
void check_conversion(const char* name, bool required = true) {
  Array<Counter> wrong(1);
  wrong.fill(0);
  for (uint32_t high = 0; high < 256; ++high)
    bench::launch(convert<kConversion>, {.blocks = 1 << 16, .threads = 256}, high, wrong.get());
  report(name, static_cast<long long>(wrong.read()[0]), 1ll << 32, required);
}

__global__ void widen(uint32_t* out) {
  const int n = ptx::ctaid() * static_cast<int>(blockDim.x) + ptx::tid();
  out[n] = __float_as_uint(ptx::cvt_f32_f16(static_cast<uint16_t>(n)));
}
void check_widen() {
  Array<uint32_t> out(1 << 16);
  bench::launch(widen, {.blocks = 256, .threads = 256}, out.get());
  const auto read = out.read();
  long long wrong = 0, other_nan = 0;
  for (uint32_t h = 0; h < 1 << 16; ++h) {
    const uint32_t expected = float_of_f16(h);
    wrong += is_nan(expected) ? !is_nan(read[h]) : read[h] != expected;
    other_nan += is_nan(expected) && read[h] != expected;
  }
  report("cvt_f32_f16", wrong, 1 << 16);
  report("cvt_f32_f16 makes the canonical NaN", other_nan, 2046, false);
}

// ---- global memory -------------------------------------------------------------------

__host__ __device__ constexpr uint32_t mixed(uint32_t v) {
  v = (v ^ v >> 16) * 0x7feb352du;
  v = (v ^ v >> 15) * 0x846ca68bu;
  return v ^ v >> 16;
}

// As the kernels do: step t of every block needs what all blocks published in step t - 1.
// rows [steps][blocks * 2 * threads] granules' words, filled with ones before.
__global__ void __launch_bounds__(128, 1) exchange(uint32_t* rows, int steps, Counter* wrong) {
  const int threads = static_cast<int>(blockDim.x), words = ptx::nctaid() * 2 * threads;
  const int own = (ptx::ctaid() * threads + ptx::tid()) * 2;
  uint32_t sum = 0;
  for (int t = 0; t < steps; ++t) {
    uint32_t* row = rows + static_cast<std::size_t>(t) * static_cast<std::size_t>(words);
    ptx::prefetch_global_l2(row + own);
    if (t > 0) {
      sum = 0;
      for (int n = 4 * ptx::tid(); n < words; n += 4 * threads) {
        bench::Wait wait;
        ptx::Word4 v = ptx::ld_relaxed_gpu_v2_b64(row - words + n);
        for (;;) {
          const bool x = v.x != ~0u, y = v.y != ~0u, z = v.z != ~0u, w = v.w != ~0u;
          if (x != y || z != w) atomicAdd(wrong, 1);  // a granule is there as a whole or not at all
          if (x && y && z && w) break;
          wait.turn();
          v = ptx::ld_relaxed_gpu_v2_b64(row - words + n);
        }
        sum += v.x + v.y + v.z + v.w;
      }
      for (int mask = 16; mask > 0; mask /= 2) sum += ptx::shfl_bfly(sum, mask);
      uint32_t* sums = reinterpret_cast<uint32_t*>(ptx::shared());
      if (ptx::tid() % 32 == 0) sums[ptx::tid() / 32] = sum;
      ptx::bar_sync();
      sum = 0;
      for (int warp = 0; warp < threads / 32; ++warp) sum += sums[warp];
      ptx::bar_sync();
    }
    // Never all ones: the top bit is not set.
    const auto value = [&](int word) {
      return mixed(sum + static_cast<uint32_t>(word)) & 0x7fffffffu;
    };
    ptx::st_relaxed_gpu_b64(row + own, {value(own), value(own + 1)});
  }
}
void check_exchange() {
  constexpr int kThreads = 128, kSteps = 2000;
  for (const int blocks : {2, bench::sms() / 2, bench::sms()}) {
    const int words = blocks * 2 * kThreads;
    Array<uint32_t> rows(static_cast<std::size_t>(kSteps) * words);
    Array<Counter> torn(1);
    rows.fill(0xff);
    torn.fill(0);
    bench::launch(exchange,
                  {.blocks = blocks, .threads = kThreads, .shared_bytes = 64, .cooperative = true},
                  rows.get(), kSteps, torn.get());
    const auto read = rows.read();
    long long wrong = static_cast<long long>(torn.read()[0]);
    uint32_t sum = 0;
    for (int t = 0; t < kSteps; ++t) {
      uint32_t next = 0;
      for (int w = 0; w < words; ++w) {
        const uint32_t value = read[static_cast<std::size_t>(t) * words + w];
        wrong += value != (mixed(sum + static_cast<uint32_t>(w)) & 0x7fffffffu);
        next += value;
      }
      sum = next;
    }
    const std::string name =
        "ld_relaxed_gpu_v2_b64, st_relaxed_gpu_b64 among " + std::to_string(blocks) + " blocks";
    report(name.c_str(), wrong, 1ll * kSteps * words);
  }
}

// Block 0 writes over and over; the others never see half of a write.
__global__ void tear(uint32_t* at, int rounds, Counter* wrong) {
  if (ptx::ctaid() == 0) {
    for (int n = 0; n < rounds; ++n) {
      const auto v = static_cast<uint32_t>(n);
      ptx::st_relaxed_gpu_b64(at + 2 * (ptx::tid() % 2), {v, mixed(v)});
    }
    return;
  }
  for (int n = 0; n < rounds / 8; ++n) {
    const ptx::Word4 v = ptx::ld_relaxed_gpu_v2_b64(at);
    if (v.y != mixed(v.x) || v.w != mixed(v.z)) atomicAdd(wrong, 1);
  }
}
void check_tear() {
  Array<uint32_t> at(std::vector<uint32_t>{0, mixed(0), 0, mixed(0)});
  Array<Counter> wrong(1);
  wrong.fill(0);
  const int blocks = std::min(bench::sms(), 64), rounds = 200000;
  bench::launch(tear, {.blocks = blocks, .threads = 32}, at.get(), rounds, wrong.get());
  report("st_relaxed_gpu_b64 is one access", static_cast<long long>(wrong.read()[0]),
         1ll * (blocks - 1) * 32 * (rounds / 8));
}

// A prefetch changes nothing, of written memory or of memory past the end of an array.
__global__ void prefetch(uint32_t* values, int size) {
  for (int n = ptx::tid(); n < size; n += 32) ptx::prefetch_global_l2(values + n);
}
void check_prefetch() {
  constexpr int kSize = 1 << 16;
  std::vector<uint32_t> values(kSize);
  for (int n = 0; n < kSize; ++n) values[n] = mixed(static_cast<uint32_t>(n));
  Array<uint32_t> array(values);
  bench::launch(prefetch, {}, array.get(), kSize);
  const auto read = array.read();
  long long wrong = 0;
  for (int n = 0; n < kSize; ++n) wrong += read[n] != values[n];
  report("prefetch_global_l2", wrong, kSize);
}

// ---- the watchdog --------------------------------------------------------------------

// Block 3 waits for what never comes.
__global__ void wait_for_ever(prnn::Watchdog watchdog) {
  prnn::Wait wait;
  while (ptx::ctaid() == 3) wait.turn(watchdog, prnn::Exchange::kCluster, bench::WaitJob{1, 8}, 42);
}
// In a process of its own, for the device context is lost: exits with 0 if the kernel failed in
// time, and what it left behind can be read and is right.
int give_up() {
  prnn::WaitReport* report = nullptr;
  CHECK(cudaHostAlloc(&report, sizeof *report, cudaHostAllocMapped));
  *report = {};
  prnn::Watchdog watchdog{prnn::timer_ticks(0.5), nullptr};
  CHECK(cudaHostGetDevicePointer(&watchdog.report, report, 0));
  const auto began = std::chrono::steady_clock::now();
  wait_for_ever<<<8, 64>>>(watchdog);
  const cudaError_t error = cudaDeviceSynchronize();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - began;
  const volatile prnn::WaitReport& r = *report;
  const bool says = r.state == prnn::WaitReport::kWritten && r.block == 3 && r.group == 1 &&
                    r.first_row == 8 && r.step == 42 &&
                    r.exchange == static_cast<int>(prnn::Exchange::kCluster);
  return !(error != cudaSuccess && says && passed.count() > 0.4 && passed.count() < 5.0);
}
void check_watchdog(const char* program) {
  const std::string again = std::string("'") + program + "' --watchdog";
  report("a wait of half a second is given up, and says where", std::system(again.c_str()) != 0, 1);
}

// ---- clusters ------------------------------------------------------------------------

// Every block of a cluster sends 8 bytes of each thread to all blocks, phase after phase, between
// two buffers, as the kernels do. out [blocks][phases]: the sum that a block read in a phase.
__global__ void __launch_bounds__(64, 1) send(int size, int phases, uint32_t* out, Counter* wrong) {
#if __CUDA_ARCH__ >= 900
  constexpr int kThreads = 64;
  char* shared = ptx::shared();
  auto* barriers = reinterpret_cast<ptx::MBarrier*>(shared);
  const uint32_t buffer_bytes = static_cast<uint32_t>(size) * kThreads * 8;
  const auto buffer = [&](int n) { return shared + 128 + n % 2 * static_cast<int>(buffer_bytes); };
  const int me = ptx::tid(), rank = ptx::cluster_ctarank();
  if (rank != ptx::ctaid() % size) atomicAdd(wrong, 1);
  if (ptx::cvta_shared(shared + 16) - ptx::cvta_shared(shared) != 16) atomicAdd(wrong, 1);
  if (me == 0) {
    ptx::mbarrier_init(barriers, 1);
    ptx::mbarrier_init(barriers + 1, 1);
    ptx::fence_mbarrier_init();
  }
  ptx::bar_sync();
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
  uint32_t sum = static_cast<uint32_t>(ptx::ctaid() / size);
  if (me == 0) ptx::mbarrier_arrive_expect_tx(barriers, buffer_bytes);
  for (int n = 0; n < phases; ++n) {
    const int slot = (rank * kThreads + me) * 8;
    const uint32_t word = static_cast<uint32_t>(rank * kThreads + me) * 2;
    ptx::bar_warp_sync();
    for (int to = 0; to < size; ++to)
      ptx::st_async_v2_b32(ptx::mapa(buffer(n) + slot, to),
                           {mixed(sum + word), mixed(sum + word + 1)},
                           ptx::mapa(barriers + n % 2, to));
    bench::Wait wait;
    while (!ptx::mbarrier_try_wait_parity(barriers + n % 2, static_cast<uint32_t>(n / 2 % 2)))
      wait.turn();
    if (me == 0) ptx::mbarrier_arrive_expect_tx(barriers + (n + 1) % 2, buffer_bytes);
    sum = 0;
    for (int k = 0; k < size * kThreads; ++k) {
      const auto* v = reinterpret_cast<const ptx::Word2*>(buffer(n) + 8 * k);
      sum += v->x + v->y;
    }
    if (me == 0) out[ptx::ctaid() * phases + n] = sum;
    ptx::bar_sync();
  }
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
#endif
}

// Without the last 8 of its bytes a phase is not complete; with them it is.
__global__ void incomplete(Counter* wrong) {
#if __CUDA_ARCH__ >= 900
  auto* barrier = reinterpret_cast<ptx::MBarrier*>(ptx::shared());
  char* to = ptx::shared() + 128;
  if (ptx::tid() == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
  }
  ptx::bar_sync();
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
  const int other = 1 - ptx::cluster_ctarank();
  if (ptx::tid() == 0) {
    ptx::mbarrier_arrive_expect_tx(barrier, 16);
    ptx::st_async_v2_b32(ptx::mapa(to, other), {1, 2}, ptx::mapa(barrier, other));
    for (int n = 0; n < 20; ++n)  // each may wait for a while
      if (ptx::mbarrier_try_wait_parity(barrier, 0)) atomicAdd(wrong, 1);
  }
  ptx::bar_sync();
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
  if (ptx::tid() == 0) {
    ptx::st_async_v2_b32(ptx::mapa(to + 8, other), {3, 4}, ptx::mapa(barrier, other));
    bench::Wait wait;
    while (!ptx::mbarrier_try_wait_parity(barrier, 0)) wait.turn();
    const auto* v = reinterpret_cast<const uint32_t*>(to);
    for (uint32_t n = 0; n < 4; ++n)
      if (v[n] != n + 1) atomicAdd(wrong, 1);
    // The phase after is not complete.
    if (ptx::mbarrier_try_wait_parity(barrier, 1)) atomicAdd(wrong, 1);
  }
  ptx::bar_sync();
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
#endif
}

// The barrier orders what other blocks wrote to global memory.
__global__ void cluster_barrier(int size, int rounds, int* at, Counter* wrong) {
#if __CUDA_ARCH__ >= 900
  const int rank = ptx::cluster_ctarank(), first = ptx::ctaid() - rank;
  for (int n = 0; n < rounds; ++n) {
    at[ptx::ctaid() * 32 + ptx::tid()] = n;
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
    const int other = first + (rank + 1) % size;
    if (at[other * 32 + (ptx::tid() + n) % 32] != n) atomicAdd(wrong, 1);
    ptx::bar_sync();
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
  }
#endif
}

void check_clusters() {
  if (bench::compute_capability() < 90) return;
  constexpr int kPhases = 500, kThreads = 64, kRounds = 1000;
  Array<Counter> wrong(1);
  for (const int size : {2, 4, 8, 16}) {
    const std::string suffix = ", clusters of " + std::to_string(size);
    const Launch how{.blocks = size * 3,
                     .threads = kThreads,
                     .shared_bytes = 128 + 2 * 16 * kThreads * 8,
                     .cluster = size};
    if (bench::resident_clusters(send, how) < 1) {
      report(("any" + suffix).c_str(), 1, 1, size <= 8);
      continue;
    }
    Array<uint32_t> out(static_cast<std::size_t>(how.blocks) * kPhases);
    wrong.fill(0);
    bench::launch(send, how, size, kPhases, out.get(), wrong.get());
    const auto read = out.read();
    long long bad = static_cast<long long>(wrong.read()[0]);
    for (int block = 0; block < how.blocks; ++block) {
      uint32_t sum = static_cast<uint32_t>(block / size);
      for (int n = 0; n < kPhases; ++n) {
        uint32_t next = 0;
        for (uint32_t w = 0; w < static_cast<uint32_t>(size) * kThreads * 2; ++w)
          next += mixed(sum + w);
        sum = next;
        bad += read[static_cast<std::size_t>(block) * kPhases + n] != sum;
      }
    }
    report(("st_async_v2_b32, mapa, mbarrier_*" + suffix).c_str(), bad, 1ll * how.blocks * kPhases);

    Array<int> at(static_cast<std::size_t>(how.blocks) * 32);
    wrong.fill(0);
    bench::launch(cluster_barrier, {.blocks = how.blocks, .cluster = size}, size, kRounds, at.get(),
                  wrong.get());
    report(("barrier_cluster_arrive, _wait" + suffix).c_str(),
           static_cast<long long>(wrong.read()[0]), 1ll * how.blocks * 32 * kRounds);
  }
  wrong.fill(0);
  bench::launch(incomplete, {.blocks = 2, .shared_bytes = 256, .cluster = 2}, wrong.get());
  report("mbarrier_arrive_expect_tx counts bytes", static_cast<long long>(wrong.read()[0]), 2);
}

// ---- without a GPU -------------------------------------------------------------------

#ifdef PRNN_EMULATOR_MATRIX
template <Kind kKind>
void compare_products(const char* name) {
  namespace emulator = prnn::emulator;
  constexpr auto kind = static_cast<emulator::MatrixKind>(kKind);  // in the same order
  long long wrong = 0, of = 0;
  for (const auto& m : random_matrices<kKind>()) {
    emulator::Fragments lanes[32];
    emulator::Products out[32];
    for (int lane = 0; lane < 32; ++lane) {
      const Fragment f = m.fragment(lane);
      lanes[lane] = {{f.a.x, f.a.y, f.a.z, f.a.w}, {f.b0, f.b1}};
    }
    emulator::multiply(kind, lanes, out);
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i, ++of)
        wrong += !same(out[lane].d[i] + m.fragment(lane).d[i], m.expected(lane, i));
  }
  report(name, wrong, of);
}
#endif

int compare_with_emulator() {
#ifdef PRNN_HAS_EMULATOR
  namespace emulator = prnn::emulator;
  long long bf16 = 0, f16 = 0, tf32 = 0, widened = 0, of = 0;
  // A step that is coprime to 2^32, and all numbers near halves of what is cut off.
  const auto compare = [&](uint32_t f) {
    const float v = std::bit_cast<float>(f);
    bf16 += bf16_of(f) != emulator::bf16_of(v);
    f16 += f16_of(f) != emulator::f16_of(v);
    tf32 += tf32_of(f) != emulator::tf32_of(v);
    ++of;
  };
  for (uint64_t n = 0; n < 1ull << 32; n += 4099) compare(static_cast<uint32_t>(n));
  for (uint32_t high = 0; high < 1 << 16; ++high)
    for (const uint32_t low : {0u, 0xfffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u, 0x7fffu, 0x8000u})
      compare(high << 16 | low);
  for (uint32_t h = 0; h < 1 << 16; ++h)
    widened += float_of_f16(h) !=
               std::bit_cast<uint32_t>(emulator::float_of_f16(static_cast<uint16_t>(h)));
  report("bf16 as in the emulator", bf16, of);
  report("f16 as in the emulator", f16, of);
  report("tf32 as in the emulator", tf32, of);
  report("float of f16 as in the emulator", widened, 1 << 16);
#endif
#ifdef PRNN_EMULATOR_MATRIX  // linked with tests/emulator/matrix.cc
  compare_products<Kind::kBf16>("bf16 products as in the emulator");
  compare_products<Kind::kF16>("f16 products as in the emulator");
  compare_products<Kind::kTf32>("tf32 products as in the emulator");
#endif
  return failures != 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string option = argc > 1 ? argv[1] : "";
  if (option == "--host") return compare_with_emulator();
  if (!bench::has_gpu()) {
    bench::row("part", "conformance", "error", "no GPU");
    return bench::kNoGpu;
  }
  bench::watch(60);
  if (option == "--watchdog") return give_up();
  check_who_am_i();
  check_barrier<false>("bar_sync, shared");
  check_barrier<true>("bar_warp_sync");
  check_shuffle();
  check_vote();
  check_product<Kind::kBf16>("mma_m16n8k16_bf16");
  check_product<Kind::kF16>("mma_m16n8k16_f16");
  check_product<Kind::kTf32>("mma_m16n8k8_tf32");
  note_products();
  check_conversion<Conversion::kBf16Low>("cvt_rn_bf16x2 low");
  check_conversion<Conversion::kBf16High>("cvt_rn_bf16x2 high");
  check_conversion<Conversion::kF16Low>("cvt_rn_f16x2 low");
  check_conversion<Conversion::kF16High>("cvt_rn_f16x2 high");
  check_conversion<Conversion::kTf32>("cvt_rna_tf32");
  check_conversion<Conversion::kTf32Nan>("cvt_rna_tf32 makes the canonical NaN", false);
  check_widen();
  check_exchange();
  check_tear();
  check_prefetch();
  check_clusters();
  check_watchdog(argv[0]);  // last: it starts a second process
  return failures != 0;
}
