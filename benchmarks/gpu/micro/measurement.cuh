// What all measurements share: how one is told, the clock, a kernel that does nothing.
#pragma once
#include <cstdint>

#include "benchmarks/gpu/report.h"
#include "cuda/ptx.h"

namespace micro {

namespace ptx = prnn::ptx;
using bench::Array;
using bench::Launch;
using std::uint32_t;
using std::uint64_t;

inline constexpr int kThreads = 256;         // as the kernels have
inline constexpr int kWholeSm = 120 * 1024;  // of shared memory: one block to an SM
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

__device__ inline uint64_t nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// A time of an exchange that went wrong means nothing.
inline long long wrong_in_all = 0;
inline long long counted(long long wrong) {
  wrong_in_all += wrong;
  return wrong;
}

// Median over blocks of what each wrote.
inline double median(const Array<Clocks>& clocks) {
  auto all = clocks.read();
  std::sort(all.begin(), all.end());
  return static_cast<double>(all[all.size() / 2]);
}

__global__ void clock_rate(uint64_t ns, Clocks* clocks, uint64_t* passed) {
  const uint64_t begin = nanoseconds();
  const Clocks first = clock64();
  uint64_t now = begin;
  while (now - begin < ns) now = nanoseconds();
  *clocks = clock64() - first;
  *passed = now - begin;
}
inline double clock_ghz() {
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

}  // namespace micro
