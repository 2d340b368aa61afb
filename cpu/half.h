// bfloat16 and float16 to float and back, a vector at a time. Back rounds to nearest even. NaN
// stays NaN, and what is subnormal in the format is as exact as the rest, also where the processor
// has been told to take subnormal floats for zero.
#pragma once
#include "core/dtype.h"
#include "cpu/simd.h"

namespace prnn::PRNN_ISA {

typedef std::uint16_t HalfVector __attribute__((vector_size(2 * kWidth)));
typedef std::uint32_t UintVector __attribute__((vector_size(4 * kWidth)));

template <class T>
Simd widen(HalfVector);
template <class T>
HalfVector narrow(Simd);

template <>
PRNN_HD Simd widen<Bfloat16>(HalfVector v) {
  return (FloatVector)(__builtin_convertvector(v, UintVector) << 16);
}
template <>
PRNN_HD HalfVector narrow<Bfloat16>(Simd a) {
  const UintVector all = (UintVector)a.v;
  const UintVector rounded = all + (0x7fff + (all >> 16 & 1));
  const auto is_nan = a.v != a.v;
  return __builtin_convertvector((is_nan ? all | 0x400000 : rounded) >> 16, HalfVector);
}

#if defined(__AVX512F__)
// The forms with a mask: GCC warns of the others, whose old value it holds for uninitialized.
template <>
PRNN_HD Simd widen<Float16>(HalfVector v) {
  return (FloatVector)_mm512_maskz_cvtph_ps(0xffff, (__m256i)v);
}
template <>
PRNN_HD HalfVector narrow<Float16>(Simd a) {
  return (HalfVector)_mm512_maskz_cvtps_ph(0xffff, (__m512)a.v, _MM_FROUND_TO_NEAREST_INT);
}
#elif defined(__F16C__)
template <>
PRNN_HD Simd widen<Float16>(HalfVector v) {
  return (FloatVector)_mm256_cvtph_ps((__m128i)v);
}
template <>
PRNN_HD HalfVector narrow<Float16>(Simd a) {
  return (HalfVector)_mm256_cvtps_ph((__m256)a.v, _MM_FROUND_TO_NEAREST_INT);
}
#elif defined(__aarch64__)
template <>
PRNN_HD Simd widen<Float16>(HalfVector v) {
  return (FloatVector)vcvt_f32_f16((float16x4_t)v);
}
template <>
PRNN_HD HalfVector narrow<Float16>(Simd a) {
  return (HalfVector)vcvt_f16_f32((float32x4_t)a.v);
}
#else
// 5 bits of exponent with bias 15, 10 of fraction; float has 8 with bias 127, and 23.
template <>
PRNN_HD Simd widen<Float16>(HalfVector v) {
  const UintVector all = __builtin_convertvector(v, UintVector), magnitude = all & 0x7fff;
  const FloatVector subnormal =
      __builtin_convertvector((IntVector)magnitude, FloatVector) * 0x1p-24f;
  const UintVector normal = (magnitude << 13) + (112u << 23);
  const UintVector finite = magnitude < 0x400 ? (UintVector)subnormal : normal;
  const UintVector any = magnitude >= 0x7c00 ? magnitude << 13 | 0x7f800000 : finite;
  return (FloatVector)(any | (all & 0x8000) << 16);
}
template <>
PRNN_HD HalfVector narrow<Float16>(Simd a) {
  const UintVector all = (UintVector)a.v, magnitude = all & 0x7fffffff;
  // The distance of floats at 0.5 is that of subnormal halves: the addition rounds.
  const FloatVector shifted = (FloatVector)magnitude + 0.5f;
  const UintVector subnormal = (UintVector)shifted - 0x3f000000;
  const UintVector normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  const UintVector finite = magnitude < 0x38800000 ? subnormal : normal;
  const UintVector number = magnitude >= 0x477ff000 ? UintVector{} + 0x7c00 : finite;  // 65520
  const UintVector any = magnitude > 0x7f800000 ? UintVector{} + 0x7e00 : number;
  return __builtin_convertvector(any | (all >> 16 & 0x8000), HalfVector);
}
#endif

// One number.
PRNN_HD float to_float(float v) { return v; }
template <class T>
PRNN_HD float to_float(T v) {
  HalfVector all{};
  all[0] = v.bits;
  return widen<T>(all).v[0];
}

}  // namespace prnn::PRNN_ISA
