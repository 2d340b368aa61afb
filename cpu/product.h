// The multiply-add: rows of published values times a panel of packed weights.
//
// A panel holds the weights of some units, `vectors` SIMD vectors wide, in the order they are
// read: lines of `vectors` · kWidth words of 4 bytes, in strips (cpu/pack.h). The first line is
// what the sums start from (the bias, in float); each that follows has the weights of one k, or, in
// a 16-bit format, of two. Each sum is taken in runs of kRun, in the order of k, whatever the
// blocking: results do not depend on how the work is cut. The runs keep the rounding error of long
// sums down: it grows with depth^(3/4) instead of depth.
#pragma once
#include "cpu/pack.h"
#include "cpu/problem.h"

namespace prnn::PRNN_ISA {

inline constexpr int kRun = 64;

// add(sum[r][v], weight(v), row(r)) for all, with in registers what there is less of, weights or
// rows.
template <int kRows, int kVectors, class Weight, class Row, class Add>
PRNN_HD void add_products(const Weight& weight, const Row& row, const Add& add,
                          FloatVector (&sum)[kRows][kVectors]) {
  constexpr bool kHoldsRows = kRows < kVectors;
  constexpr int kHeld = kHoldsRows ? kRows : kVectors, kOthers = kHoldsRows ? kVectors : kRows;
  decltype(row(0)) held[kHeld];
#pragma GCC unroll 16
  for (int n = 0; n < kHeld; ++n) held[n] = kHoldsRows ? row(n) : weight(n);
#pragma GCC unroll 16
  for (int m = 0; m < kOthers; ++m) {
    const auto read = [&] { return kHoldsRows ? weight(m) : row(m); };
    const auto other = kHeld == 1 ? read() : in_register(read());
#pragma GCC unroll 16
    for (int n = 0; n < kHeld; ++n) {
      if constexpr (kHoldsRows)
        add(sum[n][m], other, held[n]);
      else
        add(sum[m][n], held[n], other);
    }
  }
}

// Multiplies weights of type T as they are packed, or widened to float in registers.
template <class T>
struct Widening {
  static constexpr int kPerLine = Packed<T>::kPerLine;

  // kRows rows from `first` on.
  template <int kRows>
  struct Rows {
    const float* at[kRows];
    PRNN_HD Rows(const float* const* rows, std::int64_t first, std::int64_t) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) at[r] = rows[r] + first;
    }
  };

  // sum += rows[k] · the line that has k, and the same for its second k, if that is below `end`.
  template <class Lines, int kRows, int kVectors>
  PRNN_HD static void add_line(const Lines& lines, const Rows<kRows>& rows, std::int64_t k,
                               std::int64_t end, FloatVector (&sum)[kRows][kVectors]) {
    add_part<0>(lines, rows, k, sum);
    if constexpr (kPerLine == 2)
      if (k + 1 < end) add_part<1>(lines, rows, k + 1, sum);
  }

 private:
  template <int kPart, class Lines, int kRows, int kVectors>
  PRNN_HD static void add_part(const Lines& lines, const Rows<kRows>& rows, std::int64_t k,
                               FloatVector (&sum)[kRows][kVectors]) {
    const auto weight = [&](int v) {
      const Strip strip = Lines::strip_of(v);
      return Packed<T>::template widened<kPart>(lines.line_of(v), Lines::in_strip(v),
                                                strip.vectors);
    };
    const auto row = [&](int r) { return rows.at[r][k] - FloatVector{}; };
    const auto add = [](FloatVector& sum, FloatVector w, FloatVector h) { sum += h * w; };
    add_products(weight, row, add, sum);
  }
};

// Where a product reads: a line of each strip of kVectors of the panel's kLine vectors, from kFirst
// on.
template <int kVectors, int kFirst, int kLine>
struct Lines {
  static constexpr int kEach = vectors_of_strip(kLine), kFirstStrip = kFirst / kEach;
  static constexpr int kStrips = (kFirst + kVectors - 1) / kEach - kFirstStrip + 1;
  const float* at[kStrips];

  PRNN_HD Lines(const float* panel, std::int64_t lines) {
#pragma GCC unroll 16
    for (int n = 0; n < kStrips; ++n)
      at[n] = panel + Strip((kFirstStrip + n) * kEach, kLine, lines).first_word;
  }
  PRNN_HD void skip(std::int64_t lines) {
#pragma GCC unroll 16
    for (int n = 0; n < kStrips; ++n)
      at[n] += lines * Strip((kFirstStrip + n) * kEach, kLine, 0).lanes();
  }
  PRNN_HD static constexpr Strip strip_of(int v) { return {kFirst + v, kLine, 0}; }
  PRNN_HD static constexpr int in_strip(int v) { return (kFirst + v) % kEach; }
  PRNN_HD const float* line_of(int v) const { return at[(kFirst + v) / kEach - kFirstStrip]; }
  PRNN_HD const float* vector(int v) const { return line_of(v) + in_strip(v) * kWidth; }
};

// Lines of the panel that are asked for before they are needed: 2 to 7 % of a call on an Intel
// Xeon, save where so few rows take so little time that the processor sees far enough ahead by
// itself.
inline constexpr int kLinesAhead = 8, kRowsWorthPrefetching = 3;

// So few sums leave a unit idle for most of the four cycles that an addition takes: they are taken
// of two runs at a time.
inline constexpr int kFewSums = 4;

// out[row][vector][kWidth] = panel[0] + Σ_k rows[row][k] weights[k], of kVectors from kFirst on.
template <class Format, int kRows, int kVectors, int kFirst = 0, int kLine = kVectors>
void product(const float* panel, const float* const* rows, std::int64_t depth, float* out) {
  using Sums = FloatVector[kRows][kVectors];
  using Rows = typename Format::template Rows<kRows>;
  const auto add = [](Sums& sum, const Sums& run) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] += run[r][v];
  };
  Lines<kVectors, kFirst, kLine> lines(panel, 1 + ceil_div(depth, Format::kPerLine));
  Sums sum;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v)
      __builtin_memcpy(&sum[r][v], lines.vector(v), sizeof(FloatVector));
  }
  lines.skip(1);
  std::int64_t first = 0;
  if constexpr (kRows * kVectors <= kFewSums)
    for (; first + 2 * kRun <= depth; first += 2 * kRun) {
      constexpr std::int64_t kLinesOfRun = kRun / Format::kPerLine;
      const Rows of_run(rows, first, kRun), of_next(rows, first + kRun, kRun);
      auto next_lines = lines;
      next_lines.skip(kLinesOfRun);
      Sums run = {}, next = {};
      for (std::int64_t k = 0; k < kRun; k += Format::kPerLine) {
        Format::add_line(lines, of_run, k, kRun, run);
        Format::add_line(next_lines, of_next, k, kRun, next);
        lines.skip(1);
        next_lines.skip(1);
      }
      lines.skip(kLinesOfRun);
      add(sum, run);
      add(sum, next);
    }
  for (; first < depth; first += kRun) {
    const std::int64_t count = depth - first < kRun ? depth - first : kRun;
    const Rows of_run(rows, first, count);
    Sums run = {};
    for (std::int64_t k = 0; k < count; k += Format::kPerLine) {
      if constexpr (kRows >= kRowsWorthPrefetching) {
        auto ahead = lines;
        ahead.skip(kLinesAhead);
        for (int v = 0; v < kVectors; ++v) __builtin_prefetch(ahead.vector(v));
      }
      Format::add_line(lines, of_run, k, count, run);
      lines.skip(1);
    }
    add(sum, run);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v)
      __builtin_memcpy(out + (r * kLine + kFirst + v) * kWidth, &sum[r][v], sizeof(FloatVector));
}

// How many rows of so many vectors there are registers for: for the sums, and a value of each row
// or a line of weights.
constexpr int rows_in_registers(int vectors) {
  int rows = 1;
  while (rows < kMaxRows) {
    const int more = rows + 1, held = more < vectors ? more : vectors;
    if (more * vectors + held + 2 > kRegisters) break;
    rows = more;
  }
  return rows;
}

// More rows than that of three or four vectors are multiplied by half of the vectors, then by the
// others: so each weight is still read once, where two blocks of rows would read all of them twice.
// Steps of seven rows take 14 % less (LSTM 192), of eight 4 %; with 16 registers, any number of
// rows is multiplied a quarter faster.
constexpr int first_half(int vectors) {
  return vectors == 3 || vectors == 4 ? (vectors + 1) / 2 : vectors;
}

// How many rows a block of so many vectors may have.
constexpr int max_rows(int vectors) { return rows_in_registers(first_half(vectors)); }
// A blocking asks for its widest panel: what is narrower has to do as many.
static_assert([] {
  for (int vectors = 1; vectors < kMaxVectors; ++vectors)
    if (max_rows(vectors) < max_rows(vectors + 1)) return false;
  return true;
}());

template <class Format, int kRows, int kVectors>
void product_by_halves(const float* panel, const float* const* rows, std::int64_t depth,
                       float* out) {
  constexpr int kFirst = first_half(kVectors);
  product<Format, kRows, kFirst, 0, kVectors>(panel, rows, depth, out);
  product<Format, kRows, kVectors - kFirst, kFirst, kVectors>(panel, rows, depth, out);
}

template <class Format, int kRows, int kVectors>
constexpr Product product_or_null() {
  if constexpr (kRows <= rows_in_registers(kVectors))
    return product<Format, kRows, kVectors>;
  else if constexpr (kRows <= max_rows(kVectors))
    return product_by_halves<Format, kRows, kVectors>;
  else
    return nullptr;
}
template <class Format, int kRows, int... kVectors>
constexpr void fill_row(Products& products) {
  ((products.at[kRows][kVectors] = product_or_null<Format, kRows, kVectors>()), ...);
}
template <class Format, int... kRows>
constexpr Products make_products() {
  Products products{};
  (fill_row<Format, kRows, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16>(products), ...);
  return products;
}
template <class Format>
inline constexpr Products kProducts = make_products<Format, 1, 2, 3, 4, 5, 6, 7, 8>();

}  // namespace prnn::PRNN_ISA
