// Tiles: registers of 16 rows of 64 bytes, and the instructions of AMX-BF16 for them. Tiles of rows
// and sums, 0 to 4, are configured as high as is asked for: eight rows and fewer are multiplied in
// 10 cycles instead of 16. What a row's sums are does not depend on the rows beside it.
//
// A thread has no tiles but between begin_tiles() and end_tiles(): who else computes on it
// configures them otherwise, and a thread that holds some takes longer to be switched.
//
// In assembly, for GCC's intrinsics do not say that they read and write memory: stores to what a
// tile is loaded from went missing. Compilers put nothing in these registers by themselves.
#pragma once
#include "cpu/half.h"

namespace prnn::PRNN_ISA {

inline constexpr int kTileRows = 16, kTileBytes = 64;  // of each row
inline constexpr int kTileWords = kTileBytes / 4;
inline constexpr int kTilesOfRows = 5;             // 0 to 4; the others hold weights, or 16 rows
inline constexpr int kTileDepth = 2 * kTileWords;  // numbers of bfloat16 in a row
static_assert(kTileWords == kWidth);

}  // namespace prnn::PRNN_ISA

#if defined(PRNN_EMULATES_TILES)
#include "cpu/emulated_tiles.h"
#else
namespace prnn::PRNN_ISA {

// As LDTILECFG reads it.
struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  explicit TileConfiguration(std::uint8_t count) {
    for (int n = 0; n < 8; ++n) {
      row_bytes[n] = kTileBytes;
      rows[n] = n < kTilesOfRows ? count : kTileRows;
    }
  }
};
static_assert(sizeof(TileConfiguration) == 64);

inline void begin_tiles(std::int64_t rows) {
  const TileConfiguration wanted((std::uint8_t)(rows < kTileRows ? rows : kTileRows));
  asm volatile("ldtilecfg %0" : : "m"(wanted));
}
inline void end_tiles() { asm volatile("tilerelease"); }

// Rows that lie so many bytes apart; 0: each the same.
template <int kTile>
PRNN_HD void load_tile(const void* first, std::int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(first), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
PRNN_HD void store_tile(void* first, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(first), "r"(stride), "i"(kTile) : "memory");
}
// TDPBF16PS: sums[m][n] += Σ_k a[m][k] b[k][n], of two bfloat16 in each word of a and b.
template <int kSums, int kA, int kB>
PRNN_HD void add_tile_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}

}  // namespace prnn::PRNN_ISA
#endif
