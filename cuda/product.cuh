// The product of a block's resident weights with the published values.
//
// mma.sync wants A, 16 rows by k, in registers in a given order. That order is free in k as long as
// B has the same one: lane t (of the four that share a row) takes the 16 consecutive bytes t of a k
// block, so that a fragment of B is one aligned 16-byte load from where the values lie.
#pragma once
#include "cuda/number.h"

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

template <Number kNumber, Tile kTile, int kProducts>
class Weights {
 public:
  using Value = typename Format<kNumber>::Value;
  static constexpr int kUnits = units_per_block(kTile, kProducts, kNumber);
  using Sums = float[kTile.m_tiles][kTile.n_tiles][4];

  PRNN_DEVICE Weights(const Place& place, const SharedLayout& layout, std::int64_t depth)
      : place_(place) {
    const int blocks = static_cast<int>(ceil_div(depth * sizeof(Value), kKBlockBytes));
    k_blocks_ = (blocks - place.warp_k + kTile.warps_k() - 1) / kTile.warps_k();
    const int all = k_blocks(kTile, depth, kNumber);
    const int in_shared = all > kTile.register_blocks ? all - kTile.register_blocks : 1;
    const int warp = place.thread / 32;
    shared_ = reinterpret_cast<ptx::Word4*>(ptx::shared() + static_cast<int>(layout.weights)) +
              warp * in_shared * kFragments;
  }

  // Reads the rows of units [first, first + kUnits) of group g. All warps at once.
  template <class Pass>
  PRNN_DEVICE void load(const Pass& pass, std::int64_t padded, int g, int first) {
#pragma unroll
    for (int k = 0; k < kTile.register_blocks; ++k) {
      if (k < k_blocks_) stage(pass, padded, g, first, k, shared_);
      ptx::bar_warp_sync();  // other lanes wrote what this one reads
#pragma unroll
      for (int m = 0; m < kTile.m_tiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          registers_[m][k][half] =
              k < k_blocks_ ? shared_[fragment(m, half)] : ptx::Word4{0, 0, 0, 0};
      ptx::bar_warp_sync();  // and read it before the next is written
    }
#pragma unroll 1
    for (int k = kTile.register_blocks; k < k_blocks_; ++k)
      stage(pass, padded, g, first, k, shared_ + (k - kTile.register_blocks) * kFragments);
    ptx::bar_warp_sync();
  }

  // sums += weights · values, where values.load(n, k) is this lane's part of k block k of column
  // `row` of the n-th eight columns, and values.wait(...) returns once those loaded have arrived.
  template <class Values>
  PRNN_DEVICE void multiply(const Values& values, Sums& sums) const {
    constexpr int kAhead =
        Values::kAhead < kTile.register_blocks ? Values::kAhead : kTile.register_blocks;
#pragma unroll
    for (int first = 0; first < kTile.register_blocks; first += kAhead) {
      if (first >= k_blocks_) break;
      ptx::Word4 b[kAhead][kTile.n_tiles];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) values.load(b[i], position(first + i));
      values.wait(b, position(first), kTile.warps_k());
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (first + i < kTile.register_blocks && first + i < k_blocks_)
#pragma unroll
          for (int m = 0; m < kTile.m_tiles; ++m)
            multiply_block(registers_[m][first + i], b[i], sums[m]);
    }
    multiply_shared(values, sums);
  }

 private:
  static constexpr int kFragments = 2 * kTile.m_tiles * 32;  // of 16 bytes, per k block
  static constexpr int kPerWord = 4 / sizeof(Value), kPerLane = 4 * kPerWord;

  PRNN_DEVICE int fragment(int m, int half) const { return (2 * m + half) * 32 + place_.lane; }
  // Number, among all k blocks, of this warp's k-th.
  PRNN_DEVICE int position(int k) const { return place_.warp_k + k * kTile.warps_k(); }

  PRNN_DEVICE static void multiply_block(const ptx::Word4 (&a)[2],
                                         const ptx::Word4 (&b)[kTile.n_tiles],
                                         float (&sums)[kTile.n_tiles][4]) {
#pragma unroll
    for (int n = 0; n < kTile.n_tiles; ++n) {
      Format<kNumber>::multiply(sums[n], a[0], b[n].x, b[n].y);
      Format<kNumber>::multiply(sums[n], a[1], b[n].z, b[n].w);
    }
  }

  // The k blocks whose weights lie in shared memory; each block's values are read one ahead.
  template <class Values>
  PRNN_DEVICE void multiply_shared(const Values& values, Sums& sums) const {
    if (k_blocks_ <= kTile.register_blocks) return;
    ptx::Word4 next[1][kTile.n_tiles];
    values.load(next[0], position(kTile.register_blocks));
    const ptx::Word4* from = shared_ + place_.lane;
#pragma unroll 1
    for (int k = kTile.register_blocks; k < k_blocks_; ++k, from += kFragments) {
      ptx::Word4 b[1][kTile.n_tiles];
#pragma unroll
      for (int n = 0; n < kTile.n_tiles; ++n) b[0][n] = next[0][n];
      if (k + 1 < k_blocks_) values.load(next[0], position(k + 1));
      values.wait(b, position(k), 0);
#pragma unroll
      for (int m = 0; m < kTile.m_tiles; ++m) {
        const ptx::Word4 a[2] = {from[2 * m * 32], from[(2 * m + 1) * 32]};
        multiply_block(a, b[0], sums[m]);
      }
    }
  }

  // Writes k block k of this warp's rows in fragment order. Neighbouring lanes read neighbouring
  // elements of the matrix.
  template <class Pass>
  PRNN_DEVICE void stage(const Pass& pass, std::int64_t padded, int g, int first, int k,
                         ptx::Word4* to) const {
    constexpr int kRows = 16 * kTile.m_tiles, kDepth = 4 * kPerLane;
    const int unit_end =
        static_cast<int>(pass.shape.hidden - first < kUnits ? pass.shape.hidden - first : kUnits);
#pragma unroll 1
    for (int e = place_.lane; e < kRows * kDepth; e += 32) {
      const int row = Pass::kUnitsContiguous ? e % kRows : e / kDepth;
      const int at = Pass::kUnitsContiguous ? e / kRows : e % kDepth;  // in the k block
      const int block_row = place_.warp_m * kRows + row;
      const int unit = block_row / kProducts, product = block_row % kProducts;
      const std::int64_t exchanged = static_cast<std::int64_t>(position(k)) * kDepth + at;
      const std::int64_t value = exchanged / padded, from = exchanged % padded;
      Value weight{};
      if (unit < unit_end && value < Pass::kPublished && from < pass.shape.hidden)
        weight = pass.weight(g, 0, first + unit, product, value * pass.shape.hidden + from);

      const int m = row / 16, part = at / kPerLane, word = at % kPerLane / kPerWord;
      const int lane = row % 8 * 4 + part, component = word % 2 * 2 + row % 16 / 8;
      char* slot = reinterpret_cast<char*>(to + (2 * m + word / 2) * 32 + lane) + 4 * component;
      if constexpr (kPerWord == 1) weight = Format<kNumber>::resident(weight);
      __builtin_memcpy(slot + at % kPerWord * sizeof weight, &weight, sizeof weight);
    }
  }

  Place place_;
  int k_blocks_;        // of this warp
  ptx::Word4* shared_;  // this warp's fragments in shared memory
  ptx::Word4 registers_[kTile.m_tiles][kTile.register_blocks][2];
};

}  // namespace prnn
