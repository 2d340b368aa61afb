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
  bool are_there;
  EmulatedTile all[8];
};
inline thread_local EmulatedTiles emulated_tiles;

inline void begin_tiles() { emulated_tiles = {true, {}}; }
inline void end_tiles() { emulated_tiles.are_there = false; }

PRNN_HD EmulatedTile& emulated_tile(int n) {
  if (!emulated_tiles.are_there) __builtin_trap();
  return emulated_tiles.all[n];
}

template <int kTile>
PRNN_HD void load_tile(const void* first, std::int64_t stride) {
  EmulatedTile& tile = emulated_tile(kTile);
  for (int r = 0; r < kTileRows; ++r)
    __builtin_memcpy(&tile.rows[r], (const char*)first + r * stride, kTileBytes);
}
template <int kTile>
PRNN_HD void store_tile(void* first, std::int64_t stride) {
  const EmulatedTile& tile = emulated_tile(kTile);
  for (int r = 0; r < kTileRows; ++r)
    __builtin_memcpy((char*)first + r * stride, &tile.rows[r], kTileBytes);
}

PRNN_HD FloatVector without_subnormals(UintVector words) {
  const auto is_subnormal = (words & 0x7f800000) == 0;
  return (FloatVector)(is_subnormal ? words & 0x80000000 : words);
}
PRNN_HD FloatVector without_subnormals(FloatVector v) { return without_subnormals((UintVector)v); }

template <int kSums, int kA, int kB>
PRNN_HD void add_tile_product() {
  EmulatedTile& sums = emulated_tile(kSums);
  const EmulatedTile &a = emulated_tile(kA), &b = emulated_tile(kB);
  for (int m = 0; m < kTileRows; ++m) {
    FloatVector firsts{}, seconds{};
    for (int k = 0; k < kTileWords; ++k) {
      const UintVector pair = a.rows[m][k] - UintVector{};
      const auto add = [&](FloatVector& to, UintVector of_a, UintVector of_b) {
        to = without_subnormals(
            multiply_add(without_subnormals(of_a), without_subnormals(of_b), to));
      };
      add(firsts, pair << 16, b.rows[k] << 16);
      add(seconds, pair & 0xffff0000, b.rows[k] & 0xffff0000);
    }
    const FloatVector both = without_subnormals(firsts + seconds);
    sums.rows[m] = (UintVector)without_subnormals(without_subnormals(sums.rows[m]) + both);
  }
}

}  // namespace prnn::PRNN_ISA
