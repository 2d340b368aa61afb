// Tiles in C++, with the results of the processor's, for tests where it has none. What uses a tile
// before begin_tiles() ends the process there, as it would on a processor.
//
// TDPBF16PS as Intel's manual (volume 2) has it: of a row of sums, products with the first and with
// the second numbers of pairs are each summed in the order of k, from zero, by multiply-adds that
// round once; both are added, and then to what there is. Subnormal numbers are zeros, given or
// made; infinities and NaN are those of float.
#pragma once

namespace prnn::PRNN_ISA {

struct EmulatedTile {
  UintVector rows[kTileRows];
};
struct EmulatedTiles {
  int rows;  // of tiles of rows and sums; 0: there are no tiles
  EmulatedTile all[8];
};
inline thread_local EmulatedTiles emulated_tiles;

inline void begin_tiles(std::int64_t rows) {
  emulated_tiles = {(int)(rows < kTileRows ? rows : kTileRows), {}};
}
inline void end_tiles() { emulated_tiles.rows = 0; }

PRNN_HD int rows_of(int tile) { return tile < kTilesOfRows ? emulated_tiles.rows : kTileRows; }

PRNN_HD EmulatedTile& emulated_tile(int n) {
  if (emulated_tiles.rows == 0) __builtin_trap();
  return emulated_tiles.all[n];
}

PRNN_HD FloatVector without_subnormals(UintVector words) {
  const auto is_subnormal = (words & 0x7f800000) == 0;
  return (FloatVector)(is_subnormal ? words & 0x80000000 : words);
}
PRNN_HD FloatVector without_subnormals(FloatVector v) { return without_subnormals((UintVector)v); }

// Not inlined, as instructions are not: they are compiled once.
[[gnu::noinline]] inline void load_emulated(int tile, const char* first, std::int64_t stride) {
  EmulatedTile& to = emulated_tile(tile);
  for (int r = 0; r < rows_of(tile); ++r)
    __builtin_memcpy(&to.rows[r], first + r * stride, kTileBytes);
}
[[gnu::noinline]] inline void store_emulated(int tile, char* first, std::int64_t stride) {
  const EmulatedTile& from = emulated_tile(tile);
  for (int r = 0; r < rows_of(tile); ++r)
    __builtin_memcpy(first + r * stride, &from.rows[r], kTileBytes);
}
[[gnu::noinline]] inline void add_emulated(int of_sums, int of_a, int of_b) {
  EmulatedTile& sums = emulated_tile(of_sums);
  const EmulatedTile &a = emulated_tile(of_a), &b = emulated_tile(of_b);
  for (int m = 0; m < rows_of(of_sums); ++m) {
    FloatVector firsts{}, seconds{};
    for (int k = 0; k < kTileWords; ++k) {
      const UintVector pair = a.rows[m][k] - UintVector{};
      const auto add = [&](FloatVector& to, UintVector x, UintVector y) {
        to = without_subnormals(multiply_add(without_subnormals(x), without_subnormals(y), to));
      };
      add(firsts, pair << 16, b.rows[k] << 16);
      add(seconds, pair & 0xffff0000, b.rows[k] & 0xffff0000);
    }
    const FloatVector both = without_subnormals(firsts + seconds);
    sums.rows[m] = (UintVector)without_subnormals(without_subnormals(sums.rows[m]) + both);
  }
}

template <int kTile>
PRNN_HD void load_tile(const void* first, std::int64_t stride) {
  load_emulated(kTile, (const char*)first, stride);
}
template <int kTile>
PRNN_HD void store_tile(void* first, std::int64_t stride) {
  store_emulated(kTile, (char*)first, stride);
}
template <int kSums, int kA, int kB>
PRNN_HD void add_tile_product() {
  add_emulated(kSums, kA, kB);
}

}  // namespace prnn::PRNN_ISA
