// The product of a block's resident weights with the published values.
#pragma once
#include "cuda/weights.cuh"

namespace prnn {

// How many of so many k blocks a warp has.
PRNN_DEVICE int of_warp(const Tile& tile, int k_blocks, int warp_k) {
  return (k_blocks - warp_k + tile.warps_k() - 1) / tile.warps_k();
}
// A warp's part of the sums, in the order of mma.sync.
template <Tile kTile>
using Sums = float[kTile.m_tiles][kTile.n_tiles][4];

// Sums of products of a warp, k block after k block. Products that wait for no other: where there
// are few tiles, the halves of a k block apart.
template <Number kNumber, Tile kTile, bool kIsPlain>
class Products {
 public:
  // Of the m-th tile of rows with all columns.
  PRNN_DEVICE void add(int m, const Fragments& weights, const ptx::Word4 (&values)[kTile.n_tiles]) {
#pragma unroll
    for (int n = 0; n < kTile.n_tiles; ++n)
      Format<kNumber>::multiply(chains_[0][m][n], weights.half[0], values[n].x, values[n].y);
#pragma unroll
    for (int n = 0; n < kTile.n_tiles; ++n)
      Format<kNumber>::multiply(chains_[kChains - 1][m][n], weights.half[1], values[n].z,
                                values[n].w);
  }
  PRNN_DEVICE void sum(Sums<kTile>& sums) const {
#pragma unroll
    for (int m = 0; m < kTile.m_tiles; ++m)
#pragma unroll
      for (int n = 0; n < kTile.n_tiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sums[m][n][e] = chains_[0][m][n][e];
          if constexpr (kChains == 2) sums[m][n][e] += chains_[1][m][n][e];
        }
  }

 private:
  static constexpr int kChains = kTile.m_tiles * kTile.n_tiles <= (kIsPlain ? 2 : 1) ? 2 : 1;
  float chains_[kChains][kTile.m_tiles][kTile.n_tiles][4] = {};
};

template <Number kNumber, Tile kTile, bool kIsPlain>
class Weights {
 public:
  using Value = typename Format<kNumber>::Value;

  template <class Pass>
  PRNN_DEVICE Weights(const Place& place, const SharedLayout& layout, const Task<Pass>& task)
      : place_(place) {
    const std::int64_t depth = depth_of<Pass>(task.padded);
    const int blocks = static_cast<int>(ceil_div(depth * sizeof(Value), kKBlockBytes));
    k_blocks_ = of_warp(kTile, blocks, place.warp_k);
    const int all = k_blocks(kTile, depth, kNumber);
    const int in_shared = all > kTile.register_blocks ? all - kTile.register_blocks : 1;
    const int warp = place.thread / 32;
    shared_ = reinterpret_cast<ptx::Word4*>(ptx::shared() + static_cast<int>(layout.weights)) +
              warp * in_shared * kFragments;
  }

  // Reads the rows of the block's units, from `first` on, of group g. All warps at once.
  template <class Pass>
  PRNN_DEVICE void load(const Pass& pass, int padded, int g, int first) {
    // Undefined values would let nvcc 13.0 take all blocks' for those of the last.
#pragma unroll
    for (int m = 0; m < kTile.m_tiles; ++m)
#pragma unroll
      for (int r = 0; r < kTile.register_blocks; ++r) registers_[m][r] = {};
#pragma unroll 1
    for (int k = 0; k < k_blocks_; ++k) {
      ptx::Word4* const in_shared =
          shared_ + (k < kTile.register_blocks ? 0 : k - kTile.register_blocks) * kFragments;
      Fragments read[kTile.m_tiles];
      WeightReader<kNumber, kTile, Pass>{pass, place_, g, first, padded}.read(
          position(k), reinterpret_cast<char*>(in_shared), read);
#pragma unroll
      for (int m = 0; m < kTile.m_tiles; ++m) {
        if (k >= kTile.register_blocks) {
          in_shared[fragment(m, 0)] = read[m].half[0];
          in_shared[fragment(m, 1)] = read[m].half[1];
        }
#pragma unroll
        for (int r = 0; r < kTile.register_blocks; ++r)  // registers have no index at run time
          if (ptx::opaque(k) == r) registers_[m][r] = read[m];
      }
    }
    ptx::bar_warp_sync();  // .aligned products want the warp together
  }

  // sums = weights · values, where values.load(b, n, is_there) reads this lane's part of this
  // warp's n-th k block, if it has so many, of all columns, and values.wait(b, ...) returns once
  // those loaded have arrived, in step s. Blocks of registers' are on their way while those before
  // them are multiplied.
  template <class Values>
  PRNN_DEVICE void multiply(const Values& values, int s, Sums<kTile>& sums) const {
    ptx::Word4 ahead[kAhead][kTile.n_tiles];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) values.load(ahead[i], i, i < k_blocks_);
    Products<kNumber, kTile, kIsPlain> products;
#pragma unroll
    for (int first = 0; first < kTile.register_blocks; first += kAhead) {
      if (first >= k_blocks_) break;
      values.wait(ahead, first, s);
      // Registers of blocks that this warp has not are zero, and so are their values.
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + i < kTile.register_blocks)
#pragma unroll
          for (int m = 0; m < kTile.m_tiles; ++m)
            products.add(m, registers_[m][first + i], ahead[i]);
        else
          multiply_shared(first + i, ahead[i], products);
        if (first + kAhead < kFirstShared)
          values.load(ahead[i], first + kAhead + i, first + kAhead + i < k_blocks_);
      }
    }
#pragma unroll 1
    for (int first = kFirstShared; first < k_blocks_; first += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) values.load(ahead[i], first + i, first + i < k_blocks_);
      values.wait(ahead, first, s);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) multiply_shared(first + i, ahead[i], products);
    }
    products.sum(sums);
  }

 private:
  static constexpr int kFragments = 2 * kTile.m_tiles * 32;  // of 16 bytes, per k block
  static constexpr int kAhead = blocks_ahead(kTile, kNumber, kIsPlain);

  PRNN_DEVICE int fragment(int m, int half) const { return (2 * m + half) * 32 + place_.lane; }
  // Number, among all k blocks, of this warp's k-th.
  PRNN_DEVICE int position(int k) const { return place_.warp_k + k * kTile.warps_k(); }

  // The first group of blocks that has none in registers.
  static constexpr int kFirstShared = static_cast<int>(round_up(kTile.register_blocks, kAhead));

  PRNN_DEVICE void multiply_shared(int k, const ptx::Word4 (&values)[kTile.n_tiles],
                                   Products<kNumber, kTile, kIsPlain>& products) const {
    if (k >= k_blocks_) return;
    const ptx::Word4* const from = shared_ + (k - kTile.register_blocks) * kFragments;
#pragma unroll
    for (int m = 0; m < kTile.m_tiles; ++m)
      products.add(m, {from[fragment(m, 0)], from[fragment(m, 1)]}, values);
  }

  Place place_;
  int k_blocks_;        // of this warp
  ptx::Word4* shared_;  // this warp's fragments in shared memory
  // Room for whole groups of kAhead; what lies beyond the last block is not used.
  Fragments registers_[kTile.m_tiles][round_up(kTile.register_blocks, kAhead)];
};

}  // namespace prnn
