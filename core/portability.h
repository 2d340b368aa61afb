// What the cells need of a platform: a function qualifier and values in registers.
#pragma once

#ifdef __CUDACC__
#define PRNN_HD __host__ __device__ __forceinline__
#define PRNN_DEVICE __device__ __forceinline__  // for what calls PTX, which no host has
#else
// Always inlined, so that a file compiled for AVX-512 never lends a shared out-of-line copy of
// such a function to one compiled for an older processor. Programs of tests/, in which there is one
// of each, may have -DPRNN_HD=inline: some compile in a quarter of the time.
#ifndef PRNN_HD
#define PRNN_HD inline __attribute__((always_inline))
#endif
#define PRNN_DEVICE PRNN_HD
#endif

namespace prnn {

// N values of type F (a float, or a SIMD vector of floats) that live in registers.
template <int N, class F = float>
struct Vec {
  F v[N];
  PRNN_HD F& operator[](int n) { return v[n]; }
  PRNN_HD const F& operator[](int n) const { return v[n]; }
  PRNN_HD static constexpr int size() { return N; }
};

template <class F>
struct Vec<0, F> {};

}  // namespace prnn
