// exp, sigmoid, log(sigmoid) and tanh of a SIMD vector. Largest errors over all floats, in units in
// the last place (tests/test_vector_math.py measures them): sigmoid 3, tanh 3. NaN gives NaN.
#pragma once
#include "cpu/simd.h"

namespace prnn::PRNN_ISA {

// Below it e^x leaves the range of normal floats, and is 0 here; above its opposite e^x leaves it
// on the other side.
inline constexpr float kLowest = -87.3f;

// e^(kFactor x) = 2^n e^r with n whole and |r| <= ln(2) / 2: the two factors, the second less one.
// Where kFactor is -2, no x is negative. Where it is 1 or -1 and x is below kLowest, they are of no
// use.
struct ExpParts {
  Simd scale, expm1_r;
};
template <int kFactor = 1>
PRNN_HD ExpParts exp_parts(Simd x) {
  static_assert(kFactor == 1 || kFactor == -1 || kFactor == -2);
  constexpr float kMost = kFactor == -2 ? -kLowest / 2 : -kLowest;
  x = min(Simd(kMost), x);  // NaN passes
  // 1.5·2^23: adding it rounds to a whole number. And 127, so that the lowest bits of the sum are
  // those of the exponent of 2^n.
  constexpr float kRound = 12582912.0f + 127.0f;
  const Simd shifted = x * (kFactor * 1.44269504f) + kRound;
  const Simd n = shifted + -kRound, scale = from_bits(bits(shifted) << 23);
  // ln 2 in two parts, the first with trailing zeros, so that n·ln 2 is exact enough.
  const Simd scaled = kFactor == 1 ? x : kFactor == -1 ? -x : x * float(kFactor);
  const Simd r = (scaled + n * -0.693359375f) + n * 2.12194440e-4f;
  // Least relative error over all r, 1.6e-8, if the first coefficient is 1.
  const Simd q = r * r;  // in three parts side by side: less to wait for than term by term
  const Simd low = r * 0.16666543f + 0.5f, middle = r * 0.008366611f + 0.04166628f;
  const Simd p = ((q * 0.0013946497f + middle) * q + low) * q + r;
  return {scale, p};
}

PRNN_HD Simd exp(Simd x) {
  const ExpParts e = exp_parts(x);
  return select(x < Simd(kLowest), Simd(0.0f), e.scale * e.expm1_r + e.scale);
}

// min(a, 0) - log(1 + u) with u = e^-|a|, and that as 2 artanh(u / (2 + u)), whose argument is at
// most 1/3.
PRNN_HD Simd log_sigmoid(Simd a) {
  const Simd below = select(a > Simd(0.0f), Simd(0.0f), a);
  const Simd u = exp(select(a > Simd(0.0f), -a, a));
  const Simd s = u / (u + 2.0f), q = s * s;
  Simd p = q * (1.0f / 17) + 1.0f / 15;
  p = p * q + Simd(1.0f / 13);
  p = p * q + Simd(1.0f / 11);
  p = p * q + Simd(1.0f / 9);
  p = p * q + Simd(1.0f / 7);
  p = p * q + Simd(1.0f / 5);
  p = p * q + Simd(1.0f / 3);
  return below - (p * q * s + s) * 2.0f;
}

PRNN_HD Simd sigmoid(Simd a) {
  const ExpParts e = exp_parts<-1>(a);
  const Simd s = Simd(1.0f) / (e.scale * e.expm1_r + (e.scale + 1.0f));
  return select(a < Simd(kLowest), Simd(0.0f), s);
}

// tanh|a| = -m / (2 + m) with m = e^(-2|a|) - 1, which loses no digits for small a.
PRNN_HD Simd tanh(Simd a) {
  const IntVector sign = bits(a) & INT32_MIN;
  const Simd magnitude = from_bits(bits(a) ^ sign);
  const ExpParts e = exp_parts<-2>(magnitude);
  const Simd m = e.scale * e.expm1_r + (e.scale + -1.0f);
  return from_bits(bits((0.0f - m) / (m + 2.0f)) | sign);
}

}  // namespace prnn::PRNN_ISA
