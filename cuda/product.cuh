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
  struct Fragments {  // of 16 rows and one k block
    ptx::Word4 half[2];
  };

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
  PRNN_DEVICE void load(const Pass& pass, int padded, int g, int first) {
    // Undefined values would let nvcc 13.0 take all blocks' for those of the last.
#pragma unroll
    for (int m = 0; m < kTile.m_tiles; ++m)
#pragma unroll
      for (int r = 0; r < kTile.register_blocks; ++r) registers_[m][r] = {};
#pragma unroll 1
    for (int k = 0; k < k_blocks_; ++k) {
      const int in_shared = k < kTile.register_blocks ? 0 : k - kTile.register_blocks;
      stage(pass, padded, g, first, k, shared_ + in_shared * kFragments);
      ptx::bar_warp_sync();  // other lanes wrote what this one reads
#pragma unroll
      for (int r = 0; r < kTile.register_blocks; ++r)  // registers have no index at run time
        if (r == k)
#pragma unroll
          for (int m = 0; m < kTile.m_tiles; ++m)
            registers_[m][r] = {shared_[fragment(m, 0)], shared_[fragment(m, 1)]};
      ptx::bar_warp_sync();  // and read it before the next is written
    }
  }

  // sums += weights · values, where values.load(b, n) reads this lane's part of k block n of all
  // columns, and values.wait(b, ...) returns once those loaded have arrived, in step s.
  template <class Values>
  PRNN_DEVICE void multiply(const Values& values, int s, Sums& sums) const {
    const int in_registers = k_blocks_ < kTile.register_blocks ? k_blocks_ : kTile.register_blocks;
#pragma unroll
    for (int first = 0; first < kTile.register_blocks; first += kAhead) {
      if (first >= in_registers) break;
      multiply_blocks(values, s, sums, first, in_registers,
                      [&](int m, int i) { return registers_[m][first + i]; });
    }
#pragma unroll 1
    for (int first = kTile.register_blocks; first < k_blocks_; first += kAhead) {
      const ptx::Word4* from = shared_ + (first - kTile.register_blocks) * kFragments;
      multiply_blocks(values, s, sums, first, k_blocks_, [&](int m, int i) {
        const ptx::Word4* of_tile = from + i * kFragments + fragment(m, 0);
        return Fragments{of_tile[0], of_tile[32]};
      });
    }
  }

 private:
  static constexpr int kFragments = 2 * kTile.m_tiles * 32;  // of 16 bytes, per k block
  static constexpr int kAhead = blocks_ahead(kTile, kNumber);
  static constexpr int kPerWord = 4 / sizeof(Value), kPerLane = 4 * kPerWord;

  PRNN_DEVICE int fragment(int m, int half) const { return (2 * m + half) * 32 + place_.lane; }
  // Number, among all k blocks, of this warp's k-th.
  PRNN_DEVICE int position(int k) const { return place_.warp_k + k * kTile.warps_k(); }

  // kAhead k blocks from the first, or to the end: all values are on their way before one of them
  // is waited for.
  template <class Values, class WeightsOf>
  PRNN_DEVICE void multiply_blocks(const Values& values, int s, Sums& sums, int first, int end,
                                   WeightsOf weights_of) const {
    ptx::Word4 b[kAhead][kTile.n_tiles] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (first + i < end) values.load(b[i], position(first + i));
    values.wait(b, position(first), kTile.warps_k(), s);
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (first + i < end)
#pragma unroll
        for (int m = 0; m < kTile.m_tiles; ++m) {
          const Fragments a = weights_of(m, i);
#pragma unroll
          for (int n = 0; n < kTile.n_tiles; ++n) {
            Format<kNumber>::multiply(sums[m][n], a.half[0], b[i][n].x, b[i][n].y);
            Format<kNumber>::multiply(sums[m][n], a.half[1], b[i][n].z, b[i][n].w);
          }
        }
  }

  // Writes k block k of this warp's rows in fragment order. Neighbouring lanes read neighbouring
  // elements of the matrix.
  template <class Pass>
  PRNN_DEVICE void stage(const Pass& pass, int padded, int g, int first, int k,
                         ptx::Word4* to) const {
    constexpr int kRows = 16 * kTile.m_tiles, kDepth = 4 * kPerLane;
    const auto row_of = [](int e) { return Pass::kUnitsContiguous ? e % kRows : e / kDepth; };
    const auto depth_of = [](int e) { return Pass::kUnitsContiguous ? e / kRows : e % kDepth; };
    const int unit_end =
        static_cast<int>(pass.shape.hidden - first < kUnits ? pass.shape.hidden - first : kUnits);
    constexpr int kBatch = 4;  // on their way at a time, from memory
#pragma unroll 1
    for (int e = place_.lane; e < kRows * kDepth; e += 32 * kBatch) {
      Value weights[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int row = row_of(e + 32 * i), block_row = place_.warp_m * kRows + row;
        const int unit = block_row / kProducts, product = block_row % kProducts;
        const int exchanged = position(k) * kDepth + depth_of(e + 32 * i);
        const int value = exchanged / padded, from = exchanged % padded;
        weights[i] = {};
        if (unit < unit_end && value < Pass::kPublished && from < pass.shape.hidden)
          weights[i] = pass.weight(g, 0, first + unit, product, value * pass.shape.hidden + from);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int row = row_of(e + 32 * i), at = depth_of(e + 32 * i);
        const int m = row / 16, part = at / kPerLane, word = at % kPerLane / kPerWord;
        const int lane = row % 8 * 4 + part, component = word % 2 * 2 + row % 16 / 8;
        char* slot = reinterpret_cast<char*>(to + (2 * m + word / 2) * 32 + lane) + 4 * component;
        const Value weight = Format<kNumber>::resident(weights[i]);
        __builtin_memcpy(slot + at % kPerWord * sizeof weight, &weight, sizeof weight);
      }
    }
  }

  Place place_;
  int k_blocks_;        // of this warp
  ptx::Word4* shared_;  // this warp's fragments in shared memory
  // Room for whole groups of kAhead; what lies beyond the last block is not used.
  Fragments registers_[kTile.m_tiles][round_up(kTile.register_blocks, kAhead)];
};

}  // namespace prnn
