// The exchange through global memory, and which class is which exchange.
#pragma once
#include "cuda/exchange.cuh"

namespace prnn {

// A team of any blocks of a grid that all run: the output is the mailbox, or one beside it. It is
// filled with kUnwritten before the launch, every granule is written once and read until it is
// there. The value read is the message itself, so nothing needs to be ordered: no flag, fence or
// barrier; and nothing is written twice, so nobody can be late. Layers of a stack read each other's
// values in the same way: their k blocks lie behind those of a team's own.
template <class Pass, Number kNumber, Tile kTile>
class GridExchange {
 public:
  PRNN_DEVICE GridExchange(const Task<Pass>& task, const SharedLayout&, const Place& place)
      : task_(task), place_(place), shape_(task.pass.shape) {
    shape_.hidden = task.padded;
    if (!task.output_is_mailbox) shape_.reverse = shape_.bidirectional = false;
    shape_.lengths = nullptr;  // all steps are exchanged
  }

  PRNN_DEVICE void begin(const Job<Pass>& job) {
    job_ = job;
    ptx::bar_sync();
    const std::int64_t depth_bytes = Pass::kPublished * task_.padded * sizeof(Value);
    const auto k_blocks = static_cast<int>(ceil_div(depth_bytes - 16 * place_.part, kKBlockBytes));
    k_blocks_ = of_warp(kTile, k_blocks, place_.warp_k);
    if constexpr (kHasNeighbour) {
      const auto all = static_cast<int>(ceil_div(2 * depth_bytes - 16 * place_.part, kKBlockBytes));
      neighbour_.group = job.group + Pass::kNeighbour;
      const bool is_there = neighbour_.group >= 0 && neighbour_.group < shape_.groups;
      neighbour_.k_blocks = is_there ? of_warp(kTile, all, place_.warp_k) : k_blocks_;
    }
    stride_ = (Pass::published_at(shape_, job.group, 1, 0) -
               Pass::published_at(shape_, job.group, 0, 0)) *
              static_cast<std::int64_t>(sizeof(Value));
  }
  PRNN_DEVICE void arrive(int s) {
    if constexpr (kHasNeighbour) {
      neighbour_.first = job_.reads(s) ? 0 : k_blocks_;
      neighbour_.end = s < shape_.time ? neighbour_.k_blocks : k_blocks_;
    } else {
      if (!job_.reads(s)) return;
    }
    if constexpr (kDelays) delay_.pass();
    // Short, for this is on the way from one step to the next; two tiles have no registers for it.
    // Opaque, or nvcc makes a table of jumps.
    const bool is_next = kTile.n_tiles == 1 && ptx::opaque(s) > job_.first_step + 1;
#pragma unroll
    for (int n = 0; n < kTile.n_tiles; ++n) {
      from_[n] = is_next ? from_[n] + stride_ : at_step(s, n);
      if constexpr (kHasNeighbour)
        neighbour_.from[n] = is_next ? neighbour_.from[n] + stride_ : of_neighbour(s, n);
    }
  }
  // Lanes whose 16 bytes lie beyond the last value have zeros: they read nothing.
  PRNN_DEVICE void load(ptx::Word4 (&v)[kTile.n_tiles], int k, bool) const {
#pragma unroll
    for (int n = 0; n < kTile.n_tiles; ++n) {
      v[n] = {};
      if (is_read(k)) v[n] = read(n, k);
    }
  }
  // Reads again what has not been written yet, all of it in flight together.
  template <int kAheadHere>
  PRNN_DEVICE void wait(ptx::Word4 (&v)[kAheadHere][kTile.n_tiles], int first, int s) const {
    Wait wait;
    for (bool is_first = true;; is_first = false) {
      bool all = true;
#pragma unroll
      for (int i = 0; i < kAheadHere; ++i)
#pragma unroll
        for (int n = 0; n < kTile.n_tiles; ++n) all = all & arrived(v[i][n]);
      if (ptx::vote_all(all)) {
        if (kDelays && first == 0) delay_.learn(is_first);
        return;
      }
      wait.turn(task_.watchdog, Exchange::kGrid, job_, s);
#pragma unroll
      for (int i = 0; i < kAheadHere; ++i)
#pragma unroll
        for (int n = 0; n < kTile.n_tiles; ++n)
          if (!arrived(v[i][n])) v[i][n] = read(n, first + i);
    }
  }

  // Where this lane stores in the next step, of those from the job's first on; or null. Carried
  // along by plain calls alone: others have no registers for it.
  struct Target {
    char* next;
  };
  PRNN_DEVICE Target target(const Spot& spot) const { return {place_of(job_.first_step, spot)}; }
  PRNN_DEVICE void publish(int s, const Spot& spot, Target& to,
                           const Granules<Pass>& granules) const {
    char* const first = s < 0 || !kIsPlain<Pass> ? place_of(s, spot) : to.next;
    if (first == nullptr) return;
    const std::int64_t bytes = granule_units(kNumber) * task_.padded * sizeof(Value);
    each_of_lane<kNumber>(granules, spot.within, [&](int n, ptx::Word2 granule) {
      ptx::st_relaxed_gpu_b64(first + n * bytes, granule);
    });
    if (s < 0) return;
    // The fill may have left the second-level cache; who polls should find it there.
    constexpr int kStepsAhead = 2;
    if (s + kStepsAhead < task_.pass.shape.time)
      each_of_lane<kNumber>(granules, spot.within, [&](int n, ptx::Word2) {
        ptx::prefetch_global_l2(first + kStepsAhead * stride_ + n * bytes);
      });
    if constexpr (kIsPlain<Pass>) to.next += stride_;
  }
  PRNN_DEVICE void leave(int) const {}
  PRNN_DEVICE void end() const {}

 private:
  using Value = typename Pass::Value;
  static constexpr bool kHasNeighbour = Pass::kSources == 2;
  // Two tiles' values take so long that delays are no gain; float32 with controls has no register.
  static constexpr bool kDelays =
      kTile.n_tiles == 1 && !kTile.is_streamed() && (kIsPlain<Pass> || kNumber != Number::kFloat32);

  // One word tells of each half, which is written by one store.
  PRNN_DEVICE static bool arrived(const ptx::Word4& v) {
    return (v.x != kUnwritten) & (v.z != kUnwritten);
  }
  // Whether this lane has a part of the warp's k-th block in this step.
  PRNN_DEVICE bool is_read(int k) const {
    if constexpr (kHasNeighbour)
      return k >= neighbour_.first && k < neighbour_.end;
    else
      return k < k_blocks_;
  }
  PRNN_DEVICE ptx::Word4 read(int n, int k) const {
    const char* from = from_[n];
    if constexpr (kHasNeighbour)
      if (k >= k_blocks_) from = neighbour_.from[n];
    return ptx::ld_relaxed_gpu_v2_b64(from + k * kTile.warps_k() * kKBlockBytes);
  }
  // What this lane reads in step s, of its warp's first k block.
  PRNN_DEVICE const char* at_step(int s, int n) const {
    return row_published(job_.group, s - 1, row_of(n)) + first_byte();
  }
  // The same of the neighbour, whose values begin behind the team's own.
  PRNN_DEVICE const char* of_neighbour(int s, int n) const {
    if (neighbour_.end == k_blocks_) return from_[n];
    const std::int64_t own = Pass::kPublished * task_.padded * sizeof(Value);
    return row_published(neighbour_.group, s, row_of(n)) + first_byte() - own;
  }
  PRNN_DEVICE int first_byte() const { return 16 * place_.part + kKBlockBytes * place_.warp_k; }
  // That a column reads: one beyond the batch reads the last row, and nothing is made of its
  // sums.
  PRNN_DEVICE int row_of(int n) const {
    const int row = job_.first_row + 8 * n + place_.row, last = static_cast<int>(shape_.batch) - 1;
    return row < last ? row : last;
  }
  // Where this lane stores in step s; null if it does not.
  PRNN_DEVICE char* place_of(int s, const Spot& spot) const {
    const int row = job_.first_row + spot.column;
    const bool stores = spot.exists && row < shape_.batch && spot.within < Pass::kPublished;
    if (!stores) return nullptr;
    return row_published(job_.group, s, row) +
           (spot.within * task_.padded + spot.unit) * sizeof(Value);
  }
  PRNN_DEVICE char* row_published(int group, int s, int row) const {
    Value* const at = s < 0 ? task_.initial + shape_.state_at(row, group)
                            : task_.mailbox + Pass::published_at(shape_, group, s, row);
    return reinterpret_cast<char*>(at);
  }

  const Task<Pass>& task_;
  Place place_;
  std::remove_cvref_t<decltype(Pass::shape)> shape_;  // of the mailbox
  Job<Pass> job_;
  int k_blocks_;  // of this warp, of which this lane has a part
  const char* from_[kTile.n_tiles];
  struct Neighbour {
    int group, k_blocks;  // of its own and the team's
    int first, end;       // of these, those that this step reads
    const char* from[kTile.n_tiles];
  };
  struct None {};
  std::conditional_t<kHasNeighbour, Neighbour, None> neighbour_;
  mutable Delay delay_;
  std::int64_t stride_;  // bytes from a step's values to the next one's
};

template <Exchange, class Pass, Number kNumber, Tile kTile>
struct ExchangeOf;
template <class Pass, Number kNumber, Tile kTile>
struct ExchangeOf<Exchange::kBlock, Pass, kNumber, kTile> {
  using Type = BlockExchange<Pass, kNumber, kTile>;
};
template <class Pass, Number kNumber, Tile kTile>
struct ExchangeOf<Exchange::kCluster, Pass, kNumber, kTile> {
  using Type = ClusterExchange<Pass, kNumber, kTile>;
};
template <class Pass, Number kNumber, Tile kTile>
struct ExchangeOf<Exchange::kGrid, Pass, kNumber, kTile> {
  using Type = GridExchange<Pass, kNumber, kTile>;
};

}  // namespace prnn
