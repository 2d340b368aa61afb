#include "emulator/operations.h"

#include <cstring>
#include <string>
#include <utility>

#include "emulator/emulator.h"
#include "emulator/faults.h"
#include "emulator/machine.h"
#include "emulator/sanitizers.h"

namespace prnn::emulator {
namespace {

using sanitizers::Ignore;
using sanitizers::Observe;

Machine& machine() {
  if (running() == nullptr) throw EmulatorError("an operation of the device outside of a launch");
  return *running();
}
Thread& self() { return machine().current(); }

std::string count_of(int n, const char* what) { return std::to_string(n) + " " + what; }

}  // namespace

int thread_in_block() { return self().tid; }
int block_in_grid() { return self().block->index; }
int blocks_in_grid() { return machine().shape.grid; }
char* shared_memory() { return self().block->shared; }
std::size_t shared_bytes() { return machine().shape.shared_bytes; }
void fail(const char* operation, const std::string& what, Where where) {
  const Ignore ignore;
  machine().fail({operation, where}, what);
}
int rank_in_cluster() { return self().block->rank; }
bool truncates() { return running() != nullptr && running()->fault == Fault::kTruncate; }

// ---- within a block ----

void block_barrier(Where where) {
  const Ignore ignore;
  Machine& m = machine();
  Thread& thread = m.current();
  Block& block = *thread.block;
  Warp& warp = *thread.warp;
  const Place place{"bar.sync", where};
  if (m.fault == Fault::kSkipBarSync) return;
  if (block.ended > 0) m.fail(place, count_of(block.ended, "threads of the block have exited"));
  if (warp.arrived > 0)
    m.fail(place, "divergence: " + count_of(warp.arrived, "lanes of the warp wait at ") +
                      warp.place.operation);
  char* order = &block.order[block.barrier_generation % 2];
  sanitizers::release(order);
  ++warp.at_block_barrier;
  thread.place = place;
  if (++block.at_barrier < static_cast<int>(block.threads.size())) {
    m.block(place);
  } else {
    block.at_barrier = 0;
    ++block.barrier_generation;
    ++m.statistics.barriers;
    for (Warp& w : block.warps) w.at_block_barrier = 0;
    for (Thread& other : block.threads) {
      // The instruction is "aligned": all lanes of a warp must execute the same one.
      if (!same_place(other.place, other.warp->threads[0].place))
        m.fail(place, "divergence: lanes of one warp wait at different bar.sync");
      if (&other != &thread) m.wake(other);
    }
  }
  sanitizers::acquire(order);
}

void second_barrier(int threads, bool waits, Where where) {
  const Ignore ignore;
  Machine& m = machine();
  if (m.fault == Fault::kSkipBarSync) return;
  Thread& thread = m.current();
  Block& block = *thread.block;
  const Place place{waits ? "bar.sync 1" : "bar.arrive", where};
  char* order = &block.second.order[block.second.generation % 2];
  sanitizers::release(order);
  if (++block.second.arrived == threads) {
    block.second.arrived = 0;
    ++block.second.generation;
    for (Thread* other : block.second.waiting) m.wake(*other);
    block.second.waiting.clear();
  } else if (waits) {
    block.second.waiting.push_back(&thread);
    thread.place = place;
    m.block(place);
  }
  if (waits) sanitizers::acquire(order);
}

namespace {

// Waits for all lanes of the warp; the last one to come computes for all.
template <class Compute>
void collective(Machine& m, Place place, Compute compute) {
  Thread& thread = m.current();
  Warp& warp = *thread.warp;
  if (warp.ended > 0) m.fail(place, count_of(warp.ended, "lanes of the warp have exited"));
  if (warp.at_block_barrier > 0)
    m.fail(place,
           "divergence: " + count_of(warp.at_block_barrier, "lanes of the warp wait at bar.sync"));
  if (warp.arrived == 0) {
    warp.place = place;
  } else if (!same_place(place, warp.place)) {
    m.fail(place, "divergence: " + count_of(warp.arrived, "lanes of the warp wait at ") +
                      warp.place.operation + " in line " + std::to_string(warp.place.where.line));
  }
  if (++warp.arrived < kLanes) return m.block(place);
  warp.arrived = 0;
  compute(warp);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (lane != thread.lane()) m.wake(warp.threads[lane]);
  }
}

}  // namespace

void warp_barrier(Where where) {
  const Ignore ignore;
  Machine& m = machine();
  if (m.fault == Fault::kSkipWarpSync) return;
  // Two in turn: a lane that resumes late must not be ordered after what others do next.
  Warp& warp = *m.current().warp;
  char* order = &warp.order[warp.barriers % 2];
  sanitizers::release(order);
  collective(m, {"bar.warp.sync", where}, [](Warp& w) { ++w.barriers; });
  sanitizers::acquire(order);
}

std::uint32_t shuffle(std::uint32_t v, int mask, Where where) {
  const Ignore ignore;
  Machine& m = machine();
  const Thread& thread = m.current();
  const Place place{"shfl.sync", where};
  if (mask < 0 || mask >= kLanes) m.fail(place, "no lane is " + std::to_string(mask) + " away");
  if (m.fault == Fault::kShuffleLane) mask ^= 1;
  Warp& warp = *thread.warp;
  warp.words[thread.lane()] = v;
  collective(m, place, [](Warp& w) { std::memcpy(w.word_results, w.words, sizeof(w.words)); });
  return warp.word_results[thread.lane() ^ mask];
}

bool vote(bool v, Where where) {
  const Ignore ignore;
  Machine& m = machine();
  const Thread& thread = m.current();
  Warp& warp = *thread.warp;
  warp.words[thread.lane()] = v;
  const bool any_will_do = m.fault == Fault::kVoteAny;
  collective(m, {"vote.sync", where}, [any_will_do](Warp& w) {
    int votes = 0;
    for (const std::uint32_t word : w.words) votes += static_cast<int>(word);
    const bool result = any_will_do ? votes > 0 : votes == kLanes;
    for (std::uint32_t& out : w.word_results) out = result;
  });
  return warp.word_results[thread.lane()] != 0;
}

Products matrix_product(MatrixKind kind, const Fragments& fragments, Where where) {
  const Ignore ignore;
  Machine& m = machine();
  const Thread& thread = m.current();
  Warp& warp = *thread.warp;
  Fragments& mine = warp.fragments[thread.lane()];
  mine = fragments;
  if (m.fault == Fault::kAFragmentOrder) std::swap(mine.a[1], mine.a[2]);
  if (m.fault == Fault::kBFragmentOrder) std::swap(mine.b[0], mine.b[1]);
  collective(m, {"mma.sync", where}, [&m, kind](Warp& w) {
    ++m.statistics.matrix_products;
    multiply(kind, w.fragments, w.products);
  });
  return warp.products[thread.lane()];
}

// ---- global memory ----

void require_aligned(const void* p, int bytes, Where where) {
  if (p != nullptr && reinterpret_cast<std::uintptr_t>(p) % bytes == 0) return;
  const Ignore ignore;
  machine().fail({"access", where}, p == nullptr ? "a null address"
                                                 : "an address that is no multiple of " +
                                                       std::to_string(bytes) + " (misaligned)");
}

std::uint64_t load_granule(const void* p) {
  const Ignore ignore;
  Machine& m = machine();
  ++m.statistics.loads;
  const auto own = m.delayed.seen_by(m.current().block->index, p);
  const std::uint64_t v = own ? *own : *static_cast<const volatile std::uint64_t*>(p);
  return m.fault == Fault::kStaleGranule && v == ~std::uint64_t{0} ? 0 : v;
}

void store_granule(void* p, std::uint64_t v) {
  const Ignore ignore;
  Machine& m = machine();
  DelayedStore store;
  store.source = m.current().block->index;
  store.to = static_cast<char*>(p);
  store.value = v;
  m.store(store);
}

// ---- waiting ----

void spin(Where where) {
  const Ignore ignore;
  machine().yield({"spin", where});
}

std::uint32_t clock() { return machine().clock(); }

// Threads run one at a time.
std::uint32_t compare_and_swap(std::uint32_t* p, std::uint32_t expected, std::uint32_t v) {
  const Ignore ignore;
  const std::uint32_t before = *p;
  if (before == expected) *p = v;
  return before;
}

void trap(Where where) {
  const Ignore ignore;
  machine().trap({"trap", where});
}

// ---- clusters ----

char* remote_address(const void* p, int rank, Where where) {
  const Ignore ignore;
  Machine& m = machine();
  const Block& block = *m.current().block;
  const Place place{"mapa", where};
  if (!block.holds(static_cast<const char*>(p), 1))
    m.fail(place, "not an address of this block's shared memory");
  if (rank < 0 || rank >= m.shape.cluster)
    m.fail(place, "the cluster has no block of rank " + std::to_string(rank));
  if (m.fault == Fault::kWrongRank) rank = (rank + 1) % m.shape.cluster;
  return block.cluster->blocks[rank]->shared + (static_cast<const char*>(p) - block.shared);
}

namespace {

// What an initialised mbarrier's memory holds: a store over it is noticed.
std::uint64_t mark_of(const char* mbarrier) {
  return reinterpret_cast<std::uintptr_t>(mbarrier) ^ 0x6d62617272696572;
}

MBarrierState& find_mbarrier(Machine& m, Block& block, char* address, Place place) {
  MBarrierState* found = block.mbarrier_at(address);
  if (found == nullptr) m.fail(place, "the mbarrier is not initialised");
  std::uint64_t mark;
  std::memcpy(&mark, address, sizeof(mark));
  if (mark != mark_of(address)) m.fail(place, "the mbarrier has been overwritten");
  // To ThreadSanitizer, uses of it are reads, and its initialisation is a write.
  const Observe observe;
  sanitizers::plain_read8(address);
  return *found;
}

}  // namespace

void store_remote(char* to, std::uint64_t v, char* mbarrier, Where where) {
  const Ignore ignore;
  Machine& m = machine();
  Block& block = *m.current().block;
  const Place place{"st.async", where};
  require_aligned(to, 8, where);
  Block* target = nullptr;
  for (const auto& b : block.cluster->blocks) {
    if (b->holds(to, 8)) target = b.get();
  }
  if (target == nullptr) m.fail(place, "no address of the cluster's shared memory");
  const std::string name = "block " + std::to_string(target->index);
  if (target->exited()) m.fail(place, "stores into " + name + ", which has exited");
  if (!target->holds(mbarrier, 8)) m.fail(place, "the mbarrier does not lie in " + name);
  MBarrierState& state = find_mbarrier(m, *target, mbarrier, place);
  if (target != &block && !state.fenced)
    m.fail(place, "its mbarrier lacks fence.mbarrier_init after mbarrier.init");
  if (m.delayed.holds(block.index, to))
    m.fail(place, "a second st.async to an address while the first is under way");
  {
    const Observe observe;
    sanitizers::plain_write8(to);
  }
  sanitizers::release(&state.order[state.phase % 2]);

  DelayedStore store;
  store.source = block.index;
  store.to = to;
  store.value = v;
  store.target = target;
  store.mbarrier = mbarrier;
  if (m.fault == Fault::kEarlyTx) {
    store.mbarrier = nullptr;
    m.complete_tx(state, sizeof(v));
  }
  m.store(store);
}

void mbarrier_init(void* mbarrier, std::uint32_t count, Where where) {
  const Ignore ignore;
  Machine& m = machine();
  Thread& thread = m.current();
  auto* address = static_cast<char*>(mbarrier);
  const Place place{"mbarrier.init", where};
  require_aligned(address, 8, where);
  if (!thread.block->holds(address, 8)) m.fail(place, "not in this block's shared memory");
  if (thread.block->mbarrier_at(address) != nullptr) m.fail(place, "initialised before");
  if (count == 0) m.fail(place, "a count of 0");
  {
    const Observe observe;
    sanitizers::plain_write8(address);
  }
  const std::uint64_t mark = mark_of(address);
  std::memcpy(address, &mark, sizeof(mark));
  MBarrierState& state = thread.block->mbarriers.emplace_back();
  state.address = address;
  state.count = state.pending = count;
  state.initialiser = &thread;
}

void mbarrier_fence() {
  const Ignore ignore;
  const Thread& thread = self();
  for (MBarrierState& state : thread.block->mbarriers) {
    if (state.initialiser == &thread) state.fenced = true;
  }
}

void mbarrier_arrive(void* mbarrier, std::uint32_t bytes, Where where) {
  const Ignore ignore;
  Machine& m = machine();
  const Place place{"mbarrier.arrive.expect_tx", where};
  MBarrierState& state = find_mbarrier(m, *m.current().block, static_cast<char*>(mbarrier), place);
  constexpr std::uint32_t kMostBytes = (1u << 20) - 1;  // PTX ISA 9.7.13.15.5
  if (bytes > kMostBytes) m.fail(place, "more bytes than an mbarrier can count");
  if (state.pending == 0) m.fail(place, "more arrivals than its count in one phase");
  sanitizers::release(&state.order[state.phase % 2]);
  if (m.fault == Fault::kExpectTxShort) bytes -= 8;
  state.tx_bytes += bytes;
  --state.pending;
  m.progress();
  m.complete_if_due(state);
}

bool mbarrier_complete(void* mbarrier, std::uint32_t parity, Where where) {
  const Ignore ignore;
  Machine& m = machine();
  const Place place{"mbarrier.try_wait", where};
  MBarrierState& state = find_mbarrier(m, *m.current().block, static_cast<char*>(mbarrier), place);
  if (parity > 1) m.fail(place, "a parity of " + std::to_string(parity));
  if (m.fault == Fault::kNoAcquire) return true;
  if (state.phase % 2 == parity) {
    m.yield(place);
    return false;
  }
  sanitizers::acquire(&state.order[parity]);
  return true;
}

void cluster_arrive(Where where) {
  const Ignore ignore;
  Machine& m = machine();
  Thread& thread = m.current();
  Cluster& cluster = *thread.block->cluster;
  if (m.fault == Fault::kSkipClusterBarrier) return;
  if (thread.cluster_generation >= 0)
    m.fail({"barrier.cluster.arrive", where}, "a second time without wait");
  sanitizers::release(&cluster.order[cluster.generation % 2]);
  // Release: of this thread's stores, and of those it knows of from the block's barriers.
  m.flush(*thread.block);
  thread.cluster_generation = cluster.generation;
  ++cluster.arrived;
  m.complete_if_due(cluster);
}

void cluster_wait(Where where) {
  const Ignore ignore;
  Machine& m = machine();
  Thread& thread = m.current();
  Cluster& cluster = *thread.block->cluster;
  const Place place{"barrier.cluster.wait", where};
  if (m.fault == Fault::kSkipClusterBarrier) return;
  const std::int64_t generation = thread.cluster_generation;
  if (generation < 0) m.fail(place, "without arrive");
  thread.cluster_generation = -1;
  if (cluster.generation == generation) {
    cluster.waiting.push_back(&thread);
    m.block(place);
  }
  sanitizers::acquire(&cluster.order[generation % 2]);
}

}  // namespace prnn::emulator
