// A product outside the recurrence, a = x w + b, as the engine sees it: a pass of one step whose
// "units" are the columns of w and whose "batch" are the rows of x. XLA's own product costs about
// 60 µs more where it is small, which is as long as a short layer takes.
#pragma once
#include "cpu/problem.h"

namespace prnn {

template <class Io>
struct ProjectionPass {
  using F = typename Io::F;
  using Value = float;
  static constexpr int kPhases = 1;
  Shape shape;  // batch: rows of x; hidden: columns of w
  ProjectionArrays at;

  PRNN_HD static constexpr int products(int) { return 1; }
  PRNN_HD std::int64_t depth(int) const { return at.input_size; }
  PRNN_HD float weight(std::int64_t, int, std::int64_t column, int, std::int64_t k) const {
    return at.w[k * shape.hidden + column];
  }
  PRNN_HD WeightRows<float> weight_rows(std::int64_t, int) const { return {at.w, shape.hidden}; }
  PRNN_HD float bias(std::int64_t, int, std::int64_t column, int) const { return at.b[column]; }
  PRNN_HD std::int64_t steps() const { return 1; }
  PRNN_HD bool multiplies(std::int64_t, int, std::int64_t, std::int64_t) const { return true; }
  PRNN_HD void begin(std::int64_t, std::int64_t, std::int64_t, Io) const {}
  PRNN_HD const float* input(std::int64_t, int, std::int64_t, std::int64_t row) const {
    return at.x + row * at.input_size;
  }
  template <int kPhase>
  PRNN_HD void step(std::int64_t, std::int64_t, std::int64_t row, std::int64_t column,
                    const Vec<1, F>& product, Io io) const {
    io.store(at.a + row * shape.hidden + column, product[0]);
  }
};

}  // namespace prnn
