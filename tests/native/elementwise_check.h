// Elementwise recurrences (cpu/elementwise.h) in buffers of exactly the right size, against a loop
// in double precision, and by any number of threads.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "cpu/elementwise.h"
#include "native/engine_data.h"

inline double elementwise_error(const prnn::ElementwiseRecurrence& p, const Floats& a,
                                const Floats& b, const Floats& y_0, const Floats& y) {
  double worst = 0;
  for (std::int64_t row = 0; row < p.rows; ++row)
    for (std::int64_t n = 0; n < p.width; ++n) {
      double state = y_0[row * p.width + n], factor = 1;
      for (std::int64_t s = 0; s < p.steps; ++s) {
        const std::int64_t t = p.reverse ? p.steps - 1 - s : s;
        const std::int64_t at = (row * p.steps + t) * p.width + n;
        const double here = p.is_constant ? a[row * p.width + n] : a[at];
        state = (p.is_shifted ? factor : here) * state + b[at];
        if (!p.is_linear) state = std::tanh(state);
        factor = here;
        worst = std::fmax(worst, std::fabs(state - y[at]));
      }
    }
  return worst;
}

inline void check_elementwise() {
  const std::int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 17}, {2, 9, 64}, {1, 3, 2100}, {0, 2, 3}};
  for (const auto& [rows, steps, width] : sizes)
    for (int options = 0; options < 16; ++options) {
      prnn::ElementwiseRecurrence p{};
      p.dtype = Dtype::kFloat32;
      p.rows = rows;
      p.steps = steps;
      p.width = width;
      p.reverse = options & 1;
      p.is_constant = options & 2;
      p.is_shifted = options & 4;
      p.is_linear = options & 8;
      p.f = prnn::kTanh;
      const Floats a = wave(rows * width * (p.is_constant ? 1 : steps), 0.7f, 0.9f);
      const Floats b = wave(rows * steps * width, 0.3f, 1), y_0 = wave(rows * width, 1.1f, 1);
      Floats alone(rows * steps * width, NAN), shared = alone;
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
