// How the passes read and write memory: `lanes` units at a time, kWidth of them except at the end
// of a row. Lanes past the end read as zero and are not written.
#pragma once
#include <type_traits>

#include "cpu/half.h"

namespace prnn::PRNN_ISA {

#if defined(__AVX512F__)
PRNN_HD FloatVector load_some(const float* p, int lanes) {
  return (FloatVector)_mm512_maskz_loadu_ps((__mmask16)((1u << lanes) - 1), p);
}
PRNN_HD HalfVector load_some(const std::uint16_t* p, int lanes) {
  return (HalfVector)_mm256_maskz_loadu_epi16((__mmask16)((1u << lanes) - 1), p);
}
PRNN_HD void store_some(float* p, int lanes, FloatVector v) {
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << lanes) - 1), (__m512)v);
}
PRNN_HD void store_some(std::uint16_t* p, int lanes, HalfVector v) {
  _mm256_mask_storeu_epi16(p, (__mmask16)((1u << lanes) - 1), (__m256i)v);
}
#else
template <class T>
PRNN_HD auto load_some(const T* p, int lanes) {
  typedef T Vector __attribute__((vector_size(sizeof(T) * kWidth)));
  Vector v{};
  for (int n = 0; n < kWidth; ++n)
    if (n < lanes) v[n] = p[n];
  return v;
}
template <class T, class Vector>
PRNN_HD void store_some(T* p, int lanes, Vector v) {
  for (int n = 0; n < kWidth; ++n)
    if (n < lanes) p[n] = v[n];
}
#if defined(__AVX2__)
PRNN_HD FloatVector load_some(const float* p, int lanes) {
  const IntVector lane = {0, 1, 2, 3, 4, 5, 6, 7};
  return (FloatVector)_mm256_maskload_ps(p, (__m256i)(lane < lanes));
}
#endif
#endif

// T: the type of the call's arrays. Plain floats can be read and written, too.
template <class T>
struct Io {
  using F = Simd;
  using Fetched = Simd;
  static constexpr bool kProjectsInput = true;  // core/arrays.h
  static constexpr int kUnits = kWidth;         // at most, at a time
  int lanes;

  // As it reads after a store and a load.
  PRNN_HD Simd stored(Simd a) const {
    if constexpr (std::is_same_v<T, float>)
      return a;
    else
      return widen<T>(narrow<T>(a));
  }
  PRNN_HD Simd load(const float* p) const {
    if (lanes < kWidth) return load_some(p, lanes);
    FloatVector v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  // Ahead of a step: loads are out of order as it is.
  template <class V>
  PRNN_HD Simd fetch(const V* p) const {
    return load(p);
  }
  PRNN_HD Simd value(Simd fetched) const { return fetched; }
  PRNN_HD void store(float* p, Simd a) const {
    if (lanes < kWidth) return store_some(p, lanes, a.v);
    __builtin_memcpy(p, &a.v, sizeof a.v);
  }
#if defined(__AVX512F__)
  // Past the caches: a line of memory as a whole, so that it need not be read first.
  PRNN_HD void store_non_temporal(float* p, Simd a) const { _mm512_stream_ps(p, (__m512)a.v); }
#endif
  template <class Half>
  PRNN_HD Simd load(const Half* p) const {
    HalfVector v;
    if (lanes < kWidth)
      v = load_some(&p->bits, lanes);
    else
      __builtin_memcpy(&v, p, sizeof v);
    return widen<Half>(v);
  }
  template <class Half>
  PRNN_HD void store(Half* p, Simd a) const {
    const HalfVector v = narrow<Half>(a);
    if (lanes < kWidth) return store_some(&p->bits, lanes, v);
    __builtin_memcpy(p, &v, sizeof v);
  }
};

}  // namespace prnn::PRNN_ISA
