// The multiply-add for calls so short that packing the weights would be most of their time: a few
// rows times the weights as they lie in memory; and their steps.
//
// Some lines of the matrix (the weights of one k) are read at a time, each from its beginning to
// its end, which is how memory is read fastest. The sums are in memory, the first-level cache:
// first the totals of all rows and products, then those of the current run. They are taken in the
// order of cpu/product.h, so that results are the same to the last bit.
#pragma once
#include "cpu/io.h"
#include "cpu/problem.h"
#include "cpu/product.h"
#include "cpu/steps.h"

namespace prnn::PRNN_ISA {

// Where the sums of a phase lie: those of a row's product begin at
// [(row · products + product) · units]. Of several blocks of rows, each has totals of its own.
struct Sums {
  float *totals, *run;
  int products;
  std::int64_t units;  // of a whole group, padded to vectors

  PRNN_HD Sums(float* at, int products, std::int64_t units, std::int64_t block = 0,
               std::int64_t blocks = 1)
      : totals(at + block * kUnpackedRows * products * units),
        run(at + blocks * kUnpackedRows * products * units),
        products(products),
        units(units) {}
  PRNN_HD std::int64_t at(int row, int product) const { return (row * products + product) * units; }
};

// The units whose sums of a product are made.
struct Range {
  std::int64_t first, end;
  PRNN_HD std::int64_t count() const { return end - first; }
  PRNN_HD std::int64_t padded() const { return ceil_div(count(), kWidth) * kWidth; }
};

// How many lines are multiplied at a time, and vectors of each. What is broadcast of the rows stays
// in registers, if they suffice; or it is read again, once for some vectors.
struct Tile {
  int depth, vectors;
  bool holds_rows;
};
constexpr Tile tile_unpacked(int rows) {
  if (rows == 1) return {8, 1, true};
  if (kRegisters < 32 && rows > 2) return {8, 2, false};
  return {4, 1, true};
}

// Two vectors of bfloat16 become floats soonest as words of two columns each. So of every two whole
// vectors, the sums of a run are those of the even columns, and then those of the odd ones.
template <class T>
constexpr bool kByParity = std::is_same_v<T, Bfloat16>;

// The weights of some vectors of a line.
template <class T, int kVectors>
PRNN_HD void load_line(const T* from, Io<T> io, FloatVector (&weights)[kVectors]) {
  if constexpr (kByParity<T> && kVectors == 2) {
    UintVector columns;
    __builtin_memcpy(&columns, from, sizeof columns);
    weights[0] = (FloatVector)(columns << 16);
    weights[1] = (FloatVector)(columns & 0xffff0000);
  } else {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) weights[v] = io.load(from + v * kWidth).v;
  }
}

// sum[row][n] += Σ_k rows[row][first_k + k] lines[k][n] for kDepth k.
template <int kRows, int kDepth, class T>
PRNN_HD void add_lines(const T* lines, std::int64_t stride, const float* const* rows,
                       std::int64_t first_k, std::int64_t count, float* sum,
                       std::int64_t row_stride) {
  constexpr Tile kTile = tile_unpacked(kRows);
  const auto read = [&](int r, int k) { return rows[r][first_k + k] - FloatVector{}; };
  FloatVector held[kRows][kDepth];
  if constexpr (kTile.holds_rows)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int k = 0; k < kDepth; ++k) held[r][k] = read(r, k);
  const auto add = [&](auto vectors, std::int64_t n, Io<T> io) __attribute__((always_inline)) {
    constexpr int kVectors = vectors.value;
    const Io<float> whole{kWidth};
    FloatVector s[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        s[r][v] = whole.load(sum + r * row_stride + n + v * kWidth).v;
#pragma GCC unroll 8
    for (int k = 0; k < kDepth; ++k) {
      FloatVector weights[kVectors];
      load_line(lines + k * stride + n, io, weights);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const FloatVector h = kTile.holds_rows ? held[r][k] : read(r, k);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) s[r][v] += h * weights[v];
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        whole.store(sum + r * row_stride + n + v * kWidth, s[r][v]);
  };
  constexpr std::integral_constant<int, kByParity<T> ? 2 : kTile.vectors> some;
  constexpr std::integral_constant<int, 1> one;
  std::int64_t n = 0;
  for (; n + some * kWidth <= count; n += some * kWidth) add(some, n, Io<T>{kWidth});
  if constexpr (some > 1)
    for (; n + kWidth <= count; n += kWidth) add(one, n, Io<T>{kWidth});
  if (n < count) add(one, n, Io<T>{(int)(count - n)});
}

// Adds the sums of a run to the totals of a range.
template <class T>
PRNN_HD void add_run(const float* run, const Range& range, float* total) {
  std::int64_t n = 0;
  if constexpr (kByParity<T>)
    for (; n + 2 * kWidth <= range.count(); n += 2 * kWidth)
      for (int i = 0; i < kWidth; ++i) {
        total[n + 2 * i] += run[n + i];
        total[n + 2 * i + 1] += run[n + kWidth + i];
      }
  for (; n < range.padded(); ++n) total[n] += run[n];
}

// What the totals of a range of each product of a group's phase start from.
template <class Pass>
void start_totals(const Pass& pass, std::int64_t group, int phase, const Range* ranges, int rows,
                  const Sums& sums) {
  for (int product = 0; product < sums.products; ++product) {
    const Range range = ranges[product];
    for (std::int64_t n = 0; n < range.padded(); ++n) {
      const std::int64_t unit = range.first + n;
      const float bias = unit < range.end ? to_float(pass.bias(group, phase, unit, product)) : 0.0f;
      for (int r = 0; r < rows; ++r) sums.totals[sums.at(r, product) + unit] = bias;
    }
  }
}

// Adds the products of a phase of so many units. Not inlined: one of them serves all passes.
template <int kRows, class T>
[[gnu::noinline]] void add_rows_unpacked(WeightRows<T> weights, std::int64_t depth,
                                         std::int64_t units, const Range* ranges,
                                         const float* const* rows, const Sums& sums) {
  constexpr int kDepth = tile_unpacked(kRows).depth;
  const std::int64_t row_stride = sums.at(1, 0);
  for (std::int64_t k0 = 0; k0 < depth; k0 += kAccumulationBlock) {
    const std::int64_t k1 = depth < k0 + kAccumulationBlock ? depth : k0 + kAccumulationBlock;
    for (int r = 0; r < kRows; ++r)
      for (int product = 0; product < sums.products; ++product)
        __builtin_memset(sums.run + sums.at(r, product) + ranges[product].first, 0,
                         sizeof(float) * ranges[product].padded());
    const auto add = [&](auto lines, std::int64_t k) __attribute__((always_inline)) {
      for (int product = 0; product < sums.products; ++product) {
        const Range range = ranges[product];
        const auto* const from = weights.first + k * weights.stride + product * units + range.first;
        add_lines<kRows, lines.value>(from, weights.stride, rows, k, range.count(),
                                      sums.run + sums.at(0, product) + range.first, row_stride);
      }
    };
    std::int64_t k = k0;
    for (; k + kDepth <= k1; k += kDepth) add(std::integral_constant<int, kDepth>{}, k);
    for (; k < k1; ++k) add(std::integral_constant<int, 1>{}, k);
    for (int r = 0; r < kRows; ++r)
      for (int product = 0; product < sums.products; ++product) {
        const std::int64_t at = sums.at(r, product) + ranges[product].first;
        add_run<T>(sums.run + at, ranges[product], sums.totals + at);
      }
  }
}

template <class T>
[[gnu::noinline]] void add_unpacked(WeightRows<T> weights, std::int64_t depth, std::int64_t units,
                                    const Range* ranges, const float* const* rows, int row_count,
                                    const Sums& sums) {
  static_assert(kUnpackedRows == 4);
  switch (row_count) {
    case 1:
      return add_rows_unpacked<1>(weights, depth, units, ranges, rows, sums);
    case 2:
      return add_rows_unpacked<2>(weights, depth, units, ranges, rows, sums);
    case 3:
      return add_rows_unpacked<3>(weights, depth, units, ranges, rows, sums);
    case 4:
      return add_rows_unpacked<4>(weights, depth, units, ranges, rows, sums);
  }
}

// What a part does with weights that are not packed: the products of ranges of units or columns,
// and the steps of units.
template <int kPhase, class Pass>
struct Unpacked {
  static constexpr int kGates = Pass::products(kPhase);
  const Pass& pass;
  const Blocking& blocking;
  float* packed;  // a place for sums
  const Part& part;
  std::int64_t step;

  std::int64_t vectors() const { return ceil_div(pass.units(kPhase), kWidth); }
  Range range(std::int64_t first, std::int64_t end) const {
    return {first * kWidth, min(pass.units(kPhase), end * kWidth)};
  }
  // Where threads share the columns, all rows' totals wait for their steps.
  Sums sums(std::int64_t group, std::int64_t block) const {
    float* const at = packed + group * blocking.group_words;
    if (blocking.partition != Partition::kColumns) return {at, kGates, vectors() * kWidth};
    const std::int64_t blocks = ceil_div(part.last_row - part.first_row, kUnpackedRows);
    return {at, kGates, vectors() * kWidth, block, blocks};
  }

  void multiply(std::int64_t group, const Range* ranges, const Sums& sums,
                const RowBlock& block) const {
    start_totals(pass, group, kPhase, ranges, block.count, sums);
    add_unpacked(pass.weight_rows(group, kPhase), pass.depth(kPhase), pass.units(kPhase), ranges,
                 block.inputs, block.count, sums);
  }
  void take(std::int64_t group, const Sums& sums, RowBlock& block) const {
    block.is_fast = block.multiplies && are_fast(pass, group, step, block.rows, block.count);
    const std::int64_t unit = part.first_panel * kWidth;
    const int vectors = (int)(part.last_panel - part.first_panel);
    const Pending pending{pass.units(kPhase), unit,          vectors,       vectors,
                          sums.totals + unit, sums.at(1, 0), sums.at(0, 1), 0};
    take_steps_of<kPhase>(pass, pending, group, step, block, 0);
  }
  // Of rows without a product.
  void take_others(std::int64_t group, const Sums& sums) const {
    for (int gate = 0; gate < kGates; ++gate)
      __builtin_memset(sums.totals + sums.at(0, gate) + part.first_panel * kWidth, 0,
                       sizeof(float) * (part.last_panel - part.first_panel) * kWidth);
    RowBlock block{{}, {}, 1, false, nullptr, false};
    for (std::int64_t b = part.first_row; b < part.last_row; ++b) {
      block.rows[0] = b;
      if (!pass.multiplies(group, kPhase, step, b)) take(group, sums, block);
    }
  }
  // f(n, block) of the part's rows that have a product in this step, some at a time.
  template <class F>
  void visit_blocks(std::int64_t group, F&& f) const {
    RowBlock block{{}, {}, 0, true, nullptr, false};
    std::int64_t blocks = 0;
    for (std::int64_t b = part.first_row; b < part.last_row; ++b) {
      if (pass.multiplies(group, kPhase, step, b)) {
        block.inputs[block.count] = pass.input(group, kPhase, step, b);
        block.rows[block.count++] = b;
      }
      if (block.count < kUnpackedRows && (block.count == 0 || b + 1 < part.last_row)) continue;
      f(blocks++, block);
      block.count = 0;
    }
  }

  // The part's units.
  void advance() const {
    Range ranges[kGates];
    for (Range& r : ranges) r = range(part.first_panel, part.last_panel);
    for (std::int64_t g = part.first_group; g < part.last_group; ++g) {
      visit_blocks(g, [&](std::int64_t n, RowBlock& block) {
        if (blocking.partition != Partition::kColumns) multiply(g, ranges, sums(g, 0), block);
        take(g, sums(g, n), block);
      });
      take_others(g, sums(g, 0));
    }
  }
  // The products of the part's columns.
  void multiply_columns() const {
    Range ranges[kGates];
    for (int gate = 0; gate < kGates; ++gate) {
      const auto within = [&](std::int64_t panel) {
        return min(max(panel - gate * vectors(), 0), vectors());
      };
      ranges[gate] = range(within(part.first_panel), within(part.last_panel));
      if (ranges[gate].count() < 0) ranges[gate].first = ranges[gate].end;
    }
    for (std::int64_t g = part.first_group; g < part.last_group; ++g)
      visit_blocks(g, [&](std::int64_t n, const RowBlock& block) {
        multiply(g, ranges, sums(g, n), block);
      });
  }
};

}  // namespace prnn::PRNN_ISA
