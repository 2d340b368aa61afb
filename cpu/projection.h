// The input projection, a = x w + b, as the engine sees it: a pass whose matrix is w, and whose
// step makes `steps` steps of the sequence a_x, in the order in which the recurrence takes them.
// Its units are the columns of w, of all gates, and its rows are those steps of all rows of the
// batch: row b · steps + n is the n-th of row b.
//
// Made so, a few steps before they are needed, a_x stays in the cache, and never is in memory.
#pragma once
#include <type_traits>

#include "cpu/problem.h"

namespace prnn {

template <class Io, class T>
struct ProjectionPass {
  using F = typename Io::F;
  using Value = T;
  static constexpr int kPhases = 1;
  static constexpr bool kPacksInTurn = true;  // where the blocking has places for it
  Shape shape;                                // of the sequence a_x
  ProjectionArrays<T> at;

  PRNN_HD static constexpr int products(int) { return 1; }
  PRNN_HD std::int64_t units(int) const { return shape.hidden; }
  PRNN_HD std::int64_t depth(int) const { return at.input_size; }
  PRNN_HD WeightRows<T> weight_rows(std::int64_t g, int) const {
    return {at.w + g * shape.hidden, shape.groups * shape.hidden};
  }
  PRNN_HD T bias(std::int64_t g, int, std::int64_t unit, int) const {
    return at.b[g * shape.hidden + unit];
  }
  PRNN_HD bool multiplies(std::int64_t g, int, std::int64_t s, std::int64_t row) const {
    return step_of(s, row) < shape.length(row / at.steps, g);
  }
  PRNN_HD bool has_controls(std::int64_t, std::int64_t, std::int64_t) const { return false; }
  PRNN_HD bool rows_are_alike(std::int64_t s) const {
    return shape.lengths == nullptr && (s + 1) * at.steps <= shape.time;
  }
  PRNN_HD void begin(std::int64_t, std::int64_t, std::int64_t, Io) const {}
  PRNN_HD const float* input(std::int64_t g, int, std::int64_t s, std::int64_t row) const {
    if constexpr (std::is_same_v<T, float>)
      return x_of(g, s, row);
    else
      return widened(g, row);
  }
  // Makes what input() gives, where x is not float.
  PRNN_HD void widen(std::int64_t g, std::int64_t s, std::int64_t row) const {
    if (!multiplies(g, 0, s, row)) return;
    const T* const x = x_of(g, s, row);
    float* const to = widened(g, row);
    if (at.keeps_bfloat16) {
      __builtin_memcpy(to, x, sizeof(T) * at.input_size);
      __builtin_memset((T*)to + at.input_size, 0, 4 * at.row_floats - sizeof(T) * at.input_size);
      return;
    }
    for (std::int64_t k = 0; k < at.input_size; k += Io::kUnits) {
      const std::int64_t left = at.input_size - k;
      const Io io{(int)(left < Io::kUnits ? left : Io::kUnits)};
      io.store(to + k, io.load(x + k));
    }
  }
  template <int kPhase>
  PRNN_HD void step(std::int64_t g, std::int64_t, std::int64_t row, std::int64_t unit,
                    const Vec<1, F>& product, Io io) const {
    io.store(output(g, row) + unit, product[0]);
  }
  // Where that puts a row's products, and how far from those of the next row.
  PRNN_HD float* output(std::int64_t g, std::int64_t row) const {
    return at.a + row * output_stride() + g * shape.hidden;
  }
  PRNN_HD std::int64_t output_stride() const { return shape.groups * shape.hidden; }

 private:
  PRNN_HD const T* x_of(std::int64_t g, std::int64_t s, std::int64_t row) const {
    const std::int64_t b = row / at.steps, t = shape.time_at(g, step_of(s, row), b);
    return at.x + (shape.time_major ? t * shape.batch + b : b * shape.time + t) * at.input_size;
  }
  PRNN_HD float* widened(std::int64_t g, std::int64_t row) const {
    return at.rows + (row * shape.groups + g) * at.row_floats;
  }
  // Which of the sequence.
  PRNN_HD std::int64_t step_of(std::int64_t s, std::int64_t row) const {
    return s * at.steps + row % at.steps;
  }
};

}  // namespace prnn
