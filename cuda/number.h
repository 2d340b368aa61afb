// The number formats of the kernels: how values are stored, exchanged and multiplied.
#pragma once
#include "cuda/ptx.h"
#include "cuda/tile.h"

namespace prnn {

struct Bfloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

PRNN_DEVICE float float_of(std::uint32_t bits) {
  float v;
  __builtin_memcpy(&v, &bits, sizeof v);
  return v;
}
PRNN_DEVICE std::uint32_t bits_of(float v) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &v, sizeof bits);
  return bits;
}

PRNN_DEVICE float to_float(float v) { return v; }
PRNN_DEVICE float to_float(Bfloat16 v) { return float_of(std::uint32_t{v.bits} << 16); }
PRNN_DEVICE float to_float(Float16 v) { return ptx::cvt_f32_f16(v.bits); }

// A word that nothing published contains: unwritten memory is filled with it. As a number it is a
// NaN, but no conversion makes this one, and a float that is NaN is published as another.
inline constexpr std::uint32_t kUnwritten = 0xffffffffu;
inline constexpr std::uint32_t kNan = 0x7fffffffu;

// For each format:
//   Value          as it is stored
//   from_float     rounds to nearest even
//   granule        the 8 bytes published for adjacent units, in each of their lanes
//   resident       a weight as it is kept on chip
//   multiply       d += a b over one half of a k block (a: 16 rows, b: 8 columns)
template <Number>
struct Format;

// The 16-bit formats differ in two instructions, which F has.
template <class F, class V>
struct HalfFormat {
  using Value = V;

  PRNN_DEVICE static Value from_float(float v) {
    return {static_cast<std::uint16_t>(F::pack(v, 0.0f))};
  }
  // Four units lie in four adjacent lanes.
  PRNN_DEVICE static ptx::Word2 granule(float v, int lane) {
    const float beside = float_of(ptx::shfl_bfly(bits_of(v), 1));
    const std::uint32_t pair = lane & 1 ? F::pack(beside, v) : F::pack(v, beside);
    const std::uint32_t other = ptx::shfl_bfly(pair, 2);
    return lane & 2 ? ptx::Word2{other, pair} : ptx::Word2{pair, other};
  }
  PRNN_DEVICE static Value resident(Value weight) { return weight; }
};
template <>
struct Format<Number::kBfloat16> : HalfFormat<Format<Number::kBfloat16>, Bfloat16> {
  PRNN_DEVICE static std::uint32_t pack(float low, float high) {
    return ptx::cvt_rn_bf16x2(low, high);
  }
  PRNN_DEVICE static void multiply(float (&d)[4], const ptx::Word4& a, std::uint32_t b0,
                                   std::uint32_t b1) {
    ptx::mma_m16n8k16_bf16(d, a, b0, b1);
  }
};
template <>
struct Format<Number::kFloat16> : HalfFormat<Format<Number::kFloat16>, Float16> {
  PRNN_DEVICE static std::uint32_t pack(float low, float high) {
    return ptx::cvt_rn_f16x2(low, high);
  }
  PRNN_DEVICE static void multiply(float (&d)[4], const ptx::Word4& a, std::uint32_t b0,
                                   std::uint32_t b1) {
    ptx::mma_m16n8k16_f16(d, a, b0, b1);
  }
};

struct FloatFormat {
  using Value = float;

  PRNN_DEVICE static Value from_float(float v) { return v; }
  // Two units lie in two adjacent lanes.
  PRNN_DEVICE static ptx::Word2 granule(float v, int lane) {
    const std::uint32_t own = v == v ? bits_of(v) : kNan;
    const std::uint32_t other = ptx::shfl_bfly(own, 1);
    return lane & 1 ? ptx::Word2{other, own} : ptx::Word2{own, other};
  }
};

// float in memory, TF32 (11 significant bits) in products.
template <>
struct Format<Number::kTf32> : FloatFormat {
  PRNN_DEVICE static float resident(float weight) {
    // Of a NaN, only high bits are kept: of some, none.
    return float_of(weight == weight ? ptx::cvt_rna_tf32(weight) : kNan);
  }
  PRNN_DEVICE static void multiply(float (&d)[4], const ptx::Word4& a, std::uint32_t b0,
                                   std::uint32_t b1) {
    ptx::mma_m16n8k8_tf32(d, a, ptx::cvt_rna_tf32(float_of(b0)), ptx::cvt_rna_tf32(float_of(b1)));
  }
};

// float in products too, each as the sum of two TF32 numbers: three products of four, the smallest
// ones first. The fourth is below float's rounding error. Matrix units cut sums off where a float
// is rounded, so they add no more than one k block of eight (Ootomo and Yokota 2022).
template <>
struct Format<Number::kFloat32> : FloatFormat {
  PRNN_DEVICE static float resident(float weight) { return weight; }

  struct Split {
    std::uint32_t high, low;
  };
  PRNN_DEVICE static Split split(std::uint32_t word) {
    const std::uint32_t high = ptx::cvt_rna_tf32(float_of(word));
    return {high, ptx::cvt_rna_tf32(float_of(word) - float_of(high))};
  }
  PRNN_DEVICE static void multiply(float (&d)[4], const ptx::Word4& a, std::uint32_t b0,
                                   std::uint32_t b1) {
    const Split x = split(a.x), y = split(a.y), z = split(a.z), w = split(a.w);
    const Split p = split(b0), q = split(b1);
    const ptx::Word4 high{x.high, y.high, z.high, w.high}, low{x.low, y.low, z.low, w.low};
    float sum[4] = {};
    ptx::mma_m16n8k8_tf32(sum, low, p.high, q.high);
    ptx::mma_m16n8k8_tf32(sum, high, p.low, q.low);
    ptx::mma_m16n8k8_tf32(sum, high, p.high, q.high);
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] += sum[i];
  }
};

// How the passes read and write memory: one unit at a time (core/passes.h).
template <Number kNumber>
struct UnitIo {
  using F = float;
  using Value = typename Format<kNumber>::Value;
  using Fetched = Value;  // a conversion would wait for it

  PRNN_DEVICE Value fetch(const Value* p) const { return *p; }
  // Here and not where it is used: its place is that of the next step's.
  PRNN_DEVICE float value(Value fetched) const { return ptx::opaque(to_float(fetched)); }
  // Of the call's format, or plain floats.
  template <class V>
  PRNN_DEVICE float load(const V* p) const {
    return to_float(*p);
  }
  PRNN_DEVICE void store(Value* p, float v) const { *p = Format<kNumber>::from_float(v); }
  template <class V>
  PRNN_DEVICE void store(V* p, float v) const {
    *p = v;
  }
  PRNN_DEVICE float stored(float v) const { return to_float(Format<kNumber>::from_float(v)); }
};

}  // namespace prnn
