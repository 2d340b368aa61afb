// How the blocks of a team tell each other what they publish. Step s reads what step s - 1
// published; forward, the initial values count as published by step -1. An exchange gives
//
//   begin    a job starts: all threads of the team, together
//   arrive   what step s reads is on its way or there
//   load     this lane's part of a k block (product.cuh), into zeros; and wait, in step s, until it
//            has arrived
//   publish  a granule: adjacent units' values, the same in each of those units' lanes
//   leave    step s has published
#pragma once
#include "cuda/product.cuh"
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

// What the block and the cluster exchange share: values in shared memory, two buffers in turn:
// those that step s reads lie in buffer s % 2. A buffer is written again two steps later, and every
// thread has then passed a barrier that comes after its reads.
template <class Pass, Number kNumber, Tile kTile>
class SharedValues {
 public:
  PRNN_DEVICE SharedValues(const SharedLayout& layout, const Place& place)
      : place_(place),
        pitch_(static_cast<int>(layout.pitch)),
        buffer_bytes_(kTile.columns() * pitch_) {
    buffers_ = ptx::shared() + static_cast<int>(layout.values);
    // What lies beyond the last published value is multiplied with weights of zero.
    for (int i = 16 * place.thread; i < 2 * buffer_bytes_; i += 16 * kThreads)
      *reinterpret_cast<ptx::Word4*>(buffers_ + i) = {0, 0, 0, 0};
  }

  PRNN_DEVICE char* buffer(int s) const { return buffers_ + (s & 1) * buffer_bytes_; }
  PRNN_DEVICE int value_at(int column, int value) const {
    return column * pitch_ + value * static_cast<int>(sizeof(typename Pass::Value));
  }
  PRNN_DEVICE void read_from(int s) { from_ = buffer(s) + place_.row * pitch_ + 16 * place_.part; }
  PRNN_DEVICE void load(ptx::Word4 (&v)[kTile.n_tiles], int k_block) const {
#pragma unroll
    for (int n = 0; n < kTile.n_tiles; ++n)
      v[n] = *reinterpret_cast<const ptx::Word4*>(from_ + 8 * n * pitch_ + k_block * kKBlockBytes);
  }
  template <int kAheadHere>
  PRNN_DEVICE void wait(ptx::Word4 (&)[kAheadHere][kTile.n_tiles], int, int, int) const {}

 private:
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
  PRNN_DEVICE BlockExchange(const Task<Pass>&, const SharedLayout& layout, const Place& place)
      : Values(layout, place) {}

  PRNN_DEVICE void begin(const Job<Pass>&) { ptx::bar_sync(); }
  PRNN_DEVICE void arrive(int s) { Values::read_from(s); }
  PRNN_DEVICE void publish(int s, int column, int value, ptx::Word2 granule, int which) const {
    if (which == 0)
      *reinterpret_cast<ptx::Word2*>(Values::buffer(s + 1) + Values::value_at(column, value)) =
          granule;
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
      : Values(layout, place),
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
  PRNN_DEVICE void publish(int s, int column, int value, ptx::Word2 granule, int which) const {
    if (s + 1 == job_.end_step) return;
    const char* to = Values::buffer(s + 1) + Values::value_at(column, value);
    ptx::MBarrier* barrier = barriers_ + ((s + 1) & 1);
    for (int rank = which; rank < blocks_; rank += granule_units(kNumber))
      ptx::st_async_v2_b32(ptx::mapa(to, rank), granule, ptx::mapa(barrier, rank));
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

// A team of any blocks of a grid that all run: the output is the mailbox. It is filled with
// kUnwritten before the launch, every granule is written once and read until it is there. The
// value read is the message itself, so nothing needs to be ordered: no flag, fence or barrier; and
// nothing is written twice, so nobody can be late.
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
    const int k_blocks = static_cast<int>(ceil_div(depth_bytes - 16 * place_.part, kKBlockBytes));
#pragma unroll
    for (int n = 0; n < kTile.n_tiles; ++n) {
      const int row = job.first_row + 8 * n + place_.row;
      end_[n] = row < shape_.batch ? k_blocks : 0;
    }
    stride_ = (Pass::published_at(shape_, job.group, 1, 0) -
               Pass::published_at(shape_, job.group, 0, 0)) *
              static_cast<std::int64_t>(sizeof(Value));
  }
  PRNN_DEVICE void arrive(int s) {
    if (!job_.reads(s)) return;
#pragma unroll
    for (int n = 0; n < kTile.n_tiles; ++n) {
      // Short, for this is on the way from one step to the next; two tiles have no registers for
      // it.
      if (kTile.n_tiles == 1 && s > job_.first_step + 1) {
        from_[n] += stride_;
      } else {
        const Value* row = row_published(s - 1, job_.first_row + 8 * n + place_.row);
        from_[n] = reinterpret_cast<const char*>(row) + 16 * place_.part;
      }
    }
  }
  // Lanes whose 16 bytes lie beyond the last value, or whose column is no row of the batch, have
  // zeros: they read nothing.
  PRNN_DEVICE void load(ptx::Word4 (&v)[kTile.n_tiles], int k_block) const {
#pragma unroll
    for (int n = 0; n < kTile.n_tiles; ++n)
      if (k_block < end_[n]) v[n] = read(n, k_block);
  }
  // Reads again what has not been written yet, all of it in flight together.
  template <int kAheadHere>
  PRNN_DEVICE void wait(ptx::Word4 (&v)[kAheadHere][kTile.n_tiles], int first, int stride,
                        int s) const {
    Wait wait;
    while (true) {
      bool all = true;
#pragma unroll
      for (int i = 0; i < kAheadHere; ++i)
#pragma unroll
        for (int n = 0; n < kTile.n_tiles; ++n) all = all && arrived(v[i][n]);
      if (ptx::vote_all(all)) return;
      wait.turn(task_.watchdog, Exchange::kGrid, job_, s);
#pragma unroll
      for (int i = 0; i < kAheadHere; ++i)
#pragma unroll
        for (int n = 0; n < kTile.n_tiles; ++n)
          if (!arrived(v[i][n])) v[i][n] = read(n, first + i * stride);
    }
  }
  PRNN_DEVICE void publish(int s, int column, int value, ptx::Word2 granule, int which) const {
    const int row = job_.first_row + column;
    if (which != 0 || row >= shape_.batch) return;
    ptx::st_relaxed_gpu_b64(row_published(s, row) + value, granule);
    // The fill may have left the second-level cache; who polls should find it there.
    constexpr int kStepsAhead = 2;
    if (s + kStepsAhead < task_.pass.shape.time)
      ptx::prefetch_global_l2(row_published(s + kStepsAhead, row) + value);
  }
  PRNN_DEVICE void leave(int) const {}
  PRNN_DEVICE void end() const {}

 private:
  using Value = typename Pass::Value;

  // One word tells of each half, which is written by one store.
  PRNN_DEVICE static bool arrived(const ptx::Word4& v) {
    return v.x != kUnwritten && v.z != kUnwritten;
  }
  PRNN_DEVICE ptx::Word4 read(int n, int k_block) const {
    return ptx::ld_relaxed_gpu_v2_b64(from_[n] + k_block * kKBlockBytes);
  }
  PRNN_DEVICE Value* row_published(int s, int row) const {
    if (s < 0) return task_.initial + shape_.state_at(row, job_.group);
    return task_.mailbox + Pass::published_at(shape_, job_.group, s, row);
  }

  const Task<Pass>& task_;
  Place place_;
  Shape shape_;  // of the mailbox
  Job<Pass> job_;
  int end_[kTile.n_tiles];  // k blocks of which this lane has a part
  const char* from_[kTile.n_tiles];
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
