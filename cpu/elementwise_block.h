// The steps of some elements of an elementwise recurrence.
#pragma once
#include "cpu/elementwise.h"
#include "cpu/io.h"
#include "cpu/pack.h"
#include "cpu/vector_math.h"

namespace prnn::PRNN_ISA {

// a y + b; of an a of 0, b alone: a y that is infinite or no number does not pass a reset.
struct OfReals {
  PRNN_HD static Simd next(Simd a, Simd y, Simd b) {
    return select(a == Simd(0.0f), b, Simd{multiply_add(a.v, y.v, b.v)});
  }
};
struct OfComplex {
  PRNN_HD static Simd next(Simd a, Simd y, Simd b) {
    const Simd real = both(a, [](int n) { return n & ~1; });
    const Simd imaginary = both(a, [](int n) { return n | 1; });
    const Simd turned = both(y, [](int n) { return n ^ 1; });
    IntVector signs;
    for (int n = 0; n < kWidth; ++n) signs[n] = n % 2 == 0 ? INT32_MIN : 0;
    const Simd i_times_y = from_bits(bits(turned) ^ signs);
    const FloatVector sum = multiply_add(imaginary.v, i_times_y.v, b.v);
    const Mask is_zero{(real == Simd(0.0f)).v & (imaginary == Simd(0.0f)).v};
    return select(is_zero, b, Simd{multiply_add(real.v, y.v, sum)});
  }

 private:
  template <class From>
  PRNN_HD static Simd both(Simd parts, From from) {
    return shuffle(parts.v, parts.v, from);
  }
};

// All steps of elements [first, end) of a row.
template <class T, class Numbers, class F>
void recur(const ElementwiseRecurrence& p, std::int64_t row, std::int64_t first, std::int64_t end,
           const F& f) {
  alignas(64) float state[kMostElements + kWidth];
  const auto* const a = (const T*)p.a + row * p.width * (p.is_constant ? 1 : p.steps);
  const auto* const b = (const T*)p.b + row * p.steps * p.width;
  auto* const y = (T*)p.y + row * p.steps * p.width;
  const auto* const y_0 = (const T*)p.y_0 + row * p.width;
  const auto each = [&](auto&& visit) __attribute__((always_inline)) {
    for (std::int64_t n = first; n < end; n += kWidth) visit(n, Io<T>{(int)min(kWidth, end - n)});
  };
  const Io<float> whole{(int)kWidth};
  each([&](std::int64_t n, Io<T> io) { whole.store(state + (n - first), io.load(y_0 + n)); });
  const T* before = nullptr;  // a of the step before
  for (std::int64_t s = 0; s < p.steps; ++s) {
    const std::int64_t at = (p.reverse ? p.steps - 1 - s : s) * p.width;
    const T* const here = p.is_constant ? a : a + at;
    const T* const factors = p.is_shifted ? before : here;
    before = here;
    each([&](std::int64_t n, Io<T> io) __attribute__((always_inline)) {
      Simd v = whole.load(state + (n - first));
      const Simd added = io.load(b + at + n);
      v = factors == nullptr ? v + added : Numbers::next(io.load(factors + n), v, added);
      v = f(v);
      whole.store(state + (n - first), v);
      io.store(y + at + n, v);
    });
  }
}

inline void recur_elements(const ElementwiseRecurrence& p, std::int64_t row, std::int64_t first,
                           std::int64_t end) {
  const auto linear = [](Simd v) __attribute__((always_inline)) { return v; };
  if (p.is_complex) return recur<float, OfComplex>(p, row, first, end, linear);
  visit(p.dtype, [&](auto value) {
    using T = decltype(value);
    if (p.is_linear)
      recur<T, OfReals>(p, row, first, end, linear);
    else
      recur<T, OfReals>(p, row, first, end, p.f);
  });
}

}  // namespace prnn::PRNN_ISA
