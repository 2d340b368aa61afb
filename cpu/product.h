// The multiply-add: rows of published values times a micropanel of packed weights.
//
// A micropanel (cpu/pack.h) holds the weights of some units, `vectors` SIMD vectors wide, in the
// order they are read: slices of `vectors` · kWidth words of 4 bytes. The first slice is what the
// sums start from (the bias, in float); each that follows has the weights of one k, or, in a 16-bit
// format, of two. Each sum is taken in accumulation blocks of kAccumulationBlock, in the order of
// k, whatever the blocking: results do not depend on how the work is cut. The blocks keep the
// rounding error of long sums down: it grows with depth^(3/4) instead of depth.
#pragma once
#include "cpu/pack.h"
#include "cpu/problem.h"

namespace prnn::PRNN_ISA {

inline constexpr int kAccumulationBlock = 64;

// add(sum[r][v], weight(v), row(r)) for all, with in registers what there is less of, weights or
// rows.
template <int kRows, int kVectors, class Weight, class Row, class Add, class Sum>
PRNN_HD void add_products(const Weight& weight, const Row& row, const Add& add,
                          Sum (&sum)[kRows][kVectors]) {
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

// What a micropanel whose weights are numbers as they are begins with: a slice of biases.
struct Biases {
  static constexpr int kHeadSlices = 1;
  using Sum = FloatVector;  // of a block

  PRNN_HD static FloatVector start(const float* micropanel, int v) {
    FloatVector bias;
    __builtin_memcpy(&bias, micropanel + v * kWidth, sizeof bias);
    return bias;
  }
  // What a block adds to the sum of row r.
  template <class Rows>
  PRNN_HD static FloatVector of_block(FloatVector block, const Rows&, int) {
    return block;
  }
  PRNN_HD static FloatVector result(const float*, int, int, FloatVector sum) { return sum; }
};

// Multiplies weights of type T as they are packed, or widened to float in registers.
template <class T>
struct Widening : Biases {
  static constexpr int kPerSlice = Packed<T>::kPerSlice;

  // kRows rows from `first` on.
  template <int kRows>
  struct Rows {
    const float* at[kRows];
    PRNN_HD Rows(const float* const* rows, std::int64_t first, std::int64_t, std::int64_t) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) at[r] = rows[r] + first;
    }
  };

  // sum += rows[k] · the slice that has k, and the same for its second k, if that is below `end`.
  template <int kRows, int kVectors>
  PRNN_HD static void add_slice(const float* slice, const Rows<kRows>& rows, std::int64_t k,
                                std::int64_t end, FloatVector (&sum)[kRows][kVectors]) {
    add_part<0>(slice, rows, k, sum);
    if constexpr (kPerSlice == 2) {
      // Or GCC keeps the slice in registers for its second part, and sums in memory.
      if constexpr (kRegisters < 32) asm("" : "+r"(slice));
      if (k + 1 < end) add_part<1>(slice, rows, k + 1, sum);
    }
  }

 private:
  template <int kPart, int kRows, int kVectors>
  PRNN_HD static void add_part(const float* slice, const Rows<kRows>& rows, std::int64_t k,
                               FloatVector (&sum)[kRows][kVectors]) {
    const auto weight = [&](int v) {
      return Packed<T>::template widened<kPart>(slice, v, kVectors);
    };
    const auto row = [&](int r) { return rows.at[r][k] - FloatVector{}; };
    const auto add = [](FloatVector& sum, FloatVector w, FloatVector h) { sum += h * w; };
    add_products(weight, row, add, sum);
  }
};

// Slices of the micropanel that are prefetched: 2 to 7 % of a call on an Intel Xeon, save where so
// few rows take so little time that the processor sees far enough ahead by itself. A Zen 3, with
// AVX2, does not where weights come from its third-level cache: LSTM 1024 takes 0.95 of the time at
// batch 2, LSTM 512 0.97 at batch 1.
inline constexpr int kSlicesAhead = 8, kRowsWorthPrefetching = kRegisters < 32 ? 1 : 3;
// Of memory that is fetched at once.
inline constexpr int kFloatsFetched = 16;

// So few sums leave a unit idle for most of the four cycles that an addition takes: they are taken
// of two blocks at a time.
inline constexpr int kFewSums = 4;

// out[row · out_stride + n] = bias[n] + Σ_k rows[row][k] weights[k][n] for the micropanel's lanes.
template <class Format, int kRows, int kVectors>
void product(const float* micropanel, const float* const* rows, std::int64_t depth, float* out,
             std::int64_t out_stride) {
  constexpr int kLanes = kVectors * kWidth;
  using Sums = FloatVector[kRows][kVectors];
  using Block = typename Format::Sum[kRows][kVectors];
  using Rows = typename Format::template Rows<kRows>;
  const auto add = [](Sums& sum, const Block& b, const Rows& rows) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] += Format::of_block(b[r][v], rows, r);
  };
  Sums sum;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Format::start(micropanel, v);
  const float* slice = micropanel + Format::kHeadSlices * kLanes;
  std::int64_t first = 0;
  if constexpr (kRows * kVectors <= kFewSums)
    for (; first + 2 * kAccumulationBlock <= depth; first += 2 * kAccumulationBlock) {
      constexpr std::int64_t kBlockLanes = kAccumulationBlock / Format::kPerSlice * kLanes;
      const Rows of_block(rows, first, kAccumulationBlock, depth),
          of_next(rows, first + kAccumulationBlock, kAccumulationBlock, depth);
      Block block = {}, next = {};
      for (std::int64_t k = 0; k < kAccumulationBlock; k += Format::kPerSlice, slice += kLanes) {
        Format::add_slice(slice, of_block, k, kAccumulationBlock, block);
        Format::add_slice(slice + kBlockLanes, of_next, k, kAccumulationBlock, next);
      }
      slice += kBlockLanes;
      add(sum, block, of_block);
      add(sum, next, of_next);
    }
  for (; first < depth; first += kAccumulationBlock) {
    const std::int64_t count =
        depth - first < kAccumulationBlock ? depth - first : kAccumulationBlock;
    const Rows of_block(rows, first, count, depth);
    Block block = {};
    for (std::int64_t k = 0; k < count; k += Format::kPerSlice, slice += kLanes) {
      if constexpr (kRows >= kRowsWorthPrefetching)
        for (int n = 0; n < kLanes; n += kFloatsFetched)
          __builtin_prefetch(slice + kSlicesAhead * kLanes + n);
      Format::add_slice(slice, of_block, k, count, block);
    }
    add(sum, block, of_block);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const FloatVector result = Format::result(micropanel, kLanes, v, sum[r][v]);
      __builtin_memcpy(out + r * out_stride + v * kWidth, &result, sizeof result);
    }
}

// How many rows of so many vectors there are registers for: for the sums, and a value of each row
// or a slice of weights.
inline constexpr int kMostInRegisters = 8;
constexpr int rows_in_registers(int vectors) {
  int rows = 1;
  while (rows < kMostInRegisters) {
    const int more = rows + 1, held = more < vectors ? more : vectors;
    if (more * vectors + held + 2 > kRegisters) break;
    rows = more;
  }
  return rows;
}

// How many of a panel's vectors are multiplied at once, where a part has so many rows: all, or as
// large a share as leaves registers for a block of the rows. So each weight is still read once,
// where blocks of fewer rows would read all of them again: steps of seven rows take 14 % less (LSTM
// 192), of eight 4 %; with 16 registers, any number of rows is multiplied a quarter faster.
constexpr int vectors_of_micropanel(int vectors, std::int64_t rows) {
  constexpr int kManyRows = 6;  // of 16 rows, two blocks of eight take longer than three smaller
  const std::int64_t in_block = rows <= rows_in_registers(2) ? rows : kManyRows;
  int parts = 1;
  const auto of_part = [&] { return (vectors + parts - 1) / parts; };
  while (of_part() > 1 && rows_in_registers(of_part()) < in_block) ++parts;
  return of_part();
}

template <class Format, int kRows, int kVectors>
constexpr Product product_or_null() {
  if constexpr (kRows <= rows_in_registers(kVectors))
    return product<Format, kRows, kVectors>;
  else
    return nullptr;
}
template <class Format, int kRows, int... kVectors>
constexpr void fill_row(ProductsBySize& products) {
  ((products[kRows][kVectors] = product_or_null<Format, kRows, kVectors>()), ...);
}
template <class Format, int... kRows>
constexpr Products make_products() {
  Products out{};
  out.vectors_at_once = vectors_of_micropanel;
  out.rows_at_once = rows_in_registers;
  // Not by `out.prepare`: under GCC's UndefinedBehaviorSanitizer, whether a function's address is
  // null is no constant.
  constexpr bool kPrepares = requires { Format::prepare; };
  if constexpr (kPrepares) out.prepare = Format::prepare;
  ProductsBySize& products = kPrepares ? out.of_prepared : out.of_floats;
  (fill_row<Format, kRows, 1, 2, 3, 4, 5, 6, 7, 8>(products), ...);
  return out;
}
template <class Format>
inline constexpr Products kProducts = make_products<Format, 1, 2, 3, 4, 5, 6, 7, 8>();

// As long as a thread multiplies by them, so many rows at most.
class Turn {
 public:
  PRNN_HD Turn(const Products& products, std::int64_t rows) : end_(products.end_turn) {
    if (products.begin_turn != nullptr) products.begin_turn(rows);
  }
  PRNN_HD ~Turn() {
    if (end_ != nullptr) end_();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  void (*end_)();
};

}  // namespace prnn::PRNN_ISA
