// The product of weights for which the chip has no room with the published values.
//
// A block takes panels of rows, one after the other in each step. Of each, the first k blocks lie
// in shared memory; the others are read from global memory, where loading has put them as mma.sync
// takes them: each lane reads what it has written itself, 16 bytes at a time.
#pragma once
#include "cuda/product.cuh"

namespace prnn {

template <Number kNumber, Tile kTile>
class StreamedWeights {
 public:
  template <class Pass>
  PRNN_DEVICE StreamedWeights(const Place& place, const SharedLayout& layout,
                              const Task<Pass>& task)
      : place_(place), panels_(task.panels) {
    const std::int64_t all = panels_of(kTile, Pass::kProducts, task.padded, kNumber);
    const std::int64_t depth = Pass::kPublished * task.padded;
    const int blocks = static_cast<int>(ceil_div(depth * value_bytes(kNumber), kKBlockBytes));
    k_blocks_ = of_warp(kTile, blocks, place.warp_k);
    const int warp = place.thread / 32, block = ptx::ctaid() % task.blocks;
    shared_ = reinterpret_cast<ptx::Word4*>(ptx::shared() + static_cast<int>(layout.weights)) +
              warp * (panels_.held > 1 ? panels_.held : 1) * kFragments;
    const std::int64_t of_warp = std::int64_t{k_blocks(kTile, depth, kNumber)} * kFragments;
    streamed_ = static_cast<ptx::Word4*>(task.streamed) + (block * kWarps + warp) * of_warp;
    of_panels_ = task.blocks * kWarps * of_warp;
    if ((panels_.count - 1) * task.blocks + block >= all) --panels_.count;
  }

  // Reads the rows of the block's units, which begin at `first` and, those of the next panel, so
  // many units later, of group g. All warps at once.
  template <class Pass>
  PRNN_DEVICE void load(const Pass& pass, int padded, int g, int first, int later) {
    // What passes through the first k block's place comes before what stays there.
#pragma unroll 1
    for (int n = panels_.count - 1; n >= 0; --n) {
      const int unit = first + n * later;
      const Panel panel = of(n);
#pragma unroll 1
      for (int k = k_blocks_ - 1; k >= 0; --k) {
        Fragments read[kTile.m_tiles];
        ptx::Word4* const scratch = k < panel.held ? panel.shared + k * kFragments : shared_;
        WeightReader<kNumber, kTile, Pass>{pass, place_, g, unit, padded}.read(
            place_.warp_k + k * kTile.warps_k(), reinterpret_cast<char*>(scratch), read);
        if (k < panel.held)
          write(read, scratch);
        else
          write(read, panel.streamed + std::int64_t{k} * kFragments);
      }
    }
    ptx::bar_warp_sync();  // .aligned products want the warp together
  }

  // sums = weights of the n-th panel · values, as Weights::multiply() has them. Some k blocks of
  // weights and values are on their way while those before them are multiplied.
  template <class Values>
  PRNN_DEVICE void multiply(const Values& values, int s, int n, Sums<kTile>& sums) const {
    const Panel panel = of(n);
    Products<kNumber, kTile, false> products;
    Stage stages[kStages];
#pragma unroll
    for (int i = 0; i < kStages; ++i) fetch(values, panel, i, stages[i]);
#pragma unroll 1
    for (int first = 0; first < k_blocks_; first += kStages) {
#pragma unroll
      for (int i = 0; i < kStages; ++i) {
        const int k = first + i;
        if (i > 0 && k >= k_blocks_) continue;
        values.wait(stages[i].values, k, s);
#pragma unroll
        for (int m = 0; m < kTile.m_tiles; ++m)
          products.add(m, stages[i].weights[m], stages[i].values[0]);
        fetch(values, panel, k + kStages, stages[i]);
      }
    }
    products.sum(sums);
  }

 private:
  static constexpr int kFragments = 2 * kTile.m_tiles * 32;  // of 16 bytes, per k block
  // So many that 32 KB or more are on their way to a block: memory's latency does not show then.
  // float32 products have no registers for it; and of two, nvcc 13.0 has one in local memory.
  static constexpr int kStages = kNumber != Number::kFloat32
                                     ? static_cast<int>(ceil_div(8, kTile.m_tiles))
                                 : kTile.m_tiles == 4 ? 1
                                                      : 3;
  // Where the fragments of this warp's k blocks are: the first so many in shared memory, others at
  // their place in global memory. Which, a branch tells: through one pointer to either, accesses
  // would be generic.
  struct Panel {
    int held;
    ptx::Word4 *shared, *streamed;
  };
  struct Stage {
    Fragments weights[kTile.m_tiles];
    ptx::Word4 values[1][kTile.n_tiles];
  };

  PRNN_DEVICE int fragment(int m, int half) const { return (2 * m + half) * 32 + place_.lane; }
  PRNN_DEVICE Panel of(int n) const {
    return {panels_.held_of(n), shared_ + panels_.held_before(n) * kFragments,
            streamed_ + n * of_panels_};
  }
  template <class Values>
  PRNN_DEVICE void fetch(const Values& values, const Panel& panel, int k, Stage& to) const {
    values.load(to.values[0], k, k < k_blocks_);
    if (k >= k_blocks_) return;
    if (k < panel.held)
      read(panel.shared + k * kFragments, to);
    else
      read(panel.streamed + std::int64_t{k} * kFragments, to);
  }

  PRNN_DEVICE void write(const Fragments (&weights)[kTile.m_tiles], ptx::Word4* to) const {
#pragma unroll
    for (int m = 0; m < kTile.m_tiles; ++m) {
      to[fragment(m, 0)] = weights[m].half[0];
      to[fragment(m, 1)] = weights[m].half[1];
    }
  }
  PRNN_DEVICE void read(const ptx::Word4* from, Stage& to) const {
#pragma unroll
    for (int m = 0; m < kTile.m_tiles; ++m)
      to.weights[m] = {from[fragment(m, 0)], from[fragment(m, 1)]};
  }

  Place place_;
  Panels panels_;
  int k_blocks_;            // of this warp
  ptx::Word4* shared_;      // this warp's
  ptx::Word4* streamed_;    // [panel][block][warp][k]: this block's first panel's, of this warp
  std::int64_t of_panels_;  // from one panel of a block to the next
};

}  // namespace prnn
