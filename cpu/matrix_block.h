// The inner part of a product of matrices (cpu/matrix_product.h): a panel of columns times rows.
#pragma once
#include "cpu/panel.h"
#include "cpu/product.h"

namespace prnn::PRNN_ISA {

// to[m][k] = from[k][m], for m below `rows` and k below `depth`, and zeros up to a whole vector.
inline void transpose_rows(const float* from, std::int64_t stride, std::int64_t depth,
                           std::int64_t rows, float* to, std::int64_t to_stride) {
  for (std::int64_t m = 0; m < rows; m += kWidth) {
    const int count = rows - m < kWidth ? (int)(rows - m) : kWidth;
    for (std::int64_t k = 0; k < depth; k += kWidth) {
      UintVector words[kWidth];
#pragma GCC unroll 16
      for (int n = 0; n < kWidth; ++n)
        words[n] =
            k + n < depth ? Packed<float>::along(from + (k + n) * stride + m, count) : UintVector{};
      transpose(words);
      for (int n = 0; n < count; ++n)
        Io<float>{kWidth}.store(to + (m + n) * to_stride + k, (FloatVector)words[n]);
    }
  }
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
PRNN_HD void ask_for_place(const float* c, std::int64_t columns) {
  for (std::int64_t n = 0; n < columns; n += kWidth) __builtin_prefetch(c + n, 1);
}

inline void multiply_block(const MatrixBlock& block) {
  const int vectors = (int)ceil_div(block.columns, kWidth), lanes = vectors * kWidth;
  Shape shape{};
  shape.hidden = block.columns;
  const Units columns{0, vectors, lanes, vectors, false};
  __builtin_memset(block.panel, 0, sizeof(float) * lanes);  // what the sums start from
  if (block.is_b_along_depth)
    pack_columns(shape, WeightColumns<float>{block.b, block.stride_b}, block.depth, columns,
                 block.panel + lanes);
  else
    pack_rows(shape, WeightRows<float>{block.b, block.stride_b}, block.depth, 1, columns,
              block.panel + lanes);

  const Products& product = kProducts<Widening<float>>;
  alignas(64) float products[kMaxRows * kMaxVectors * kWidth];
  const std::int64_t all = block.rows + (block.ones != nullptr ? 1 : 0);
  std::int64_t blocks = ceil_div(all, rows_in_registers(vectors));
  for (std::int64_t m = 0; m < all; --blocks) {
    const int count = (int)ceil_div(all - m, blocks);
    const float* rows[kMaxRows] = {};
    float* places[kMaxRows];
    for (int r = 0; r < count; ++r, ++m) {
      const bool is_row = m < block.rows;
      rows[r] = is_row ? block.a + m * block.stride_a : block.ones;
      places[r] = is_row ? block.c + m * block.stride_c : block.sums;
      ask_for_place(places[r], block.columns);
    }
    product.at[count][vectors](block.panel, rows, block.depth, products);
    for (int r = 0; r < count; ++r) put(products + r * lanes, places[r], block.columns, block.adds);
  }
}

}  // namespace prnn::PRNN_ISA
