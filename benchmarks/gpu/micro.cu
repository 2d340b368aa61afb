// What do the operations cost that a step is made of? The constants of the planner's model
// (cuda/devices.h), measured, each beside what the model has for it.
//
//   micro [what...]      one row of JSON for each measurement; all where none is named
//   micro --list
//
// Build: nvcc -std=c++20 -O2 -I<repository> -gencode=arch=compute_90a,code=sm_90a
#include <cooperative_groups.h>

#include <cstdint>
#include <map>

#include "benchmarks/gpu/report.h"
#include "benchmarks/gpu/wait.cuh"
#include "cuda/ptx.h"

namespace ptx = prnn::ptx;
using bench::Array;
using bench::Launch;
using std::uint32_t;
using std::uint64_t;

namespace {

constexpr int kThreads = 256;         // as the kernels have
constexpr int kWholeSm = 120 * 1024;  // of shared memory: one block to an SM
using Clocks = long long;

// A measurement and what was expected of it. `constant` is its name in ModelConstants or Device;
// "" where it has none.
struct Expected {
  double value, low, high;
};
template <class... Fields>
void report(const char* what, const char* constant, double value, const char* unit, Expected e,
            const Fields&... fields) {
  const char* verdict = value < e.low ? "lower" : value > e.high ? "higher" : "as predicted";
  bench::row("part", "micro", "what", what, "constant", constant, "value", value, "unit", unit,
             "predicted", e.value, "verdict", verdict, fields...);
}

__device__ uint64_t nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// A time of an exchange that went wrong means nothing.
long long wrong_in_all = 0;
long long counted(long long wrong) {
  wrong_in_all += wrong;
  return wrong;
}

// Median over blocks of what each wrote.
double median(const Array<Clocks>& clocks) {
  auto all = clocks.read();
  std::sort(all.begin(), all.end());
  return static_cast<double>(all[all.size() / 2]);
}

// ---- the device ----------------------------------------------------------------------

__global__ void clock_rate(uint64_t ns, Clocks* clocks, uint64_t* passed) {
  const uint64_t begin = nanoseconds();
  const Clocks first = clock64();
  uint64_t now = begin;
  while (now - begin < ns) now = nanoseconds();
  *clocks = clock64() - first;
  *passed = now - begin;
}
double clock_ghz() {
  static const double rate = [] {
    Array<Clocks> clocks(1);
    Array<uint64_t> passed(1);
    for (int n = 0; n < 3; ++n)  // the clock rises with work
      bench::launch(clock_rate, {.threads = 1}, 30'000'000ull, clocks.get(), passed.get());
    return static_cast<double>(clocks.read()[0]) / static_cast<double>(passed.read()[0]);
  }();
  return rate;
}

__global__ void __launch_bounds__(kThreads, 1) nothing(int) {}

void device() {
  cudaDeviceProp p;
  CHECK(cudaGetDeviceProperties(&p, 0));
  int driver = 0, runtime = 0;
  CHECK(cudaDriverGetVersion(&driver));
  CHECK(cudaRuntimeGetVersion(&runtime));
  bench::row("part", "micro", "what", "device", "name", p.name, "compute_capability",
             bench::compute_capability(), "sms", p.multiProcessorCount, "shared_bytes",
             p.sharedMemPerBlockOptin, "l2_bytes", p.l2CacheSize, "cooperative",
             bench::attribute(cudaDevAttrCooperativeLaunch) != 0, "driver", driver, "runtime",
             runtime);
  report("clock", "clock_ghz", clock_ghz(), "GHz", {1.9, 1.6, 2.1});
  // A block that fills an SM, in clusters of each size.
  const std::map<int, Expected> expected = {
      {2, {66, 66, 66}}, {4, {33, 30, 33}}, {8, {15, 14, 16}}, {16, {7, 6, 8}}};
  if (bench::compute_capability() < 90) return;
  for (const auto& [size, e] : expected) {
    const Launch how{
        .blocks = size, .threads = kThreads, .shared_bytes = 200 * 1024, .cluster = size};
    report("resident clusters", "clusters", bench::resident_clusters(nothing, how), "clusters", e,
           "size", size);
  }
}

// ---- one SM --------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads, 1) barriers(int count, Clocks* clocks) {
  const Clocks first = clock64();
  for (int n = 0; n < count; ++n) ptx::bar_sync();
  if (ptx::tid() == 0) *clocks = clock64() - first;
}
void block() {
  constexpr int kCount = 10000;
  Array<Clocks> clocks(1);
  for (int n = 0; n < 2; ++n) bench::launch(barriers, {.threads = kThreads}, kCount, clocks.get());
  report("__syncthreads", "block_exchange", median(clocks) / kCount, "cycles", {60, 15, 80});
}

enum class Kind { kBf16, kTf32 };

// kChains independent sums in every warp.
template <Kind kKind, int kChains>
__global__ void __launch_bounds__(kThreads, 1) products(int count, Clocks* clocks, float* out) {
  uint32_t random = static_cast<uint32_t>(ptx::tid()) * 2654435761u + 1;
  const auto next = [&] {  // numbers of size 1/2 to 1
    random = random * 1664525u + 1013904223u;
    return kKind == Kind::kBf16 ? (random & 0x807f807fu) | 0x3f003f00u
                                : (random & 0x807fe000u) | 0x3f000000u;
  };
  const ptx::Word4 a{next(), next(), next(), next()};
  uint32_t b[kChains][2];
  float d[kChains][4] = {};
  for (auto& pair : b) pair[0] = next(), pair[1] = next();
  ptx::bar_sync();
  const Clocks first = clock64();
  for (int n = 0; n < count; ++n)
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      if constexpr (kKind == Kind::kBf16) ptx::mma_m16n8k16_bf16(d[c], a, b[c][0], b[c][1]);
      if constexpr (kKind == Kind::kTf32) ptx::mma_m16n8k8_tf32(d[c], a, b[c][0], b[c][1]);
    }
  float sum = 0;
  for (const auto& part : d) sum += part[0] + part[1] + part[2] + part[3];
  out[ptx::ctaid() * kThreads + ptx::tid()] = sum;  // so that all have ended
  ptx::bar_sync();
  if (ptx::tid() == 0) clocks[ptx::ctaid()] = clock64() - first;
}
template <Kind kKind, int kChains>
double cycles_per_product(int warps) {
  constexpr int kCount = 20000 / kChains;
  const int blocks = bench::sms();
  Array<Clocks> clocks(static_cast<std::size_t>(blocks));
  Array<float> out(static_cast<std::size_t>(blocks) * kThreads);
  for (int n = 0; n < 2; ++n)
    bench::launch(products<kKind, kChains>, {.blocks = blocks, .threads = 32 * warps}, kCount,
                  clocks.get(), out.get());
  return median(clocks) / (1.0 * kCount * kChains);
}
void matrix() {
  const double bf16 = cycles_per_product<Kind::kBf16, 4>(8) / 8;  // of an SM
  report("mma.m16n8k16 bf16", "fma_per_clock", 16 * 8 * 16 / bf16, "FMA/cycle/SM",
         {1024, 950, 1280}, "cycles_per_sub_core", 4 * bf16);
  const double tf32 = cycles_per_product<Kind::kTf32, 4>(8) / 8;
  report("mma.m16n8k8 tf32", "", 16 * 8 * 8 / tf32, "FMA/cycle/SM", {512, 480, 640},
         "cycles_per_sub_core", 4 * tf32);
  report("mma.m16n8k16 bf16, one after the other", "", cycles_per_product<Kind::kBf16, 1>(1),
         "cycles", {32, 16, 40});
  report("mma.m16n8k8 tf32, one after the other", "", cycles_per_product<Kind::kTf32, 1>(1),
         "cycles", {32, 14, 40});
}

__global__ void __launch_bounds__(kThreads, 1)
    read_shared(int count, Clocks* clocks, uint32_t* out) {
  const auto from =
      static_cast<uint32_t>(__cvta_generic_to_shared(ptx::shared() + 16 * ptx::tid()));
  uint32_t sum = 0;
  ptx::bar_sync();
  const Clocks first = clock64();
  for (int n = 0; n < count; ++n)
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      uint32_t x, y, z, w;
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
                   : "r"(from + static_cast<uint32_t>(k * kThreads * 16)));
      sum += x ^ y ^ z ^ w;
    }
  out[ptx::tid()] = sum;
  ptx::bar_sync();
  if (ptx::tid() == 0) *clocks = clock64() - first;
}
__global__ void __launch_bounds__(kThreads, 1) convert(int count, Clocks* clocks, uint32_t* out) {
  uint32_t v[8];
  for (int k = 0; k < 8; ++k) v[k] = 0x3f800000u + static_cast<uint32_t>(ptx::tid() + k);
  ptx::bar_sync();
  const Clocks first = clock64();
  for (int n = 0; n < count; ++n)
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = ptx::cvt_rna_tf32(__uint_as_float(v[k] + 1));
  uint32_t sum = 0;
  for (const uint32_t part : v) sum += part;
  out[ptx::tid()] = sum;
  ptx::bar_sync();
  if (ptx::tid() == 0) *clocks = clock64() - first;
}
void units() {
  constexpr int kCount = 2000;
  Array<Clocks> clocks(1);
  Array<uint32_t> out(kThreads);
  const Launch how{.threads = kThreads, .shared_bytes = 8 * kThreads * 16};
  for (int n = 0; n < 2; ++n) bench::launch(read_shared, how, kCount, clocks.get(), out.get());
  report("ld.shared of 16 bytes", "shared_bytes", 8.0 * kCount * kThreads * 16 / median(clocks),
         "bytes/cycle", {128, 110, 130});
  for (int n = 0; n < 2; ++n) bench::launch(convert, how, kCount, clocks.get(), out.get());
  report("cvt.rna.tf32", "conversions", 8.0 * kCount * kThreads / median(clocks), "per cycle",
         {64, 12, 68});
}

// ---- L2 and memory -------------------------------------------------------------------

__global__ void chase(const uint32_t* next, int count, Clocks* clocks, uint32_t* out) {
  uint32_t at = 0;
  for (int n = 0; n < 1024; ++n)
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(at) : "l"(next + at) : "memory");
  const Clocks first = clock64();
  for (int n = 0; n < count; ++n)
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(at) : "l"(next + at) : "memory");
  *clocks = clock64() - first;
  *out = at;
}
void latency() {
  constexpr uint32_t kLines = 1024, kWords = 32, kStep = 389;  // coprime: every line in turn
  std::vector<uint32_t> next(kLines * kWords);
  for (uint32_t n = 0; n < kLines; ++n) next[n * kWords] = (n + kStep) % kLines * kWords;
  Array<uint32_t> array(next), out(1);
  Array<Clocks> clocks(1);
  constexpr int kCount = 8192;
  for (int n = 0; n < 2; ++n)
    bench::launch(chase, {.threads = 1}, array.get(), kCount, clocks.get(), out.get());
  report("load from L2", "l2_latency", median(clocks) / kCount, "cycles", {290, 230, 330});
}

// Every block reads the same bytes, again and again, past its L1; a multiple of 64 per thread.
__global__ void __launch_bounds__(512, 1)
    broadcast(const char* from, int bytes, int rounds, Clocks* clocks, uint32_t* out) {
  const int stride = static_cast<int>(blockDim.x) * 16;
  uint32_t sum = 0;
  const Clocks first = clock64();
  for (int n = 0; n < rounds; ++n)
    for (int at = ptx::tid() * 16; at < bytes; at += 4 * stride) {
      ptx::Word4 v[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) v[k] = ptx::ld_relaxed_gpu_v2_b64(from + at + k * stride);
#pragma unroll
      for (int k = 0; k < 4; ++k) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
  out[ptx::ctaid() * static_cast<int>(blockDim.x) + ptx::tid()] = sum;
  ptx::bar_sync();
  if (ptx::tid() == 0) clocks[ptx::ctaid()] = clock64() - first;
}
void bandwidth() {
  const int all = bench::sms();
  Array<Clocks> clocks(static_cast<std::size_t>(all));
  Array<uint32_t> out(static_cast<std::size_t>(all) * 512);
  constexpr int kTotal = 32 << 20;
  Array<char> values(1 << 17);
  values.fill(7);
  for (const int threads : {256, 512}) {
    const int bytes = 32 << 10;
    Array<Clocks> one(1);
    for (int n = 0; n < 2; ++n)
      bench::launch(broadcast, {.threads = threads, .shared_bytes = kWholeSm}, values.get(), bytes,
                    kTotal / bytes, one.get(), out.get());
    report("L2 to one SM", "l2_port_bytes", kTotal / median(one), "bytes/cycle", {64, 40, 70},
           "threads", threads);
  }
  for (const int bytes : {4 << 10, 32 << 10, 128 << 10})
    for (const int threads : {256, 512}) {
      if (bytes < 64 * threads) continue;
      const double us = bench::time_us([&] {
        bench::launch(broadcast, {.blocks = all, .threads = threads, .shared_bytes = kWholeSm},
                      values.get(), bytes, kTotal / bytes, clocks.get(), out.get());
      });
      report("L2 to all SMs", "l2_bytes_per_s", 1e6 * all * double{kTotal} / us, "bytes/s",
             {5.5e12, 4.4e12, 7e12}, "bytes", bytes, "threads", threads);
    }
  const std::size_t size = 2ull << 30;
  Array<char> source(size), target(size);
  source.fill(1);
  const double us = bench::time_us(
      [&] { CHECK(cudaMemcpyAsync(target.get(), source.get(), size, cudaMemcpyDeviceToDevice)); });
  report("memory, copied", "dram_bytes_per_s", 2e6 * static_cast<double>(size) / us, "bytes/s",
         {4.3e12, 4.0e12, 4.8e12});
}

// ---- between blocks ------------------------------------------------------------------

// A grid's exchange: row after row of `words` words, of which each block publishes a part and every
// block needs all, filled with ones before. Each thread sums what it reads; sums[step] of block 0.
template <bool kPrefetch>
__global__ void __launch_bounds__(kThreads, 1)
    hand_off(uint32_t* rows, int words, int steps, Clocks* clocks, uint32_t* sums) {
  const int own = words / ptx::nctaid(), first = ptx::ctaid() * own, me = ptx::tid();
  Clocks begin = 0;
  uint32_t total = 0;
  for (int t = 0; t < steps; ++t, rows += words) {
    uint32_t sum = 0;
    if (t > 0)
      for (int n = 4 * me; n < words; n += 4 * kThreads) {
        bench::Wait wait;
        ptx::Word4 v = ptx::ld_relaxed_gpu_v2_b64(rows - words + n);
        while ((v.x & v.y) == ~0u || (v.z & v.w) == ~0u) {
          wait.turn();
          v = ptx::ld_relaxed_gpu_v2_b64(rows - words + n);
        }
        sum += v.x + v.y + v.z + v.w;
      }
    ptx::bar_sync();
    if (t == 8) begin = clock64();
    if (kPrefetch && t + 3 < steps)
      for (int n = 32 * me; n < own; n += 32 * kThreads)
        ptx::prefetch_global_l2(rows + 3 * words + first + n);
    for (int n = 2 * me; n < own; n += 2 * kThreads) {
      const auto value = static_cast<uint32_t>(t * 31 + first + n) & 0x7fffffffu;
      ptx::st_relaxed_gpu_b64(rows + first + n, {value, value + 1});
    }
    total += sum;
  }
  if (me == 0) clocks[ptx::ctaid()] = clock64() - begin;
  if (ptx::ctaid() == 0) sums[me] = total;
}
long long wrong_sums(const std::vector<uint32_t>& sums, int words, int blocks, int steps) {
  long long wrong = 0;
  for (int thread = 0; thread < kThreads; ++thread) {
    uint32_t expected = 0;
    const int own = words / blocks;
    for (int t = 0; t + 1 < steps; ++t)
      for (int n = 4 * thread; n < words; n += 4 * kThreads)
        for (int k = 0; k < 4; ++k) {
          const int pair = (n + k) % own / 2 * 2, first = (n + k) / own * own;
          expected += (static_cast<uint32_t>(t * 31 + first + pair) & 0x7fffffffu) +
                      static_cast<uint32_t>((n + k) % 2);
        }
    wrong += sums[static_cast<std::size_t>(thread)] != expected;
  }
  return wrong;
}
template <bool kPrefetch>
void grid_exchange(int blocks, int bytes) {
  constexpr int kSteps = 2048;
  const int words = bytes / 4;
  Array<uint32_t> rows(static_cast<std::size_t>(words) * kSteps), sums(kThreads);
  Array<Clocks> clocks(static_cast<std::size_t>(blocks));
  std::vector<double> cycles;
  for (int n = 0; n < 7; ++n) {
    rows.fill(0xff);
    bench::launch(
        hand_off<kPrefetch>,
        {.blocks = blocks, .threads = kThreads, .shared_bytes = kWholeSm, .cooperative = true},
        rows.get(), words, kSteps, clocks.get(), sums.get());
    cycles.push_back(median(clocks) / (kSteps - 8));
  }
  std::sort(cycles.begin(), cycles.end());
  const bool latency = bytes <= 2048;  // more, and it is bandwidth
  const double us = cycles[3] / clock_ghz() * 1e-3;
  // Without the barrier, which the model counts apart.
  report("grid exchange", latency && blocks >= 16 ? "grid_exchange" : "", cycles[3], "cycles",
         latency ? Expected{760, 500, 1150} : Expected{1000, 700, 2500}, "us", us, "blocks", blocks,
         "bytes", bytes, "prefetch", kPrefetch, "wrong",
         counted(wrong_sums(sums.read(), words, blocks, kSteps)));
}
void grid() {
  for (const int blocks : {2, 16, 64, 128})
    if (blocks <= bench::sms()) {
      grid_exchange<false>(blocks, 2048);
      grid_exchange<true>(blocks, 2048);
      grid_exchange<true>(blocks, 8192);
      grid_exchange<true>(blocks, 32768);
    }
}

__global__ void __launch_bounds__(kThreads, 1) grid_sync(int count) {
  const auto all = cooperative_groups::this_grid();
  for (int n = 0; n < count; ++n) all.sync();
}
void sync_grid() {
  constexpr int kCount = 2000;
  for (const int blocks : {16, 64, bench::sms()}) {
    const Launch how{
        .blocks = blocks, .threads = kThreads, .shared_bytes = kWholeSm, .cooperative = true};
    const double us = bench::time_us([&] { bench::launch(grid_sync, how, kCount); }) / kCount;
    report("grid.sync", "", us, "us", {1.1, 0.9, 1.3}, "blocks", blocks);
  }
}

// A cluster's exchange: as hand_off(), through shared memory of all blocks and mbarriers.
__global__ void __launch_bounds__(kThreads, 1)
    cluster_hand_off(int size, int bytes, int steps, Clocks* clocks, uint32_t* sums) {
#if __CUDA_ARCH__ >= 900
  const int own = bytes / size, me = ptx::tid(), rank = ptx::cluster_ctarank();
  auto* barriers = reinterpret_cast<ptx::MBarrier*>(ptx::shared());
  char* buffers = ptx::shared() + 128;
  if (me == 0) {
    ptx::mbarrier_init(barriers, 1);
    ptx::mbarrier_init(barriers + 1, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(barriers, static_cast<uint32_t>(bytes));
  }
  ptx::bar_sync();
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
  Clocks begin = 0;
  uint32_t total = 0;
  for (int t = 0; t < steps; ++t) {
    char* buffer = buffers + t % 2 * bytes;
    // Granules times destinations, spread over the threads.
    for (int n = me; n < own / 8 * size; n += kThreads) {
      const int to = n % size, at = rank * own + n / size * 8;
      const auto value = static_cast<uint32_t>(t * 31 + at / 4);
      ptx::st_async_v2_b32(ptx::mapa(buffer + at, to), {value, value + 1},
                           ptx::mapa(barriers + t % 2, to));
    }
    bench::Wait wait;
    while (!ptx::mbarrier_try_wait_parity(barriers + t % 2, static_cast<uint32_t>(t / 2 % 2)))
      wait.turn();
    if (me == 0 && t + 1 < steps)
      ptx::mbarrier_arrive_expect_tx(barriers + (t + 1) % 2, static_cast<uint32_t>(bytes));
    for (int at = 16 * me; at < bytes; at += 16 * kThreads) {
      const auto* v = reinterpret_cast<const ptx::Word4*>(buffer + at);
      total += v->x + v->y + v->z + v->w;
    }
    ptx::bar_sync();
    if (t == 8) begin = clock64();
  }
  if (me == 0) clocks[ptx::ctaid()] = clock64() - begin;
  sums[ptx::ctaid() * kThreads + me] = total;
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
#endif
}
void cluster() {
  if (bench::compute_capability() < 90) return;
  constexpr int kSteps = 4096;
  for (const int size : {2, 4, 8, 16}) {
    double last = 0;
    for (const int bytes : {512, 2048, 8192, 32768}) {
      Launch how{.blocks = size, .threads = kThreads, .shared_bytes = kWholeSm, .cluster = size};
      const int resident = bench::resident_clusters(cluster_hand_off, how);
      if (resident < 1) break;
      how.blocks = size * resident;
      Array<Clocks> clocks(static_cast<std::size_t>(how.blocks));
      Array<uint32_t> sums(static_cast<std::size_t>(how.blocks) * kThreads);
      for (int n = 0; n < 3; ++n)
        bench::launch(cluster_hand_off, how, size, bytes, kSteps, clocks.get(), sums.get());
      const double cycles = median(clocks) / (kSteps - 9);
      long long wrong = 0;
      const auto read = sums.read();
      for (std::size_t n = 0; n < read.size(); ++n) {
        uint32_t expected = 0;
        for (int t = 0; t < kSteps; ++t)
          for (int at = 16 * static_cast<int>(n % kThreads); at < bytes; at += 16 * kThreads)
            for (int k = 0; k < 4; ++k) expected += static_cast<uint32_t>(t * 31 + at / 4 + k);
        wrong += read[n] != expected;
      }
      const bool latency = bytes == 512;
      report("cluster exchange", latency ? "cluster_exchange" : "", cycles, "cycles",
             latency ? Expected{350, 230, 480} : Expected{350, 230, 4000}, "us",
             cycles / clock_ghz() * 1e-3, "size", size, "clusters", resident, "bytes", bytes,
             "wrong", counted(wrong));
      if (bytes == 32768)
        report("cluster exchange, more bytes", "cluster_bytes", (32768 - 8192) / (cycles - last),
               "bytes/cycle", {16, 8, 32}, "size", size);
      last = cycles;
    }
  }
}

// ---- launches ------------------------------------------------------------------------

void launches() {
  constexpr int kCount = 200;
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  Array<char> filled(1 << 20);
  struct Case {
    const char* what;
    bool cooperative, fill;
    Expected us;
  };
  const Case cases[] = {{"launch", false, false, {2.5, 1.0, 3.5}},
                        {"launch, cooperative", true, false, {2.5, 1.0, 5.0}},
                        {"fill and launch, cooperative", true, true, {5.0, 2.0, 8.0}}};
  for (const Case& c : cases) {
    const Launch how{.blocks = bench::sms(),
                     .threads = kThreads,
                     .shared_bytes = kWholeSm,
                     .cooperative = c.cooperative,
                     .stream = stream};
    bench::allow(nothing, how);
    const auto run = [&] {
      for (int n = 0; n < kCount; ++n) {
        if (c.fill) filled.fill(0xff, stream);
        CHECK(cudaLaunchKernelEx(bench::Config(how).get(), nothing, 0));
      }
    };
    const auto time = [&](const auto& once) {
      std::vector<double> us;
      for (int n = 0; n < 15; ++n) {
        CHECK(cudaStreamSynchronize(stream));
        const auto begin = std::chrono::steady_clock::now();
        once();
        CHECK(cudaStreamSynchronize(stream));
        const std::chrono::duration<double, std::micro> passed =
            std::chrono::steady_clock::now() - begin;
        us.push_back(passed.count() / kCount);
      }
      std::sort(us.begin(), us.end());
      return us[us.size() / 2];
    };
    report(c.what, c.cooperative || c.fill ? "" : "launch_us", time(run), "us", c.us);

    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    run();
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    const auto replay = [&] { CHECK(cudaGraphLaunch(executable, stream)); };
    report((std::string(c.what) + ", in a graph").c_str(), "", time(replay), "us", {1.3, 0.8, 3.0});
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
  }
  CHECK(cudaStreamDestroy(stream));
}

}  // namespace

int main(int argc, char** argv) {
  // What settles most comes first.
  const std::vector<std::pair<std::string, void (*)()>> all = {
      {"device", device},       {"grid", grid},        {"cluster", cluster}, {"matrix", matrix},
      {"bandwidth", bandwidth}, {"latency", latency},  {"block", block},     {"units", units},
      {"sync", sync_grid},      {"launches", launches}};
  const std::vector<std::string> wanted(argv + 1, argv + argc);
  for (const std::string& name : wanted) {
    const bool known =
        std::any_of(all.begin(), all.end(), [&](auto& m) { return m.first == name; });
    if (!known && name != "--list") {
      std::fprintf(stderr, "micro: no measurement is named %s\n", name.c_str());
      return 2;
    }
  }
  if (wanted == std::vector<std::string>{"--list"}) {
    for (const auto& m : all) std::printf("%s\n", m.first.c_str());
    return 0;
  }
  if (!bench::has_gpu()) {
    bench::row("part", "micro", "error", "no GPU");
    return bench::kNoGpu;
  }
  bench::watch(120);
  for (const auto& [name, measure] : all)
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end()) {
      measure();
      CHECK(cudaDeviceSynchronize());
    }
  return wrong_in_all != 0;
}
