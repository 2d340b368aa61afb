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

}  // namespace prnn
