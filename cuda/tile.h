// The geometry of a block's work: which rows of the matrix it holds, where, and what that takes.
// Used by the kernels and, on the host, by the planner.
//
//   block   kWarps warps: `warps_m` of them side by side over the rows, the rest over k
//   warp    m_tiles tiles of 16 rows, n_tiles tiles of 8 batch rows; its blocks of k, every
//           warps_k()-th, the first register_blocks of them in registers, the others in shared
//           memory
//   panel   of a streamed tile: the rows that a block multiplies at a time. It has several, one
//           after the other in each step; k blocks for which shared memory has no room are read
//           from global memory each time
//   k block 64 bytes of published values: 32 of two bytes or 16 of four, 16 bytes to a lane
//   row     (unit, product), the products of a unit side by side: all gates of a unit in one block
#pragma once
#include <cstdint>
#include <span>

#include "core/portability.h"

namespace prnn {

enum class Exchange { kBlock, kCluster, kGrid };
enum class PassKind { kForward, kBackward };
enum class Number { kBfloat16, kFloat16, kTf32, kFloat32 };

inline constexpr int kWarps = 8, kThreads = 32 * kWarps;
inline constexpr int kKBlockBytes = 64;
inline constexpr int kGranuleBytes = 8;  // what is published by one store
inline constexpr int kMaxCluster = 16;   // blocks; 8 are portable, more a kernel must be allowed to

// Compile-time shape of a block's work.
struct Tile {
  int m_tiles, register_blocks, n_tiles, warps_m;
  // k blocks of values that a warp reads at a time (grid exchange), in registers too; plain calls
  // up to twice as many
  int ahead;

  // None in registers, which the panels of a block would have to share.
  PRNN_HD constexpr bool is_streamed() const { return register_blocks == 0; }
  PRNN_HD constexpr int sum_buffers() const { return is_streamed() ? 1 : 2; }
  PRNN_HD constexpr int warps_k() const { return kWarps / warps_m; }
  PRNN_HD constexpr int rows() const { return 16 * m_tiles * warps_m; }
  PRNN_HD constexpr int columns() const { return 8 * n_tiles; }  // batch rows at a time
  constexpr bool operator==(const Tile&) const = default;
};

PRNN_HD constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
PRNN_HD constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) {
  return ceil_div(a, b) * b;
}

PRNN_HD constexpr int value_bytes(Number number) {
  return number == Number::kBfloat16 || number == Number::kFloat16 ? 2 : 4;
}
// k blocks read at a time: a quarter of the tile's for float32 products, whose parts need
// registers; up to twice as many where none are needed for controls.
PRNN_HD constexpr int blocks_ahead(const Tile& tile, Number number, bool is_plain) {
  if (number == Number::kFloat32) return (tile.ahead + 3) / 4;
  const int twice = 2 * tile.ahead < tile.register_blocks ? 2 * tile.ahead : tile.register_blocks;
  const bool fits = tile.ahead > 1 && twice * tile.n_tiles <= 8;
  return is_plain && fits ? twice : tile.ahead;
}
// Units whose published values make one granule.
PRNN_HD constexpr int granule_units(Number number) { return kGranuleBytes / value_bytes(number); }

// Hidden units per block: whole granules.
PRNN_HD constexpr int units_per_block(const Tile& tile, int products, Number number) {
  return tile.rows() / products / granule_units(number) * granule_units(number);
}
// Units per row of the exchanged values: a multiple of 16 bytes, so that fragments are aligned.
// Where hidden is one already, the exchanged values are the output itself.
PRNN_HD constexpr std::int64_t padded_hidden(std::int64_t hidden, Number number) {
  return round_up(hidden, 16 / value_bytes(number));
}
// Blocks of k of each warp, where `depth` published values are multiplied.
PRNN_HD constexpr int k_blocks(const Tile& tile, std::int64_t depth, Number number) {
  return static_cast<int>(ceil_div(depth * value_bytes(number), kKBlockBytes * tile.warps_k()));
}

// Of a streamed tile.
struct Panels {
  int count = 1;    // of a block
  int held = 0;     // k blocks of all of them that a warp has in shared memory
  int carried = 0;  // floats that each panel's units carry from step to step, there, too

  // Of a panel the first so many k blocks are held.
  PRNN_HD constexpr int held_of(int panel) const {
    return held / count + (panel < held % count ? 1 : 0);
  }
  // By the panels before it.
  PRNN_HD constexpr int held_before(int panel) const {
    return panel * (held / count) + (panel < held % count ? panel : held % count);
  }
};
PRNN_HD constexpr int elements_per_thread(const Tile& tile, int units) {
  return static_cast<int>(ceil_div(units * tile.columns(), kThreads));
}

// What lies where in a block's shared memory, in bytes from its start.
struct SharedLayout {
  std::int64_t barriers;  // two mbarriers (cluster exchange)
  std::int64_t bias;      // float [panels][rows]
  std::int64_t carries;   // float [panels][elements][kThreads][states] (streamed)
  std::int64_t weights;   // fragments that are not in registers; scratch while loading
  std::int64_t sums;      // float [2 parities, or 1][warps_k][columns][rows + 4]
  std::int64_t values;    // [2 parities][columns][pitch]: published values (block and cluster)
  std::int64_t pitch;     // bytes
  std::int64_t bytes;     // of all

  // Fragments of one k block of one warp.
  PRNN_HD static constexpr std::int64_t k_block_bytes(const Tile& tile) {
    return 2 * tile.m_tiles * 32 * 16;
  }
  PRNN_HD static constexpr SharedLayout of(const Tile& tile, Exchange exchange, std::int64_t depth,
                                           Number number, const Panels& panels = {}) {
    const std::int64_t in_shared =
        tile.is_streamed() ? panels.held : k_blocks(tile, depth, number) - tile.register_blocks;
    // One k block per warp at least: weights pass through it on their way to where they stay.
    const std::int64_t resident = in_shared > 1 ? in_shared : 1;
    SharedLayout out{};
    out.bias = 128;
    out.carries = round_up(out.bias + std::int64_t{4} * panels.count * tile.rows(), 128);
    out.weights = round_up(out.carries + std::int64_t{4} * panels.count * panels.carried, 128);
    out.sums = out.weights + kWarps * resident * k_block_bytes(tile);
    const std::int64_t sum_bytes =
        4 * tile.sum_buffers() * tile.warps_k() * tile.columns() * (tile.rows() + 4);
    out.values = round_up(out.sums + sum_bytes, 128);
    // An odd multiple of 64 bytes: the eight rows that a warp reads lie in different banks.
    out.pitch = round_up(depth * value_bytes(number), 128) + 64;
    const bool in_values = exchange != Exchange::kGrid;
    out.bytes = out.values + (in_values ? 2 * tile.columns() * out.pitch : 0);
    return out;
  }
};

// What is compiled for a pass with so many products per unit (forward, the cell's gates; backward,
// one). Chosen so that weights fill the registers without a spill (the table in cuda/README.md),
// and rows fill the tiles: 16 rows are 4 units of 4 gates, 48 rows are 16 units of 3.
struct Instance {
  Exchange exchange;
  Tile tile;
  constexpr bool operator==(const Instance&) const = default;
};
inline constexpr Instance kOneProduct[] = {
    {Exchange::kGrid, {1, 16, 1, 1, 8}}, {Exchange::kGrid, {2, 10, 1, 1, 5}},
    {Exchange::kGrid, {2, 8, 2, 1, 2}},  {Exchange::kCluster, {2, 10, 1, 1, 1}},
    {Exchange::kBlock, {1, 8, 1, 8, 1}}, {Exchange::kGrid, {2, 0, 2, 1, 1}},
    {Exchange::kGrid, {2, 0, 1, 1, 1}},
};
inline constexpr Instance kThreeProducts[] = {
    {Exchange::kGrid, {3, 6, 1, 1, 6}},  {Exchange::kGrid, {4, 5, 1, 1, 4}},
    {Exchange::kGrid, {3, 5, 2, 1, 3}},  {Exchange::kCluster, {3, 6, 1, 2, 1}},
    {Exchange::kBlock, {3, 6, 1, 8, 1}}, {Exchange::kGrid, {3, 0, 2, 1, 1}},
    {Exchange::kGrid, {3, 0, 1, 1, 1}},
};
inline constexpr Instance kFourProducts[] = {
    {Exchange::kGrid, {2, 8, 1, 1, 5}},  {Exchange::kGrid, {4, 4, 1, 1, 4}},
    {Exchange::kGrid, {4, 3, 2, 1, 3}},  {Exchange::kCluster, {4, 5, 1, 2, 1}},
    {Exchange::kBlock, {4, 3, 1, 8, 1}}, {Exchange::kGrid, {4, 0, 2, 1, 1}},
    {Exchange::kGrid, {4, 0, 1, 1, 1}},
};
// For a cell of few users: one of each exchange, for the grid that which holds the largest layers.
inline constexpr Instance kOneProductFewUsers[] = {
    {Exchange::kGrid, {1, 16, 1, 1, 8}}, {Exchange::kCluster, {2, 10, 1, 1, 1}},
    {Exchange::kBlock, {1, 8, 1, 8, 1}}, {Exchange::kGrid, {2, 0, 2, 1, 1}},
    {Exchange::kGrid, {2, 0, 1, 1, 1}},
};
inline constexpr Instance kThreeProductsFewUsers[] = {
    {Exchange::kGrid, {3, 6, 1, 1, 6}},  {Exchange::kCluster, {3, 6, 1, 2, 1}},
    {Exchange::kBlock, {3, 6, 1, 8, 1}}, {Exchange::kGrid, {3, 0, 2, 1, 1}},
    {Exchange::kGrid, {3, 0, 1, 1, 1}},
};
inline constexpr Instance kFourProductsFewUsers[] = {
    {Exchange::kGrid, {4, 4, 1, 1, 4}},  {Exchange::kCluster, {4, 5, 1, 2, 1}},
    {Exchange::kBlock, {4, 3, 1, 8, 1}}, {Exchange::kGrid, {4, 0, 2, 1, 1}},
    {Exchange::kGrid, {4, 0, 1, 1, 1}},
};
// For the layers of a stack, all of which the chip holds.
inline constexpr Instance kOneProductOfStack[] = {
    {Exchange::kGrid, {1, 16, 1, 1, 8}},
    {Exchange::kGrid, {2, 8, 1, 1, 4}},
    {Exchange::kGrid, {2, 6, 2, 1, 2}},
};
inline constexpr Instance kFourProductsOfStack[] = {
    {Exchange::kGrid, {4, 4, 1, 1, 4}},
    {Exchange::kGrid, {4, 4, 1, 2, 4}},
    {Exchange::kGrid, {4, 3, 2, 2, 3}},
};
constexpr std::span<const Instance> instances_of_stack(int products) {
  if (products == 1) return kOneProductOfStack;
  if (products == 4) return kFourProductsOfStack;
  return {};
}
constexpr std::span<const Instance> instances(int products, bool has_few_users) {
  switch (products) {
    case 1:
      return has_few_users ? std::span<const Instance>(kOneProductFewUsers) : kOneProduct;
    case 3:
      return has_few_users ? std::span<const Instance>(kThreeProductsFewUsers) : kThreeProducts;
    case 4:
      return has_few_users ? std::span<const Instance>(kFourProductsFewUsers) : kFourProducts;
  }
  return {};
}

// For a cell whose step is two products: with its two phases, a step needs more registers.
inline constexpr Instance kThreeProductsOfPhases[] = {
    {Exchange::kGrid, {3, 5, 1, 1, 5}},  {Exchange::kCluster, {3, 6, 1, 2, 1}},
    {Exchange::kBlock, {3, 5, 1, 8, 1}}, {Exchange::kGrid, {3, 0, 2, 1, 1}},
    {Exchange::kGrid, {3, 0, 1, 1, 1}},
};
constexpr std::span<const Instance> instances_of_phases(int products) {
  if (products == 3) return kThreeProductsOfPhases;
  return instances(products, true);
}
// For a cell with layer norm inside of its step, whose blocks tell each other of their rows through
// global memory.
inline constexpr Instance kOneProductOfNorms[] = {{Exchange::kGrid, {1, 8, 1, 1, 4}}};
inline constexpr Instance kThreeProductsOfNorms[] = {{Exchange::kGrid, {3, 4, 1, 1, 4}}};
inline constexpr Instance kFourProductsOfNorms[] = {{Exchange::kGrid, {4, 2, 1, 1, 2}}};
constexpr std::span<const Instance> instances_of_norms(int products) {
  if (products == 1) return kOneProductOfNorms;
  return products == 3 ? kThreeProductsOfNorms : std::span<const Instance>(kFourProductsOfNorms);
}
// Blocks of a launch of it, of all teams, at most: the workspace is for so many.
inline constexpr int kMostBlocksOfNorms = 256;

// float32 products, each three of TF32, leave no registers for a second tile of columns, nor for a
// GRU's four tiles of rows. A streamed tile has as many columns as there is room for: one reading
// of the weights is for all of them.
constexpr bool is_compiled(const Instance& instance, Number number) {
  const Tile& tile = instance.tile;
  if (number == Number::kFloat32) return tile.n_tiles == 1 && tile != Tile{4, 5, 1, 1, 4};
  return !tile.is_streamed() || tile.n_tiles > 1;
}
// Streamed ones have the same rows, whatever their columns.
constexpr Tile streamed_tile(int products) {
  for (const Instance& instance : instances(products, true))
    if (instance.tile.is_streamed()) return instance.tile;
  return {};
}
constexpr bool have_equal_rows(std::span<const Instance> list, const Tile& tile) {
  for (const Instance& instance : list)
    if (instance.tile.is_streamed() && instance.tile.rows() != tile.rows()) return false;
  return tile.rows() > 0;
}
static_assert(have_equal_rows(kOneProduct, streamed_tile(1)) &&
              have_equal_rows(kOneProductFewUsers, streamed_tile(1)));
static_assert(have_equal_rows(kThreeProducts, streamed_tile(3)) &&
              have_equal_rows(kThreeProductsFewUsers, streamed_tile(3)));
static_assert(have_equal_rows(kThreeProductsOfPhases, streamed_tile(3)));
static_assert(have_equal_rows(kFourProducts, streamed_tile(4)) &&
              have_equal_rows(kFourProductsFewUsers, streamed_tile(4)));

// Panels of all blocks.
PRNN_HD constexpr std::int64_t panels_of(const Tile& tile, int products, std::int64_t padded,
                                         Number number) {
  return ceil_div(padded, units_per_block(tile, products, number));
}

}  // namespace prnn
