// The inner part of a product of matrices (cpu/matrix_product.h): some columns times some rows.
#pragma once
#include <type_traits>

#include "cpu/packing.h"
#include "cpu/product.h"

namespace prnn::PRNN_ISA {

// to[m][k] = from[k][m], for m below `rows` and k below `depth`, and zeros up to a whole vector of
// words.
template <class T>
void transpose_rows(const void* from, std::int64_t stride, std::int64_t depth, std::int64_t rows,
                    void* to, std::int64_t to_stride) {
  constexpr int kPerWord = sizeof(float) / sizeof(T);
  for (std::int64_t m = 0; m < rows; m += kWidth) {
    const int count = rows - m < kWidth ? (int)(rows - m) : kWidth;
    for (std::int64_t first = 0; first < depth; first += kWidth * kPerWord) {
      UintVector words[kWidth];
#pragma GCC unroll 16
      for (int n = 0; n < kWidth; ++n) {
        const std::int64_t k = first + n * kPerWord;
        const T* const at = (const T*)from + k * stride + m;
        words[n] = k < depth ? Packed<T>::beside(at, stride, k + 1 < depth, count) : UintVector{};
      }
      transpose(words);
      for (int n = 0; n < count; ++n)
        __builtin_memcpy((T*)to + (m + n) * to_stride + first, &words[n], sizeof words[n]);
    }
  }
}

// What a format multiplies of a block's r-th row: the row itself, or what it puts in its place.
template <class Format, class T>
PRNN_HD const float* multiplied(const T* row, std::int64_t depth, float* places, int r) {
  float* const place = places + r * kMostTerms;
  if constexpr (std::is_same_v<T, float>) {
    return row;
  } else if constexpr (requires { Format::put(row, depth, places, r); }) {
    Format::put(row, depth, places, r);
    return places;
  } else if constexpr (requires { Format::kTakesPairs; }) {
    if (depth % 2 == 0) return (const float*)row;
    __builtin_memcpy(place, row, sizeof(T) * depth);
    __builtin_memset((T*)place + depth, 0, sizeof(T));
  } else {
    for (std::int64_t k = 0; k < depth; k += kWidth) {
      const int lanes = depth - k < kWidth ? (int)(depth - k) : kWidth;
      Io<float>{kWidth}.store(place + k, Io<T>{lanes}.load(row + k));
    }
  }
  return place;
}

// c[n] = product[n], or += it.
PRNN_HD void put(const float* product, float* c, std::int64_t columns, bool adds) {
  for (std::int64_t n = 0; n < columns; n += kWidth) {
    const Io<float> io{columns - n < kWidth ? (int)(columns - n) : kWidth};
    const Simd more = io.load(product + n);
    io.store(c + n, adds ? io.load(c + n) + more : more);
  }
}

// Asks for where a block's product goes while it is computed: 4 % of the time of large products.
PRNN_HD void prefetch_output(const float* c, std::int64_t columns) {
  for (std::int64_t n = 0; n < columns; n += kWidth) __builtin_prefetch(c + n, 1);
}

// The columns of a block, cut into panels of nearly equal size.
template <class T>
struct Panels {
  struct Panel {
    std::int64_t first, columns;
    int vectors;
    float* weights;

    int lanes() const { return vectors * kWidth; }
  };

  explicit Panels(const MatrixBlock& block) : block(block) {
    vectors = (int)ceil_div(block.columns, kWidth);
    count = (int)ceil_div(vectors, kMost);
  }
  // Vectors of the widest.
  int widest() const { return (int)ceil_div(vectors, count); }
  Panel operator[](int n) const {
    const int begin = vectors * n / count, end = vectors * (n + 1) / count;
    const std::int64_t first = begin * kWidth, lanes = (end - begin) * kWidth;
    return {first, min(lanes, block.columns - first), end - begin,
            block.panels + first * slices<T>(block.depth)};
  }
  void pack() const {
    for (int n = 0; n < count; ++n) pack((*this)[n]);
  }

  static constexpr int kMost = kRegisters >= 32 ? 4 : 2;
  const MatrixBlock& block;
  int vectors, count;

 private:
  void pack(const Panel& panel) const {
    const Units units{0, panel.vectors, panel.vectors, panel.vectors};
    __builtin_memset(panel.weights, 0, sizeof(float) * panel.lanes());  // what sums start from
    if (block.is_b_along_depth) {
      const T* const b = (const T*)block.b + panel.first * block.stride_b;
      pack_columns(panel.columns, WeightColumns<T>{b, block.stride_b}, block.depth, units,
                   panel.weights);
    } else {
      const T* const b = (const T*)block.b + panel.first;
      MicropanelPlaces places =
          places_of(panel.columns, units, units.micropanel(0, slices<T>(block.depth)),
                    panel.weights + panel.lanes());
      pack_rows(WeightRows<T>{b, block.stride_b}, block.depth, &places, 1);
    }
  }
};

// Some rows at a time are multiplied by all panels, while they are in the first-level cache.
template <class T, class Format, const Products& kTable = kProducts<Format>>
void multiply_block(const MatrixBlock& block) {
  const Panels<T> panels(block);
  panels.pack();
  const Turn turn(kTable, kMaxRows);
  alignas(64) float products[kMaxRows * kMaxVectors * kWidth];
  alignas(64) float places_of_rows[std::is_same_v<T, float> ? 1 : kMaxRows * kMostTerms];
  const std::int64_t all = block.rows + (block.ones != nullptr ? 1 : 0);
  std::int64_t blocks = ceil_div(all, kTable.rows_at_once(panels.widest()));
  for (std::int64_t m = 0; m < all; --blocks) {
    const int count = (int)ceil_div(all - m, blocks);
    const float* rows[kMaxRows] = {};
    float* places[kMaxRows];
    for (int r = 0; r < count; ++r, ++m) {
      const bool is_row = m < block.rows;
      const T* const row =
          (const T*)(is_row ? block.a : block.ones) + (is_row ? m * block.stride_a : 0);
      rows[r] = multiplied<Format>(row, block.depth, places_of_rows, r);
      places[r] = is_row ? block.c + m * block.stride_c : block.sums;
    }
    for (int n = 0; n < panels.count; ++n) {
      const auto panel = panels[n];
      for (int r = 0; r < count; ++r) prefetch_output(places[r] + panel.first, panel.columns);
      kTable.of_floats[count][panel.vectors](panel.weights, rows, block.depth, products,
                                             panel.lanes());
      for (int r = 0; r < count; ++r)
        put(products + r * panel.lanes(), places[r] + panel.first, panel.columns, block.adds);
    }
  }
}

}  // namespace prnn::PRNN_ISA
