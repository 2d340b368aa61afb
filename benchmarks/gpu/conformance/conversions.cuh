// Conversions, all of them.
#pragma once
#include "benchmarks/gpu/conformance/definitions.cuh"

namespace conformance {

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
    if (is_nan(f)) expected = is_nan(is) == is_nan(expected) && is != 0xffffffffu ? is : ~is;
  }
  if constexpr (kConversion == Conversion::kTf32Nan)
    is = is_nan(f) ? ptx::cvt_rna_tf32(v) : tf32_of(f), expected = tf32_of(f);
  if (is != expected) atomicAdd(wrong, 1);
}
template <Conversion kConversion>
inline void check_conversion(const char* name, bool required = true) {
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
inline void check_widen() {
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

}  // namespace conformance
