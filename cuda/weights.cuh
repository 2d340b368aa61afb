// From a matrix as it lies in memory to what mma.sync multiplies.
//
// mma.sync wants A, 16 rows by k, in registers in a given order. That order is free in k as long as
// B has the same one: lane t (of the four that share a row) takes the 16 consecutive bytes t of a k
// block, so that a fragment of B is one aligned 16-byte load from where the values lie.
#pragma once
#include "cuda/task.h"

namespace prnn {

// This thread's place in the block and in its warp's fragments.
struct Place {
  int thread, lane, warp_m, warp_k;
  int row, part;  // lane = 4·row + part: row of A and column of B; which 16 bytes of a k block

  PRNN_DEVICE static Place here(const Tile& tile) {
    const int thread = ptx::tid(), lane = thread % 32, warp = thread / 32;
    return {thread, lane, warp % tile.warps_m, warp / tile.warps_m, lane / 4, lane % 4};
  }
};

// Of 16 rows and one k block: 16 bytes each of this lane's row and of that eight below, word by
// word in turns.
struct Fragments {
  ptx::Word4 half[2];

  PRNN_DEVICE static Fragments of(const ptx::Word4& row, const ptx::Word4& below) {
    return {{{row.x, below.x, row.y, below.y}, {row.z, below.z, row.w, below.w}}};
  }
};

// Reads a warp's rows of units from `first` on, of group g.
template <Number kNumber, Tile kTile, class Pass>
struct WeightReader {
  const Pass& pass;
  const Place& place;
  int g, first, padded;

  // A k block, all lanes of the warp together; `scratch` is as large as its fragments.
  PRNN_DEVICE void read(int k_block, char* scratch, Fragments (&to)[kTile.m_tiles]) const {
    if constexpr (Pass::kUnitsContiguous) {
      fill(k_block, scratch);
      ptx::bar_warp_sync();  // other lanes wrote what this one reads
    }
#pragma unroll
    for (int m = 0; m < kTile.m_tiles; ++m) {
      const int row = 16 * m + place.row;
      if constexpr (Pass::kUnitsContiguous)
        to[m] = Fragments::of(from_scratch(scratch, row), from_scratch(scratch, row + 8));
      else
        to[m] = Fragments::of(from_columns(k_block, row), from_columns(k_block, row + 8));
    }
    if constexpr (Pass::kUnitsContiguous)
      ptx::bar_warp_sync();  // and read it before more is written
  }

 private:
  using Value = typename Pass::Value;
  static constexpr int kProducts = Pass::kProducts, kRows = 16 * kTile.m_tiles;
  static constexpr int kUnits =  // of a warp
      kTile.warps_m == 1 ? units_per_block(kTile, kProducts, kNumber) : kRows / kProducts;
  static_assert(kTile.warps_m == 1 || kRows % kProducts == 0);
  static constexpr int kDepth = kKBlockBytes / sizeof(Value), kPerLane = 16 / sizeof(Value);
  static constexpr int kGranule = granule_units(kNumber);  // values that are read together
  static constexpr int kGranules = kRows / kGranule;       // of a k, in scratch
  static_assert(kUnits % kGranule == 0);

  // The words of a lane's values.
  struct alignas(16) Values {
    Value v[kPerLane];

    PRNN_DEVICE ptx::Word4 words() {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) v[i] = Format<kNumber>::resident(v[i]);
      ptx::Word4 out;
      __builtin_memcpy(&out, v, sizeof out);
      return out;
    }
  };
  template <class Word>
  PRNN_DEVICE static bool is_aligned(const void* p, std::int64_t stride) {
    return (reinterpret_cast<std::uintptr_t>(p) | stride * sizeof(Value)) % sizeof(Word) == 0;
  }

  // ---- k beside k: a lane's part of a row is one load ----

  // The matrix of an exchanged value, and which of its values it is; -1: none has weights for it.
  struct Columns {
    const Value* first;
    std::int64_t stride;
    int value;
  };
  PRNN_DEVICE Columns columns_of(int value) const {
    if constexpr (Pass::kSources == 1) {
      const auto columns = pass.weight_columns(g, 0);
      return {columns.first, columns.stride, value < Pass::kPublished ? value : -1};
    } else {
      const int source = value < Pass::kPublished ? 0 : 1;
      const auto columns = pass.weight_columns(g, source);
      const int within = value - source * Pass::kPublished;
      const bool is_there = within < Pass::kPublished && columns.first != nullptr;
      return {columns.first, columns.stride,
              is_there ? Pass::Products::gate_of(source, within) : -1};
    }
  }
  PRNN_DEVICE ptx::Word4 from_columns(int k_block, int row) const {
    const int hidden = static_cast<int>(pass.shape.hidden);
    const int unit = first + place.warp_m * kRows + row;
    const int exchanged = k_block * kDepth + place.part * kPerLane;
    const int value = exchanged / padded, from = exchanged % padded;
    const Columns columns = columns_of(value);
    Values values = {};
    if (row < kUnits && unit < hidden && columns.value >= 0) {
      const Value* at = columns.first + unit * columns.stride + columns.value * hidden + from;
      if (is_aligned<ptx::Word4>(columns.first, hidden)) {
        if (from < hidden) values = *reinterpret_cast<const Values*>(at);
      } else {
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
          if (from + i < hidden) values.v[i] = at[i];
      }
    }
    return values.words();
  }

  // ---- unit beside unit: through scratch, [k][product, unit], granule by granule ----

  // Lanes that read different k find their rows in other banks, most or all of them.
  PRNN_DEVICE static int at(int depth, int column) {
    const int granule = (column / kGranule + depth / kPerLane) % kGranules;
    return (depth * kGranules + granule) * kGranule + column % kGranule;
  }
  // Weights of the k-th exchanged value, of all units; null: there are none.
  PRNN_DEVICE const Value* row_of(int k, int product) const {
    const int hidden = static_cast<int>(pass.shape.hidden);
    const int source = Pass::kSources == 2 && k >= padded ? 1 : 0, from = k - source * padded;
    const auto rows = pass.weight_rows(g, source);
    int gate = product;
    if constexpr (Pass::kSources == 2) gate = Pass::Products::gate_of(source, product);
    if (from >= hidden || gate < 0 || rows.first == nullptr) return nullptr;
    return rows.first + from * rows.stride + gate * hidden;
  }
  PRNN_DEVICE void fill(int k_block, char* scratch) const {
    const int hidden = static_cast<int>(pass.shape.hidden);
    const bool whole = is_aligned<ptx::Word2>(pass.weight_rows(g, 0).first, hidden);
    constexpr int kOfProduct = kUnits / kGranule, kOfDepth = kProducts * kOfProduct;
    constexpr int kAll = kDepth * kOfDepth, kBatch = 4;  // on their way at a time, from memory
#pragma unroll 1
    for (int e = place.lane; e < kAll; e += 32 * kBatch) {
      ptx::Word2 granules[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int n = e + 32 * i, depth = n / kOfDepth, product = n % kOfDepth / kOfProduct;
        const int unit = first + place.warp_m * kUnits + n % kOfProduct * kGranule;
        const Value* const at = row_of(k_block * kDepth + depth, product);
        granules[i] = {};
        if (n < kAll && at != nullptr) granules[i] = read_units(at, unit, hidden, whole);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int n = e + 32 * i, depth = n / kOfDepth;
        Value* to = reinterpret_cast<Value*>(scratch) + at(depth, n % kOfDepth * kGranule);
        if (n < kAll) *reinterpret_cast<ptx::Word2*>(to) = granules[i];
      }
    }
  }
  // Of those there are.
  PRNN_DEVICE static ptx::Word2 read_units(const Value* of_product, int unit, int hidden,
                                           bool whole) {
    ptx::Word2 out{};
    if (whole) {
      if (unit < hidden) out = *reinterpret_cast<const ptx::Word2*>(of_product + unit);
      return out;
    }
    Value values[kGranule] = {};
#pragma unroll
    for (int i = 0; i < kGranule; ++i)
      if (unit + i < hidden) values[i] = of_product[unit + i];
    __builtin_memcpy(&out, values, sizeof out);
    return out;
  }
  PRNN_DEVICE ptx::Word4 from_scratch(const char* scratch, int row) const {
    Values values = {};
    const int unit = row / kProducts, column = row % kProducts * kUnits + unit;
    if (unit < kUnits) {
      const Value* of_row =
          reinterpret_cast<const Value*>(scratch) + at(place.part * kPerLane, column);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) values.v[i] = of_row[i * kGranules * kGranule];
    }
    return values.words();
  }
};

}  // namespace prnn
