// How the blocks of a team tell each other what they publish. Step s reads what step s - 1
// published; forward, the initial values count as published by step -1. An exchange gives
//
//   begin    a job starts: all threads of the team, together
//   arrive   what step s reads is on its way or there
//   load     this lane's part of one of its warp's k blocks (product.cuh), or zeros; and wait, in
//            step s, until it has arrived
//   target   what it keeps from step to step of a place that values are published at
//   publish  the granules of a place, of each published value one: adjacent units' values, the same
//            in each of those units' lanes
//   leave    step s has published
#pragma once
#include "cuda/streamed.cuh"
#include "cuda/wait.cuh"

namespace prnn {

// The whole sequence of one group and some rows of the batch, from the first of them on; of its
// steps, those in which any of the rows takes part.
template <class Pass>
struct Job {
  int group, first_row;
  int first_step, end_step;

  // Whether step s, one of these, reads values.
  PRNN_DEVICE bool reads(int s) const { return s > first_step || Pass::kStartsPublished; }
};

// Of each published value the granule that a lane has a part of.
template <class Pass>
using Granules = Vec<Pass::kPublished, ptx::Word2>;

// A unit and a row of the batch: which of the job's rows, the first unit of the granule, and which
// of its units.
struct Spot {
  int column, unit, within;
  bool exists;  // among the job's columns and the padded units
};

// Calls f(n, granule) for each granule that this one of its lanes stores: of the published value
// lane + n · lanes.
template <Number kNumber, int kPublished, class F>
PRNN_DEVICE void each_of_lane(const Vec<kPublished, ptx::Word2>& granules, int lane, F&& f) {
  constexpr int kLanes = granule_units(kNumber);
#pragma unroll
  for (int first = 0; first < kPublished; first += kLanes) {
    ptx::Word2 own[kLanes];
#pragma unroll
    for (int n = 0; n < kLanes; ++n) own[n] = granules[first + n < kPublished ? first + n : first];
    // By halves: of a choice among all, nvcc makes a table of jumps.
#pragma unroll
    for (int half = kLanes / 2; half > 0; half /= 2)
#pragma unroll
      for (int n = 0; n < half; ++n) own[n] = lane & half ? own[n + half] : own[n];
    if (first + lane < kPublished) f(first / kLanes, own[0]);
  }
}

// What the block and the cluster exchange share: values in shared memory, two buffers in turn:
// those that step s reads lie in buffer s % 2. A buffer is written again two steps later, and every
// thread has then passed a barrier that comes after its reads.
template <class Pass, Number kNumber, Tile kTile>
class SharedValues {
 public:
  PRNN_DEVICE SharedValues(const Task<Pass>& task, const SharedLayout& layout, const Place& place)
      : task_(task),
        place_(place),
        pitch_(static_cast<int>(layout.pitch)),
        buffer_bytes_(kTile.columns() * pitch_) {
    buffers_ = ptx::shared() + static_cast<int>(layout.values);
    // What lies beyond the last published value is multiplied with weights of zero.
    for (int i = 16 * place.thread; i < 2 * buffer_bytes_; i += 16 * kThreads)
      *reinterpret_cast<ptx::Word4*>(buffers_ + i) = {0, 0, 0, 0};
  }

  PRNN_DEVICE char* buffer(int s) const { return buffers_ + (s & 1) * buffer_bytes_; }
  struct Target {};
  PRNN_DEVICE Target target(const Spot&) const { return {}; }
  // Where the step after s reads the first of a unit's published values.
  PRNN_DEVICE char* published(int s, const Spot& spot) const {
    return buffer(s + 1) + spot.column * pitch_ +
           spot.unit * static_cast<int>(sizeof(typename Pass::Value));
  }
  PRNN_DEVICE void read_from(int s) {
    from_ = buffer(s) + place_.row * pitch_ + 16 * place_.part + place_.warp_k * kKBlockBytes;
  }
  PRNN_DEVICE void load(ptx::Word4 (&v)[kTile.n_tiles], int k, bool is_there) const {
#pragma unroll
    for (int n = 0; n < kTile.n_tiles; ++n) v[n] = {};
    if (!is_there) return;
#pragma unroll
    for (int n = 0; n < kTile.n_tiles; ++n)
      v[n] = *reinterpret_cast<const ptx::Word4*>(from_ + 8 * n * pitch_ +
                                                  k * kTile.warps_k() * kKBlockBytes);
  }
  template <int kAheadHere>
  PRNN_DEVICE void wait(ptx::Word4 (&)[kAheadHere][kTile.n_tiles], int, int) const {}

 protected:
  // From one of a unit's published values to the next, in bytes.
  PRNN_DEVICE int value_bytes() const {
    return static_cast<int>(task_.padded) * static_cast<int>(sizeof(typename Pass::Value));
  }

 private:
  const Task<Pass>& task_;
  Place place_;
  int pitch_, buffer_bytes_;
  char* buffers_;
  const char* from_;
};

// A team of one block: shared memory and __syncthreads.
template <class Pass, Number kNumber, Tile kTile>
class BlockExchange : public SharedValues<Pass, kNumber, kTile> {
  using Values = SharedValues<Pass, kNumber, kTile>;

 public:
  PRNN_DEVICE BlockExchange(const Task<Pass>& task, const SharedLayout& layout, const Place& place)
      : Values(task, layout, place) {}

  PRNN_DEVICE void begin(const Job<Pass>&) { ptx::bar_sync(); }
  PRNN_DEVICE void arrive(int s) { Values::read_from(s); }
  PRNN_DEVICE void publish(int s, const Spot& spot, typename Values::Target&,
                           const Granules<Pass>& granules) const {
    if (!spot.exists) return;
    char* const first = Values::published(s, spot) + spot.within * Values::value_bytes();
    each_of_lane<kNumber>(granules, spot.within, [&](int n, ptx::Word2 granule) {
      *reinterpret_cast<ptx::Word2*>(first + n * granule_units(kNumber) * Values::value_bytes()) =
          granule;
    });
  }
  PRNN_DEVICE void leave(int) const { ptx::bar_sync(); }  // before anyone reads it
  PRNN_DEVICE void end() const {}
};

// A team that is one cluster: every block stores its values into the shared memory of all, and an
// mbarrier of each counts the bytes that have come. A block sends values of step s only after it
// has received those of s - 1 from all, which they sent after they had read those of s - 2, whose
// buffer is now written.
template <class Pass, Number kNumber, Tile kTile>
class ClusterExchange : public SharedValues<Pass, kNumber, kTile> {
  using Values = SharedValues<Pass, kNumber, kTile>;

 public:
  PRNN_DEVICE ClusterExchange(const Task<Pass>& task, const SharedLayout& layout,
                              const Place& place)
      : Values(task, layout, place),
        blocks_(task.blocks),
        leader_(place.thread == 0),
        watchdog_(task.watchdog),
        bytes_(static_cast<std::uint32_t>(kTile.columns() * Pass::kPublished * task.padded *
                                          sizeof(typename Pass::Value))) {
    barriers_ = reinterpret_cast<ptx::MBarrier*>(ptx::shared() + static_cast<int>(layout.barriers));
    if (leader_) {
      ptx::mbarrier_init(barriers_, 1);
      ptx::mbarrier_init(barriers_ + 1, 1);
      ptx::fence_mbarrier_init();
    }
  }

  // All blocks have made their barriers, and nobody reads the job before any more.
  PRNN_DEVICE void begin(const Job<Pass>& job) {
    job_ = job;
    ptx::bar_sync();
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
    if (Pass::kStartsPublished) expect(0);
  }
  PRNN_DEVICE void arrive(int s) {
    if (job_.reads(s)) {
      const int parity = static_cast<int>(s & 1);
      Wait wait;
      while (!ptx::mbarrier_try_wait_parity(barriers_ + parity, phases_ >> parity & 1))
        wait.turn(watchdog_, Exchange::kCluster, job_, s);
      phases_ ^= 1u << parity;
    }
    Values::read_from(s);
    expect(s + 1);
  }
  // The lanes that hold the granule share out the blocks it goes to.
  PRNN_DEVICE void publish(int s, const Spot& spot, typename Values::Target&,
                           const Granules<Pass>& granules) const {
    if (!spot.exists || s + 1 == job_.end_step) return;
    constexpr int kLanes = granule_units(kNumber);
    const char* const first = Values::published(s, spot);
    ptx::MBarrier* barrier = barriers_ + ((s + 1) & 1);
#pragma unroll
    for (int p = 0; p < Pass::kPublished; ++p)
#pragma unroll
      for (int n = 0; n < kMaxCluster; n += kLanes)
        if (const int rank = ((spot.within - p) & (kLanes - 1)) + n; rank < blocks_)
          ptx::st_async_v2_b32(ptx::mapa(first + p * Values::value_bytes(), rank), granules[p],
                               ptx::mapa(barrier, rank));
  }
  PRNN_DEVICE void leave(int) const {}
  // A block's shared memory must outlive what others store there.
  PRNN_DEVICE void end() const {
    ptx::bar_warp_sync();  // .aligned wants the warp together
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
  }

 private:
  // The barrier's phase before was waited for at step s - 2.
  PRNN_DEVICE void expect(int s) const {
    if (leader_ && s < job_.end_step) ptx::mbarrier_arrive_expect_tx(barriers_ + (s & 1), bytes_);
  }

  int blocks_;
  bool leader_;
  const Watchdog& watchdog_;
  Job<Pass> job_;
  std::uint32_t bytes_, phases_ = 0;
  ptx::MBarrier* barriers_;
};

// A team of any blocks of a grid that all run: the output is the mailbox, or one beside it. It is
// filled with kUnwritten before the launch, every granule is written once and read until it is
// there. The value read is the message itself, so nothing needs to be ordered: no flag, fence or
// barrier; and nothing is written twice, so nobody can be late.
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
    stride_ = (Pass::published_at(shape_, job.group, 1, 0) -
               Pass::published_at(shape_, job.group, 0, 0)) *
              static_cast<std::int64_t>(sizeof(Value));
  }
  PRNN_DEVICE void arrive(int s) {
    if (!job_.reads(s)) return;
    if constexpr (kDelays) delay_.pass();
    // Short, for this is on the way from one step to the next; two tiles have no registers for it.
    // Opaque, or nvcc makes a table of jumps.
    const bool is_next = kTile.n_tiles == 1 && ptx::opaque(s) > job_.first_step + 1;
#pragma unroll
    for (int n = 0; n < kTile.n_tiles; ++n) from_[n] = is_next ? from_[n] + stride_ : at_step(s, n);
  }
  // Lanes whose 16 bytes lie beyond the last value have zeros: they read nothing.
  PRNN_DEVICE void load(ptx::Word4 (&v)[kTile.n_tiles], int k, bool) const {
#pragma unroll
    for (int n = 0; n < kTile.n_tiles; ++n) {
      v[n] = {};
      if (k < k_blocks_) v[n] = read(n, k);
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
  // Two tiles' values take so long that delays are no gain; float32 with controls has no register.
  static constexpr bool kDelays =
      kTile.n_tiles == 1 && !kTile.is_streamed() && (kIsPlain<Pass> || kNumber != Number::kFloat32);

  // One word tells of each half, which is written by one store.
  PRNN_DEVICE static bool arrived(const ptx::Word4& v) {
    return (v.x != kUnwritten) & (v.z != kUnwritten);
  }
  // This warp's k-th block.
  PRNN_DEVICE ptx::Word4 read(int n, int k) const {
    return ptx::ld_relaxed_gpu_v2_b64(from_[n] + k * kTile.warps_k() * kKBlockBytes);
  }
  // What this lane reads in step s, of its warp's first k block.
  PRNN_DEVICE const char* at_step(int s, int n) const {
    return row_published(s - 1, row_of(n)) + 16 * place_.part + kKBlockBytes * place_.warp_k;
  }
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
    return row_published(s, row) + (spot.within * task_.padded + spot.unit) * sizeof(Value);
  }
  PRNN_DEVICE char* row_published(int s, int row) const {
    Value* const at = s < 0 ? task_.initial + shape_.state_at(row, job_.group)
                            : task_.mailbox + Pass::published_at(shape_, job_.group, s, row);
    return reinterpret_cast<char*>(at);
  }

  const Task<Pass>& task_;
  Place place_;
  std::remove_cvref_t<decltype(Pass::shape)> shape_;  // of the mailbox
  Job<Pass> job_;
  int k_blocks_;  // of this warp, of which this lane has a part
  const char* from_[kTile.n_tiles];
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
