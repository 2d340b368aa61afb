// Products of bfloat16 weights by tiles, AMX-BF16: for processors that have them, the rest of the
// engine being avx512's. Compiled with PRNN_ISA=amx_bf16, and for tests with tiles of C++.
//
// A micropanel is read where it lies: two k to a word is the order in which an instruction
// multiplies them. A tile of it is 16 lanes wide and 32 k deep, and what sums start from one whose
// rows are all the same. Sums are taken 32 k at a time, in the order of k, in whole tiles: of as
// many rows as the part of the batch, up to 16, where those that a block has not are of no
// consequence, and of a depth that ends in zeros.
#include <utility>

#include "cpu/io.h"
#include "cpu/matrix_block.h"
#include "cpu/product.h"
#include "cpu/tiles.h"

namespace prnn::PRNN_ISA {
namespace {

constexpr std::int64_t kTileFloats = kTileRows * kTileWords;
// Tiles, one above the other, whose rows are multiplied at once.
constexpr int kMostHigh = 2;
static_assert(kMaxRows == kMostHigh * kTileRows);
static_assert(kBfloat16Padding % kTileDepth == 0);

// Rows as tiles are loaded of them: in bytes from one to the next; in floats to the next kTileDepth
// numbers of a row, and to the rows of the second tile.
struct TileRows {
  const float* first;
  std::int64_t stride, next, second;
};

// Rows in tiles, side by side: kTileDepth numbers of each, then the next of each, zeros at the end.
PRNN_HD std::int64_t floats_in_tiles(std::int64_t depth) {
  return ceil_div(depth, kTileDepth) * kTileFloats;
}
PRNN_HD float* in_tiles(float* tiles, std::int64_t depth, int row, std::int64_t k) {
  return tiles + row / kTileRows * floats_in_tiles(depth) + k / kTileDepth * kTileFloats +
         row % kTileRows * kTileWords;
}
PRNN_HD TileRows tiles_of(const float* tiles, std::int64_t depth) {
  return {tiles, kTileBytes, kTileFloats, floats_in_tiles(depth)};
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
      __builtin_memcpy(in_tiles(tiles, depth, r, k), &both, sizeof both);
    }
}
// Of a row of bfloat16.
PRNN_HD void put_in_tiles(const Bfloat16* row, std::int64_t depth, float* tiles, int r) {
  for (std::int64_t k = 0; k < depth; k += kTileDepth) {
    float* const to = in_tiles(tiles, depth, r, k);
    if (depth - k < kTileDepth) __builtin_memset(to, 0, kTileBytes);
    __builtin_memcpy(to, row + k, 2 * min(depth - k, kTileDepth));
  }
}

// sums[v][h] += the h-th tile of rows times the slices of kVectors vectors, `depth` deep, from
// their v-th vector on. Of tiles of sums there are four at most: a micropanel of more is read in
// parts. Two of rows, times two of weights, wait for memory half as often as one times four.
template <int kHigh>
constexpr int kMostWide = 4 / kHigh;

template <int kVectors, int kFirst, int kCount, int kHigh>
PRNN_HD void add_products(TileRows rows, const float* slices, std::int64_t depth,
                          const float* tail) {
  static_assert(kCount <= kMostWide<kHigh>);
  constexpr std::int64_t kStride = kVectors * kTileBytes;
  const auto add = [&](const float* weights) __attribute__((always_inline)) {
    load_tile<4>(rows.first, rows.stride);
    if constexpr (kHigh == 2) {
      load_tile<5>(rows.first + rows.second, rows.stride);
      load_tile<6>(weights, kStride);
      add_tile_product<0, 4, 6>();
      add_tile_product<1, 5, 6>();
      if constexpr (kCount > 1) {
        load_tile<7>(weights + kTileWords, kStride);
        add_tile_product<2, 4, 7>();
        add_tile_product<3, 5, 7>();
      }
    } else {
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
    }
  };
  const float* weights = slices + kFirst * kTileWords;
  for (; depth >= kTileDepth; depth -= kTileDepth) {
    add(weights);
    rows.first += rows.next;
    weights += kVectors * kTileFloats;
  }
  if (depth > 0) add(tail + kFirst * kTileWords);
}

// f(n) for the tiles of sums.
template <int kCount, class F>
PRNN_HD void visit_sums(F&& f) {
  f(std::integral_constant<int, 0>{});
  if constexpr (kCount > 1) f(std::integral_constant<int, 1>{});
  if constexpr (kCount > 2) f(std::integral_constant<int, 2>{});
  if constexpr (kCount > 3) f(std::integral_constant<int, 3>{});
}

// Some depth of a product: sums start from where `start` says, and end at `end`; strides in bytes,
// to the next vector and to the second tile of rows in floats.
struct Sums {
  const float* start;
  std::int64_t start_stride, start_next, start_second;
  float* end;
  std::int64_t end_stride, end_next, end_second;
};
template <int kVectors, int kHigh>
PRNN_HD void multiply_tiles(const TileRows& rows, const float* slices, std::int64_t depth,
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
    visit_sums<kCount * kHigh>([&](auto n) __attribute__((always_inline)) {
      load_tile<n.value>(sums.start + (kFirst + n.value / kHigh) * sums.start_next +
                             n.value % kHigh * sums.start_second,
                         sums.start_stride);
    });
    add_products<kVectors, kFirst, kCount, kHigh>(rows, slices, depth, tail);
    visit_sums<kCount * kHigh>([&](auto n) __attribute__((always_inline)) {
      store_tile<n.value>(
          sums.end + (kFirst + n.value / kHigh) * sums.end_next + n.value % kHigh * sums.end_second,
          sums.end_stride);
    });
  };
  constexpr int kMost = kMostWide<kHigh>;
  const auto part_from = [&](auto first_vector) __attribute__((always_inline)) {
    constexpr int kFirst = first_vector.value, kLeft = kVectors - kFirst;
    if constexpr (kLeft > 0)
      part(first_vector, std::integral_constant < int, kLeft<kMost ? kLeft : kMost>{});
  };
  part_from(std::integral_constant<int, 0>{});
  part_from(std::integral_constant<int, kMost>{});
  if constexpr (2 * kMost < kMaxVectors) {
    part_from(std::integral_constant<int, 2 * kMost>{});
    part_from(std::integral_constant<int, 3 * kMost>{});
  }
}

// What products multiply. Each says how deep it goes at a time, and gives the rows of that depth.
constexpr std::int64_t kAllAtOnce = std::int64_t{1} << 40;  // more than there is

// Rows of float, in tiles some depth at a time.
struct OfFloats {
  static constexpr std::int64_t kDepth = 512;  // 32 KiB of tiles, on the stack; not fitted
  alignas(64) float tiles[kMostHigh * kDepth / kTileDepth * kTileFloats];
  std::int64_t most(const float* const*, int) const { return kDepth; }
  TileRows at(const float* const* rows, int count, std::int64_t first, std::int64_t depth) {
    const float* from[kMaxRows];
    for (int r = 0; r < count; ++r) from[r] = rows[r] + first;
    put_in_tiles(from, count, depth, tiles);
    return tiles_of(tiles, depth);
  }
};
// Rows of bfloat16 that end in zeros, a whole number of kTileDepth each: as they lie, if they fill
// tiles and lie equally far from each other.
struct OfBfloat16 {
  OfFloats copied;
  bool is_even;
  std::int64_t most(const float* const* rows, int count) {
    is_even = count % kTileRows == 0;
    for (int r = 2; r < count; ++r) is_even &= rows[r] - rows[r - 1] == rows[1] - rows[0];
    return is_even ? kAllAtOnce : OfFloats::kDepth;
  }
  TileRows at(const float* const* rows, int count, std::int64_t first, std::int64_t depth) {
    const std::int64_t words = count > 1 ? rows[1] - rows[0] : 0;
    if (is_even) return {rows[0] + first / 2, 4 * words, kTileWords, kTileRows * words};
    for (int r = 0; r < count; ++r)
      put_in_tiles((const Bfloat16*)rows[r] + first, depth, copied.tiles, r);
    return tiles_of(copied.tiles, depth);
  }
};
// Rows that are in tiles.
struct OfTiles {
  std::int64_t most(const float* const*, int) const { return kAllAtOnce; }
  TileRows at(const float* const* rows, int, std::int64_t, std::int64_t depth) {
    return tiles_of(rows[0], depth);
  }
  // A row of a matrix (cpu/matrix_block.h).
  static void put(const Bfloat16* row, std::int64_t depth, float* tiles, int r) {
    put_in_tiles(row, depth, tiles, r);
  }
};

template <class Rows, int kVectors, int kHigh>
[[gnu::noinline]] void product(const float* micropanel, const float* const* rows, int count,
                               std::int64_t depth, float* out, std::int64_t out_stride) {
  constexpr std::int64_t kLanes = kVectors * kTileWords, kSecond = kVectors * kTileFloats;
  alignas(64) float kept[kHigh * kSecond];
  Rows of_rows;
  const std::int64_t most = of_rows.most(rows, count);
  const bool is_whole = count == kHigh * kTileRows;
  Sums sums{micropanel, 0, kTileWords, 0, kept, kTileBytes, kTileFloats, kSecond};
  for (std::int64_t first = 0; first < depth || first == 0; first += most) {
    const std::int64_t some = min(depth - first, most);
    if (first > 0)
      sums = {kept, kTileBytes, kTileFloats, kSecond, kept, kTileBytes, kTileFloats, kSecond};
    if (is_whole && first + some == depth) {
      sums.end = out;
      sums.end_stride = 4 * out_stride;
      sums.end_next = kTileWords;
      sums.end_second = kTileRows * out_stride;
    }
    multiply_tiles<kVectors, kHigh>(of_rows.at(rows, count, first, some),
                                    micropanel + (1 + first / 2) * kLanes, some, sums);
  }
  if (is_whole) return;
  for (int r = 0; r < count; ++r)
    for (int v = 0; v < kVectors; ++v)
      __builtin_memcpy(
          out + r * out_stride + v * kTileWords,
          kept + r / kTileRows * kSecond + v * kTileFloats + r % kTileRows * kTileWords,
          kTileBytes);
}

template <class Rows, int kRows, int kVectors>
void product_of_rows(const float* micropanel, const float* const* rows, std::int64_t depth,
                     float* out, std::int64_t out_stride) {
  product<Rows, kVectors, kRows <= kTileRows ? 1 : 2>(micropanel, rows, kRows, depth, out,
                                                      out_stride);
}

std::int64_t prepare(const float** rows, int count, std::int64_t depth, float* place,
                     std::int64_t room) {
  const std::int64_t floats = ceil_div(count, kTileRows) * floats_in_tiles(depth);
  if (floats > room) return 0;
  put_in_tiles(rows, count, depth, place);
  for (int r = 0; r < count; ++r) rows[r] = place;
  return floats;
}

// All of a panel at once, so that rows of float are put in tiles as seldom as can be.
int all_vectors(int vectors, std::int64_t) { return vectors; }
int all_rows(int) { return kMaxRows; }

template <class Rows, int kRows, int... kVectors>
constexpr void fill_row(ProductsBySize& products) {
  ((products[kRows][kVectors] = product_of_rows<Rows, kRows, kVectors>), ...);
}
template <class Rows, int... kRows>
constexpr void fill_rows(ProductsBySize& products) {
  (fill_row<Rows, kRows + 1, 1, 2, 3, 4, 5, 6, 7, 8>(products), ...);
}
template <class Rows>
constexpr void fill(ProductsBySize& products) {
  [&]<int... kRows>(std::integer_sequence<int, kRows...>) {
    fill_rows<Rows, kRows...>(products);
  }(std::make_integer_sequence<int, kMaxRows>{});
}

constexpr Products make_tile_products() {
  Products out{};
  fill<OfFloats>(out.of_floats);
  fill<OfTiles>(out.of_prepared);
  fill<OfBfloat16>(out.of_bfloat16);
  out.prepare = prepare;
  out.vectors_at_once = all_vectors;
  out.rows_at_once = all_rows;
  out.begin_turn = begin_tiles;
  out.end_turn = end_tiles;
  out.are_of_bfloat16 = true;
  out.rows_of_tile = kTileRows;
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
