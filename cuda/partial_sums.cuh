// What the warps of a block have summed, each over its k blocks, and the sum of it.
#pragma once
#include "cuda/product.cuh"

namespace prnn {

// [2 parities][warps_k][columns][rows]. A buffer is written again two steps later; the barrier of
// the step between comes after the last read of it. A streamed tile, which wants the room, has one
// buffer, and a barrier before it is written.
template <Tile kTile>
class PartialSums {
 public:
  PRNN_DEVICE explicit PartialSums(const SharedLayout& layout)
      : sums_(reinterpret_cast<float*>(ptx::shared() + static_cast<int>(layout.sums))) {}

  PRNN_DEVICE void write(int s, const Place& place, const Sums<kTile>& sums) const {
    if (kTile.sum_buffers() == 1) ptx::bar_sync();  // those of the panel before have been read
#pragma unroll
    for (int m = 0; m < kTile.m_tiles; ++m)
#pragma unroll
      for (int n = 0; n < kTile.n_tiles; ++n) {
        const int row = 16 * (place.warp_m * kTile.m_tiles + m) + place.row;
        float* to = at(s, place.warp_k, 8 * n + 2 * place.part) + row;
        to[0] = sums[m][n][0];
        to[kPitch] = sums[m][n][1];
        to[8] = sums[m][n][2];
        to[kPitch + 8] = sums[m][n][3];
      }
  }
  // start + the sums of a unit's products.
  template <int kProducts>
  PRNN_DEVICE Vec<kProducts> read(int s, int column, int unit, const float* start) const {
    struct alignas(kProducts == 3 ? 4 : 4 * kProducts) Row {
      float v[kProducts];
    };
    Vec<kProducts> out;
    const Row first = *reinterpret_cast<const Row*>(start + unit * kProducts);
#pragma unroll
    for (int p = 0; p < kProducts; ++p) out[p] = first.v[p];
#pragma unroll
    for (int w = 0; w < kTile.warps_k(); ++w) {
      const Row part = *reinterpret_cast<const Row*>(at(s, w, column) + unit * kProducts);
#pragma unroll
      for (int p = 0; p < kProducts; ++p) out[p] += part.v[p];
    }
    return out;
  }

 private:
  // Four more than rows: the lanes of a warp write to different banks.
  static constexpr int kPitch = kTile.rows() + 4;
  PRNN_DEVICE float* at(int s, int warp_k, int column) const {
    return sums_ +
           (((s & 1) % kTile.sum_buffers() * kTile.warps_k() + warp_k) * kTile.columns() + column) *
               kPitch;
  }
  float* sums_;
};

}  // namespace prnn
