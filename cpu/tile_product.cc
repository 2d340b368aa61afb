// Products of bfloat16 weights by tiles, AMX-BF16: for processors that have them, the rest of the
// engine being avx512's. Compiled with PRNN_ISA=amx_bf16, and for tests with tiles of C++.
//
// A micropanel is read where it lies: two k to a word is the order in which an instruction
// multiplies them. A tile of it is 16 lanes wide and 32 k deep, and what sums start from one whose
// rows are all the same. Sums are taken 32 k at a time, in the order of k, in whole tiles: of 16
// rows, where those that are not there are of no consequence, and of a depth that ends in zeros.
#include "cpu/io.h"
#include "cpu/matrix_block.h"
#include "cpu/product.h"
#include "cpu/tiles.h"

namespace prnn::PRNN_ISA {
namespace {

constexpr std::int64_t kTileFloats = kTileRows * kTileWords;

// Rows in tiles, side by side: kTileDepth numbers of each, then the next of each, zeros at the end.
PRNN_HD std::int64_t floats_in_tiles(std::int64_t depth) {
  return ceil_div(depth, kTileDepth) * kTileFloats;
}
PRNN_HD float* in_tiles(float* tiles, int row, std::int64_t k) {
  return tiles + k / kTileDepth * kTileFloats + row * kTileWords;
}

// Of rows of float, rounded to bfloat16, which they already are.
PRNN_HD void put_in_tiles(const float* const* rows, int count, std::int64_t depth, float* tiles) {
  for (int r = 0; r < count; ++r)
    for (std::int64_t k = 0; k < depth; k += kTileDepth) {
      const auto values = [&](std::int64_t from) __attribute__((always_inline)) {
        const std::int64_t left = depth - from;
        const Io<float> io{left < 0 ? 0 : left < kWidth ? (int)left : kWidth};
        return (__m512)io.load(rows[r] + from).v;
      };
      const auto both = _mm512_cvtne2ps_pbh(values(k + kWidth), values(k));
      __builtin_memcpy(in_tiles(tiles, r, k), &both, sizeof both);
    }
}

// sums[v] += rows in tiles times the slices of kVectors vectors, `depth` deep, from their v-th
// vector on. Four tiles of sums at most: a micropanel of more is read in two parts.
template <int kVectors, int kFirst, int kCount>
PRNN_HD void add_products(const float* tiles, const float* slices, std::int64_t depth,
                          const float* tail) {
  static_assert(kCount <= 4);
  constexpr std::int64_t kStride = kVectors * kTileBytes;
  const auto add = [&](const float* rows, const float* weights) __attribute__((always_inline)) {
    load_tile<4>(rows, kTileBytes);
    load_tile<5>(weights, kStride);
    add_tile_product<0, 4, 5>();
    if constexpr (kCount > 1) {
      load_tile<6>(weights + kTileWords, kStride);
      add_tile_product<1, 4, 6>();
    }
    if constexpr (kCount > 2) {
      load_tile<7>(weights + 2 * kTileWords, kStride);
      add_tile_product<2, 4, 7>();
    }
    if constexpr (kCount > 3) {
      load_tile<5>(weights + 3 * kTileWords, kStride);
      add_tile_product<3, 4, 5>();
    }
  };
  const float* weights = slices + kFirst * kTileWords;
  for (; depth >= kTileDepth; depth -= kTileDepth) {
    add(tiles, weights);
    tiles += kTileFloats;
    weights += kVectors * kTileFloats;
  }
  if (depth > 0) add(tiles, tail + kFirst * kTileWords);
}

// f(n) for the tiles of sums.
template <int kCount, class F>
PRNN_HD void visit_sums(F&& f) {
  f(std::integral_constant<int, 0>{});
  if constexpr (kCount > 1) f(std::integral_constant<int, 1>{});
  if constexpr (kCount > 2) f(std::integral_constant<int, 2>{});
  if constexpr (kCount > 3) f(std::integral_constant<int, 3>{});
}

// Some depth of a product: sums start from where `start` says, and end at `end`; strides in bytes.
struct Sums {
  const float* start;
  std::int64_t start_stride, start_next;  // to the next vector, in floats
  float* end;
  std::int64_t end_stride, end_next;
};
template <int kVectors>
PRNN_HD void multiply_tiles(const float* tiles, const float* slices, std::int64_t depth,
                            const Sums& sums) {
  // Slices end where they end: what lies behind is no zeros, which a product with zero might not
  // be.
  alignas(64) float tail[kVectors * kTileFloats];
  if (const std::int64_t left = depth % kTileDepth; left > 0) {
    const std::int64_t words = ceil_div(left, 2) * kVectors * kTileWords;
    __builtin_memcpy(tail, slices + depth / kTileDepth * kVectors * kTileFloats, 4 * words);
    __builtin_memset(tail + words, 0, sizeof tail - 4 * words);
  }
  const auto part = [&](auto first_vector, auto vectors) __attribute__((always_inline)) {
    constexpr int kFirst = first_vector.value, kCount = vectors.value;
    visit_sums<kCount>([&](auto n) __attribute__((always_inline)) {
      load_tile<n.value>(sums.start + (kFirst + n.value) * sums.start_next, sums.start_stride);
    });
    add_products<kVectors, kFirst, kCount>(tiles, slices, depth, tail);
    visit_sums<kCount>([&](auto n) __attribute__((always_inline)) {
      store_tile<n.value>(sums.end + (kFirst + n.value) * sums.end_next, sums.end_stride);
    });
  };
  constexpr int kFirstPart = kVectors < 4 ? kVectors : 4;
  part(std::integral_constant<int, 0>{}, std::integral_constant<int, kFirstPart>{});
  if constexpr (kVectors > kFirstPart)
    part(std::integral_constant<int, kFirstPart>{},
         std::integral_constant<int, kVectors - kFirstPart>{});
}

// What products multiply: rows of float, in tiles some depth at a time; or rows that are in tiles.
struct OfFloats {
  static constexpr std::int64_t kDepth = 512;  // 16 KiB of tiles, on the stack; not fitted
  alignas(64) float tiles[kDepth / kTileDepth * kTileFloats];
  const float* at(const float* const* rows, int count, std::int64_t first, std::int64_t depth) {
    const float* from[kTileRows];
    for (int r = 0; r < count; ++r) from[r] = rows[r] + first;
    put_in_tiles(from, count, depth, tiles);
    return tiles;
  }
};
struct OfTiles {
  static constexpr std::int64_t kDepth = std::int64_t{1} << 40;  // more than there is: all at once
  const float* at(const float* const* rows, int, std::int64_t, std::int64_t) { return rows[0]; }

  // A row of a matrix (cpu/matrix_block.h).
  static void put(const Bfloat16* row, std::int64_t depth, float* tiles, int r) {
    for (std::int64_t k = 0; k < depth; k += kTileDepth) {
      float* const to = in_tiles(tiles, r, k);
      if (depth - k < kTileDepth) __builtin_memset(to, 0, kTileBytes);
      __builtin_memcpy(to, row + k, 2 * min(depth - k, kTileDepth));
    }
  }
};

template <class Rows, int kVectors>
[[gnu::noinline]] void product(const float* micropanel, const float* const* rows, int count,
                               std::int64_t depth, float* out, std::int64_t out_stride) {
  constexpr std::int64_t kLanes = kVectors * kTileWords;
  alignas(64) float kept[kVectors * kTileFloats];
  Rows of_rows;
  Sums sums{micropanel, 0, kTileWords, kept, kTileBytes, kTileFloats};
  for (std::int64_t first = 0; first < depth || first == 0; first += Rows::kDepth) {
    const std::int64_t some = min(depth - first, Rows::kDepth);
    if (first > 0) sums = {kept, kTileBytes, kTileFloats, kept, kTileBytes, kTileFloats};
    if (count == kTileRows && first + some == depth) {
      sums.end = out;
      sums.end_stride = 4 * out_stride;
      sums.end_next = kTileWords;
    }
    multiply_tiles<kVectors>(of_rows.at(rows, count, first, some),
                             micropanel + (1 + first / 2) * kLanes, some, sums);
  }
  if (count == kTileRows) return;
  for (int r = 0; r < count; ++r)
    for (int v = 0; v < kVectors; ++v)
      __builtin_memcpy(out + r * out_stride + v * kTileWords,
                       kept + v * kTileFloats + r * kTileWords, kTileBytes);
}

template <class Rows, int kRows, int kVectors>
void product_of_rows(const float* micropanel, const float* const* rows, std::int64_t depth,
                     float* out, std::int64_t out_stride) {
  product<Rows, kVectors>(micropanel, rows, kRows, depth, out, out_stride);
}

std::int64_t prepare(const float** rows, int count, std::int64_t depth, float* place,
                     std::int64_t room) {
  const std::int64_t floats = floats_in_tiles(depth);
  if (floats > room) return 0;
  put_in_tiles(rows, count, depth, place);
  for (int r = 0; r < count; ++r) rows[r] = place;
  return floats;
}

// All of a panel at once, so that rows of float are put in tiles as seldom as can be.
int all_vectors(int vectors, std::int64_t) { return vectors; }
int all_rows(int) { return kTileRows; }
static_assert(kMaxRows == kTileRows);

template <class Rows, int kRows, int... kVectors>
constexpr void fill_row(ProductsBySize& products) {
  ((products[kRows][kVectors] = product_of_rows<Rows, kRows, kVectors>), ...);
}
template <class Rows, int... kRows>
constexpr void fill_rows(ProductsBySize& products) {
  (fill_row<Rows, kRows, 1, 2, 3, 4, 5, 6, 7, 8>(products), ...);
}
template <class Rows>
constexpr void fill(ProductsBySize& products) {
  fill_rows<Rows, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16>(products);
}

constexpr Products make_tile_products() {
  Products out{};
  fill<OfFloats>(out.of_floats);
  fill<OfTiles>(out.of_prepared);
  out.prepare = prepare;
  out.vectors_at_once = all_vectors;
  out.rows_at_once = all_rows;
  out.begin_turn = begin_tiles;
  out.end_turn = end_tiles;
  out.are_of_bfloat16 = true;
  return out;
}
// Of matrices' rows, which are all put in tiles.
constexpr Products make_matrix_products() {
  Products out = make_tile_products();
  fill<OfTiles>(out.of_floats);
  return out;
}
constexpr Products kMatrixProducts = make_matrix_products();

}  // namespace

extern const Products kTileProducts;
const Products kTileProducts = make_tile_products();

extern const MatrixFunctions kTileMatrices;
const MatrixFunctions kTileMatrices{transpose_rows<Bfloat16>,
                                    multiply_block<Bfloat16, OfTiles, kMatrixProducts>};

}  // namespace prnn::PRNN_ISA
