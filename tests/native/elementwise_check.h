// Elementwise recurrences (cpu/elementwise.h) in buffers of exactly the right size, against a loop
// in double precision, and by any number of threads.
#pragma once
#include <cmath>
#include <complex>
#include <cstdio>
#include <cstdlib>

#include "cpu/elementwise.h"
#include "native/engine_data.h"

inline double elementwise_error(const prnn::ElementwiseRecurrence& p, const Floats& a,
                                const Floats& b, const Floats& y_0, const Floats& y) {
  using Number = std::complex<double>;
  const auto number = [&](const Floats& array, std::int64_t at) -> Number {
    return {array[at], p.is_complex ? array[at + 1] : 0.0f};
  };
  double worst = 0;
  for (std::int64_t row = 0; row < p.rows; ++row)
    for (std::int64_t n = 0; n < p.width; n += p.is_complex ? 2 : 1) {
      Number state = number(y_0, row * p.width + n), factor = 1;
      for (std::int64_t s = 0; s < p.steps; ++s) {
        const std::int64_t t = p.reverse ? p.steps - 1 - s : s;
        const std::int64_t at = (row * p.steps + t) * p.width + n;
        const Number here = number(a, p.is_constant ? row * p.width + n : at);
        state = (p.is_shifted ? factor : here) * state + number(b, at);
        if (!p.is_linear) state = std::tanh(state.real());
        factor = here;
        worst = std::fmax(worst, std::abs(state - number(y, at)));
      }
    }
  return worst;
}

inline void check_elementwise() {
  const std::int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 17}, {2, 9, 64}, {1, 3, 2100}, {0, 2, 3}};
  for (const auto& [rows, steps, width] : sizes)
    for (int options = 0; options < 32; ++options) {
      prnn::ElementwiseRecurrence p{};
      p.is_complex = options & 16;
      if (p.is_complex && !(options & 8)) continue;  // they are linear
      p.dtype = Dtype::kFloat32;
      p.rows = rows;
      p.steps = steps;
      p.width = width * (p.is_complex ? 2 : 1);
      p.reverse = options & 1;
      p.is_constant = options & 2;
      p.is_shifted = options & 4;
      p.is_linear = options & 8;
      p.f = prnn::kTanh;
      // Within the unit circle.
      const Floats a =
          wave(p.elements() * (p.is_constant ? 1 : steps), 0.7f, p.is_complex ? 0.6f : 0.9f);
      const Floats b = wave(p.elements() * steps, 0.3f, 1), y_0 = wave(p.elements(), 1.1f, 1);
      Floats alone(p.elements() * steps, NAN), shared = alone;
      p.a = a.data();
      p.b = b.data();
      p.y_0 = y_0.data();
      for (int threads : {1, 3}) {
        p.y = threads == 1 ? alone.data() : shared.data();
        Threads pool(threads);
        prnn::run(prnn::best_isa(), p, pool);
      }
      // A few roundings of values below 10.
      const bool is_right = elementwise_error(p, a, b, y_0, alone) < 1e-5;
      if (!is_right || alone != shared) {
        std::printf("FAILED: an elementwise recurrence of %ld, %ld, %ld, options %d\n",
                    static_cast<long>(rows), static_cast<long>(steps), static_cast<long>(width),
                    options);
        std::exit(1);
      }
    }
}
