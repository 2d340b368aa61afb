// A vector of floats as wide as the instruction set this file is compiled for. Written with the
// compilers' vector extension: the same source gives AVX-512, AVX2, SSE2 and NEON.
//
// Every name lives in a namespace called after the instruction set (PRNN_ISA, set by the build),
// so that code compiled for one processor is never linked into a path that runs on another.
#pragma once
#include <cstdint>
#include <utility>

#include "core/portability.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace prnn::PRNN_ISA {

#if defined(__AVX512F__)
inline constexpr int kWidth = 16, kRegisters = 32;
#elif defined(__AVX2__)
inline constexpr int kWidth = 8, kRegisters = 16;
#elif defined(__aarch64__)
inline constexpr int kWidth = 4, kRegisters = 32;
#else
inline constexpr int kWidth = 4, kRegisters = 16;
#endif

typedef float FloatVector __attribute__((vector_size(4 * kWidth)));
typedef std::int32_t IntVector __attribute__((vector_size(4 * kWidth)));

// The same, in a register: GCC takes a vector that several instructions use from memory again in
// each of them, where loads are what a product of two or three rows waits for.
template <class V>
PRNN_HD V in_register(V v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#elif defined(__x86_64__)
  asm("" : "+x"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#endif
  return v;
}

// a b + c, rounded once where the processor can, whatever the compiler makes of the code around it:
// left to itself, it does so in most places that the same source is expanded in, but not in all.
PRNN_HD FloatVector multiply_add(FloatVector a, FloatVector b, FloatVector c) {
#if defined(__AVX512F__)
  return (FloatVector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (FloatVector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (FloatVector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

struct Mask {
  IntVector v;  // per lane: all ones or zero
};

struct Simd {
  FloatVector v;
  PRNN_HD Simd() = default;
  PRNN_HD Simd(FloatVector v) : v(v) {}
  PRNN_HD explicit Simd(float x) : v(x - FloatVector{}) {}

  PRNN_HD friend Simd operator+(Simd a, Simd b) { return a.v + b.v; }
  PRNN_HD friend Simd operator-(Simd a, Simd b) { return a.v - b.v; }
  PRNN_HD friend Simd operator*(Simd a, Simd b) { return a.v * b.v; }
  PRNN_HD friend Simd operator/(Simd a, Simd b) { return a.v / b.v; }
  PRNN_HD friend Simd operator+(Simd a, float b) { return a.v + b; }
  PRNN_HD friend Simd operator*(Simd a, float b) { return a.v * b; }
  PRNN_HD friend Simd operator-(float a, Simd b) { return a - b.v; }
  PRNN_HD friend Simd operator-(Simd a) { return -a.v; }
  PRNN_HD friend Mask operator<(Simd a, Simd b) { return {a.v < b.v}; }
  PRNN_HD friend Mask operator>(Simd a, Simd b) { return {a.v > b.v}; }
  PRNN_HD friend Mask operator<=(Simd a, Simd b) { return {a.v <= b.v}; }
  PRNN_HD friend Mask operator>=(Simd a, Simd b) { return {a.v >= b.v}; }
  PRNN_HD friend Mask operator==(Simd a, Simd b) { return {a.v == b.v}; }
};

// Of all lanes, one after the other.
PRNN_HD float total(Simd a) {
  float sum = 0.0f;
  for (int n = 0; n < kWidth; ++n) sum += a.v[n];
  return sum;
}

PRNN_HD Simd select(Mask m, Simd yes, Simd no) { return m.v ? yes.v : no.v; }

// The larger, and the smaller. b where one is NaN. (GCC 12 warns of _mm512_max_ps itself.)
PRNN_HD Simd max(Simd a, Simd b) {
#if defined(__AVX512F__)
  return (FloatVector)_mm512_maskz_max_ps(0xffff, a.v, b.v);
#elif defined(__AVX2__)
  return (FloatVector)_mm256_max_ps(a.v, b.v);
#else
  return select(a > b, a, b);
#endif
}
PRNN_HD Simd min(Simd a, Simd b) {
#if defined(__AVX512F__)
  return (FloatVector)_mm512_maskz_min_ps(0xffff, a.v, b.v);
#elif defined(__AVX2__)
  return (FloatVector)_mm256_min_ps(a.v, b.v);
#else
  return select(a < b, a, b);
#endif
}

// Lane i of the result is lane `from(i)` of a and b, one after the other. `From` captures nothing.
template <class Vector, class From, int... kLane>
PRNN_HD Vector shuffle(Vector a, Vector b, From, std::integer_sequence<int, kLane...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, From{}(kLane)...);
#else
  return __builtin_shuffle(a, b, IntVector{From{}(kLane)...});
#endif
}
template <class Vector, class From>
PRNN_HD Vector shuffle(Vector a, Vector b, From from) {
  return shuffle(a, b, from, std::make_integer_sequence<int, kWidth>{});
}

PRNN_HD IntVector bits(Simd a) { return (IntVector)a.v; }
PRNN_HD Simd from_bits(IntVector i) { return (FloatVector)i; }

}  // namespace prnn::PRNN_ISA
