// What the operations are defined to give, in integers, so that nothing of what is to be tested is
// used; and how a check is told.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#include "benchmarks/gpu/report.h"
#include "benchmarks/gpu/wait.cuh"
#include "cuda/ptx.h"

namespace conformance {

namespace ptx = prnn::ptx;
using bench::Array;
using bench::Launch;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using Counter = unsigned long long;

inline int failures = 0;

// `required`: the kernels rely on it. Otherwise it is only good to know.
inline void report(const char* check, long long wrong, long long of, bool required = true) {
  bench::row("part", "conformance", "check", check, "ok", wrong == 0, "wrong", wrong, "of", of,
             "required", required);
  failures += required && wrong != 0;
}

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
// Ties away from zero. What an H100 leaves of a NaN: infinity, where only low bits told them apart.
HD uint32_t tf32_of(uint32_t f) { return (is_nan(f) ? f : f + 0x1000u) & ~0x1fffu; }

#undef HD

// Numbers that look like chance.
__host__ __device__ constexpr uint32_t mixed(uint32_t v) {
  v = (v ^ v >> 16) * 0x7feb352du;
  v = (v ^ v >> 15) * 0x846ca68bu;
  return v ^ v >> 16;
}

}  // namespace conformance
