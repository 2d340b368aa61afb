// Means over all units of a row, of which each block of a team has some: for cells with layer norm
// inside of their steps (core/normed_unit_passes.h).
//
// The lanes that have a row's units in a block are adjacent, and all that it takes is between them:
// they add up what is theirs, in pairs of numbers; each pair goes to global memory, into a place of
// the block's; and each lane reads the pairs of some blocks, until all are there. A pair is two
// words of eight bytes, a number and the count of the step in each, so that a word tells by itself
// whether it is of this step; nothing needs to be ordered. There are two buffers in turn: a block
// writes one again after it has read the other of all, which they wrote after they had read this.
//
// A mean and a variance: of the block's units, the mean and the squares of the deviations from it,
// which give those of the row (Chan, Golub and LeVeque 1983). What is added up in which order
// depends on no timing; all blocks find the same.
#pragma once
#include "core/normed_unit_passes.h"
#include "cuda/exchange.cuh"

namespace prnn {

// Whether a pass adds up over rows.
template <class Pass>
inline constexpr bool kNormsRows = requires { Pass::kNorms; };

template <class Pass, Number kNumber, Tile kTile>
class RowNorms {
 public:
  static constexpr int kLanes = units_per_block(kTile, Pass::kProducts, kNumber);  // of a row
  static_assert((kLanes == 16 || kLanes == 32) && elements_per_thread(kTile, kLanes) == 1);
  using Within = typename Pass::Within;
  using Published = typename Pass::Published;
  using Io = UnitIo<kNumber>;

  // A unit and a row of the batch, of those whose lanes step together: all of a warp's.
  struct UnitPlace {
    int column, unit, row;
    bool has_row, exists;  // the row, or it and the unit, in the batch and the layer
  };

  PRNN_DEVICE explicit RowNorms(const Task<Pass>& task)
      : task_(task),
        block_(ptx::ctaid() % task.blocks),
        lane_(ptx::tid() % kLanes),
        hidden_(static_cast<int>(task.pass.shape.hidden)) {}

  PRNN_DEVICE void begin(const Job<Pass>& job) { job_ = job; }

  // What of step s is known before its product.
  PRNN_DEVICE void early(int s, const UnitPlace& at, const typename Pass::Inputs& inputs) {
    ++count_;
    Within w{};
    if (at.exists) task_.pass.early(job_.group, s, at.row, at.unit, inputs, w, Io{});
    post<0>(at, w);
  }
  // The step.
  PRNN_DEVICE Published advance(int s, const UnitPlace& at, const Vec<Pass::kProducts>& products,
                                const typename Pass::Inputs& inputs, typename Pass::Carry& carry,
                                typename Pass::Saved& saved) const {
    const Pass& pass = task_.pass;
    const int g = job_.group;
    Within w{};
    if (at.exists) pass.early(g, s, at.row, at.unit, inputs, w, Io{});
    collect<0>(s, at, w);
    if (at.exists) pass.open(g, s, at.row, at.unit, products, carry, w, Io{});
    add_up<1>(s, at, w);
    if (at.exists) pass.gates(g, s, at.row, at.unit, w, Io{});
    add_up<2>(s, at, w);
    saved = {};
    return at.exists ? pass.close(g, s, at.row, at.unit, w, carry, saved, Io{}) : Published{};
  }

 private:
  static constexpr int kColumns = kTile.columns();

  template <int kStage>
  PRNN_DEVICE void add_up(int s, const UnitPlace& at, Within& w) const {
    post<kStage>(at, w);
    if (at.exists) task_.pass.template meanwhile<kStage>(job_.group, s, at.row, at.unit, w, Io{});
    collect<kStage>(s, at, w);
  }
  template <int kStage>
  PRNN_DEVICE void post(const UnitPlace& at, Within& w) const {
    task_.pass.template each_norm<kStage>(w, Post{*this, at});
  }
  template <int kStage>
  PRNN_DEVICE void collect(int s, const UnitPlace& at, Within& w) const {
    task_.pass.template each_norm<kStage>(w, Collect{*this, at, s});
  }

  // Units of a block.
  PRNN_DEVICE int units_of(int block) const {
    const int rest = hidden_ - block * kLanes;
    return rest < kLanes ? rest : kLanes;
  }
  PRNN_DEVICE ptx::Word4* place_of(int kind, int column) const {
    const int team = ptx::ctaid() / task_.blocks;
    const int at = ((count_ & 1) * task_.teams + team) * kColumns + column;
    return task_.norms + (at * Pass::kNorms + kind) * task_.blocks;
  }

  // Of the lanes of a row, of each kind of values that has a mean of its own, or of all together:
  // then it is the first.
  template <int N>
  PRNN_DEVICE static Vec<N> total(Vec<N> v, bool apart) {
    if (!apart)
#pragma unroll
      for (int n = 1; n < N; ++n) v[0] += v[n];
#pragma unroll
    for (int n = 0; n < N; ++n)
      if (n == 0 || apart)
#pragma unroll
        for (int mask = 1; mask < kLanes; mask *= 2)
          v[n] += float_of(ptx::shfl_bfly(bits_of(v[n]), mask));
    return v;
  }

  // Publishes what a block has.
  struct Post {
    const RowNorms& norms;
    const UnitPlace& at;

    template <int N, class Scale>
    PRNN_DEVICE void moments(int kind, bool apart, const Vec<N>& raw, const Scale&) const {
      Vec<N> values{}, squares{};
      if (at.exists) values = raw;
      const Vec<N> sums = total(values, apart);
      Vec<N> means;
      const auto units = static_cast<float>(norms.units_of(norms.block_) * (apart ? 1 : N));
#pragma unroll
      for (int n = 0; n < N; ++n) {
        means[n] = (apart ? sums[n] : sums[0]) / units;
        const float centred = raw[n] - means[n];
        if (at.exists) squares[n] = centred * centred;
      }
      put(kind, apart, means, total(squares, apart));
    }
    template <int N, class Scale, class Gradient>
    PRNN_DEVICE void gradients(int kind, bool apart, const Vec<N>& d, const Vec<N>& raw,
                               const Scale& scale, const Gradient&) const {
      Vec<N> first{}, second{};
      if (at.exists) {
        first = d;
        const Vec<N> centred = scale.centred(raw);
#pragma unroll
        for (int n = 0; n < N; ++n) second[n] = d[n] * centred[n];
      }
      put(kind, apart, total(first, apart), total(second, apart));
    }

   private:
    // The n-th lane, the n-th pair. Opaque, or nvcc makes a table of the pairs.
    template <int N>
    PRNN_DEVICE void put(int kind, bool apart, const Vec<N>& first, const Vec<N>& second) const {
      float a = first[0], b = second[0];
#pragma unroll
      for (int n = 1; n < N; ++n)
        if (ptx::opaque(norms.lane_) == n) {
          a = first[n];
          b = second[n];
        }
      if (!at.has_row || norms.lane_ >= (apart ? N : 1)) return;
      auto* const to = reinterpret_cast<ptx::Word2*>(norms.place_of(kind + norms.lane_, at.column) +
                                                     norms.block_);
      ptx::st_relaxed_gpu_b64(to, {bits_of(a), norms.count_});
      ptx::st_relaxed_gpu_b64(to + 1, {bits_of(b), norms.count_});
    }
  };

  // Finds what all blocks have published.
  struct Collect {
    const RowNorms& norms;
    const UnitPlace& at;
    int s;

    template <int N, class Scale>
    PRNN_DEVICE void moments(int kind, bool apart, const Vec<N>&, Scale& scale) const {
      apart ? moments<N, N>(kind, scale) : moments<N, 1>(kind, scale);
    }
    template <int N, class Scale, class Gradient>
    PRNN_DEVICE void gradients(int kind, bool apart, const Vec<N>&, const Vec<N>&,
                               const Scale& scale, Gradient& out) const {
      apart ? gradients<N, N>(kind, scale, out) : gradients<N, 1>(kind, scale, out);
    }

   private:
    // Of N kinds of values, kMeans means.
    template <int N, int kMeans, class Scale>
    PRNN_DEVICE void moments(int kind, Scale& scale) const {
      constexpr int kKinds = N / kMeans;
      // Of this lane's blocks: units, and of deviations from the mean of its first.
      float units = 0.0f;
      Vec<kMeans> means{}, shift{}, squares{};
      each_block<kMeans>(kind, [&](int block, const auto& pairs) {
        const auto more = static_cast<float>(norms.units_of(block) * kKinds);
#pragma unroll
        for (int n = 0; n < kMeans; ++n) {
          const float mean = float_of(pairs[n].x);
          if (units == 0.0f) means[n] = mean;
          const float away = mean - means[n];
          shift[n] += more * away;
          squares[n] += float_of(pairs[n].z) + more * away * away;
        }
        units += more;
      });
      const auto all_units = static_cast<float>(norms.hidden_ * kKinds);
      Vec<kMeans> sums{};
#pragma unroll
      for (int n = 0; n < kMeans; ++n) {
        if (units == 0.0f) continue;
        const float away = shift[n] / units;
        means[n] += away;
        squares[n] -= shift[n] * away;
        sums[n] = units * means[n];
      }
      sums = total(sums, true);
#pragma unroll
      for (int n = 0; n < kMeans; ++n) {
        sums[n] /= all_units;
        const float away = means[n] - sums[n];
        if (units != 0.0f) squares[n] += units * away * away;
      }
      squares = total(squares, true);
      const float epsilon = norms.task_.pass.cell.norm.epsilon;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const int of = kMeans == 1 ? 0 : n;
        scale.mean[n] = sums[of];
        scale.variance[n] = squares[of] / all_units + epsilon;
        scale.inverse[n] = 1.0f / __builtin_sqrtf(scale.variance[n]);
      }
    }
    template <int N, int kMeans, class Scale, class Gradient>
    PRNN_DEVICE void gradients(int kind, const Scale& scale, Gradient& out) const {
      Vec<kMeans> first{}, second{};
      each_block<kMeans>(kind, [&](int, const auto& pairs) {
#pragma unroll
        for (int n = 0; n < kMeans; ++n) {
          first[n] += float_of(pairs[n].x);
          second[n] += float_of(pairs[n].z);
        }
      });
      first = total(first, true);
      second = total(second, true);
      const auto count = static_cast<float>(norms.hidden_ * (N / kMeans));
      out.inverse = scale.inverse;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const int of = kMeans == 1 ? 0 : n;
        out.first[n] = first[of] / count;
        out.second[n] = second[of] / count / scale.variance[n];
      }
    }

    // Calls f(block, pairs) for those of the blocks that are this lane's.
    template <int kMeans, class F>
    PRNN_DEVICE void each_block(int kind, F&& f) const {
      constexpr int kTogether = kMeans == 1 ? 4 : 2;
#pragma unroll 1
      for (int first = 0; first < norms.task_.blocks; first += kLanes * kTogether) {
        ptx::Word4 pairs[kTogether][kMeans];
        read<kTogether, kMeans>(kind, first + norms.lane_, pairs);
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const int block = first + norms.lane_ + i * kLanes;
          if (at.has_row && block < norms.task_.blocks) f(block, pairs[i]);
        }
      }
    }
    // Of the blocks `first`, `first + kLanes` and so on that there are, once they are published.
    template <int kTogether, int kMeans>
    PRNN_DEVICE void read(int kind, int first, ptx::Word4 (&pairs)[kTogether][kMeans]) const {
      const int blocks = norms.task_.blocks;
      const ptx::Word4* const from = norms.place_of(kind, at.column);
      const auto is_there = [&](int i) { return at.has_row && first + i * kLanes < blocks; };
      const auto load = [&](int i, int n) {
        return ptx::ld_relaxed_gpu_v2_b64(from + n * blocks + first + i * kLanes);
      };
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
#pragma unroll
        for (int n = 0; n < kMeans; ++n)
          if (is_there(i)) pairs[i][n] = load(i, n);
      Wait wait;
      while (true) {
        bool all = true;
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
#pragma unroll
          for (int n = 0; n < kMeans; ++n)
            if (is_there(i))
              all = all & (pairs[i][n].y == norms.count_) & (pairs[i][n].w == norms.count_);
        if (ptx::vote_all(all)) return;
        wait.turn(norms.task_.watchdog, Exchange::kGrid, norms.job_, s);
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
#pragma unroll
          for (int n = 0; n < kMeans; ++n)
            if (is_there(i) && (pairs[i][n].y != norms.count_ || pairs[i][n].w != norms.count_))
              pairs[i][n] = load(i, n);
      }
    }
  };

  const Task<Pass>& task_;
  int block_, lane_, hidden_;
  Job<Pass> job_;
  std::uint32_t count_ = 0;  // of steps
};

// Of other passes, nothing.
template <class Pass>
struct NoRowNorms {
  PRNN_DEVICE explicit NoRowNorms(const Task<Pass>&) {}
};
template <class Pass, Number kNumber, Tile kTile>
using RowNormsOf =
    std::conditional_t<kNormsRows<Pass>, RowNorms<Pass, kNumber, kTile>, NoRowNorms<Pass>>;

}  // namespace prnn
