#include "emulator/machine.h"

#include <cstring>
#include <new>
#include <utility>

#include "emulator/sanitizers.h"

namespace prnn::emulator {
namespace {

constinit thread_local Machine* running_machine = nullptr;

// As the device's driver and compiler align it.
constexpr std::align_val_t kSharedAlignment{128};
// A round in which every waiting thread looks and none stores anything, with nothing under way, is
// a deadlock; many, because one turn of a kernel's loop may be several steps here. Barriers and
// votes do not count as progress, since a loop that waits may be made of them.
constexpr int kIdlePolls = 64;
// How often a warp goes on, collective operations being done, before others may.
constexpr std::size_t kMostTurns = 16;
// What passes then, in units of 2^20 ns; and how often, until nothing can be expected of it.
constexpr std::uint32_t kLongWhile = 1 << 10, kLongWhiles = 64;

Fault fault_of(const std::string& name) {
  for (const auto& [known, fault] : kFaults) {
    if (name == known) return fault;
  }
  throw EmulatorError("no fault is named '" + name + "'");
}

std::string name_of(const Thread& thread) {
  return "block " + std::to_string(thread.block->index) + " thread " + std::to_string(thread.tid);
}

}  // namespace

Machine* running() { return running_machine; }

bool same_place(const Place& a, const Place& b) {
  const auto same = [](const char* s, const char* t) { return s == t || std::strcmp(s, t) == 0; };
  return a.where.line == b.where.line && a.where.column == b.where.column &&
         same(a.operation, b.operation) && same(a.where.file, b.where.file);
}

Block::Block(int index, int rank, Cluster* cluster, int threads, std::size_t shared_bytes)
    : index(index),
      rank(rank),
      cluster(cluster),
      shared(static_cast<char*>(::operator new(shared_bytes, kSharedAlignment))),
      shared_bytes(shared_bytes),
      threads(threads),
      warps(threads / kLanes) {
  // All ones: NaN in every format, and what a kernel must not take for data.
  std::memset(shared, 0xff, shared_bytes);
  for (int w = 0; w < threads / kLanes; ++w) warps[w].threads = &this->threads[w * kLanes];
}
Block::~Block() { ::operator delete(shared, kSharedAlignment); }

MBarrierState* Block::mbarrier_at(const void* p) {
  for (MBarrierState& m : mbarriers) {
    if (m.address == p) return &m;
  }
  return nullptr;
}

Machine::Machine(const Launch& shape, const std::function<void()>& kernel, const Options& options)
    : shape(shape),
      options(options),
      fault(fault_of(options.fault)),
      random(options.seed),
      delayed(shape.grid),
      kernel_(kernel),
      clusters_left_(shape.grid / shape.cluster) {
  stores_until_fault = static_cast<int>(random.below(4));
  sanitizers::release(&begin_order_);
  const int resident = options.resident_blocks == 0 ? shape.grid : options.resident_blocks;
  for (int c = resident / shape.cluster; c > 0 && clusters_left_ > 0; --c) start_cluster();
}

Machine::~Machine() {
  running_machine = nullptr;
  for (Fiber* fiber : idle_fibers_) Fiber::give_back(fiber);
}

void Machine::start_cluster() {
  const int first = shape.grid - clusters_left_ * shape.cluster;
  --clusters_left_;
  Cluster& cluster = clusters_.emplace_back();
  cluster.live_threads = shape.cluster * shape.block;
  live_threads_ += cluster.live_threads;
  for (int rank = 0; rank < shape.cluster; ++rank) {
    cluster.blocks.push_back(
        std::make_unique<Block>(first + rank, rank, &cluster, shape.block, shape.shared_bytes));
    Block& block = *cluster.blocks.back();
    for (int tid = 0; tid < shape.block; ++tid) {
      Thread& thread = block.threads[tid];
      thread.tid = tid;
      thread.block = &block;
      thread.warp = &block.warps[tid / kLanes];
      if (idle_fibers_.empty()) {
        thread.fiber = Fiber::take();
      } else {
        thread.fiber = idle_fibers_.back();
        idle_fibers_.pop_back();
      }
      thread.fiber->start(&Machine::run_thread, &thread,
                          sanitizers::kThread ? name_of(thread) : std::string());
      wake(thread);
    }
  }
  progress();
}

// ---- threads ----

void Machine::run_thread(void* argument) {
  Thread& thread = *static_cast<Thread*>(argument);
  Machine& machine = *running();
  sanitizers::acquire(&machine.begin_order_);
  try {
    if (!machine.cancelling_) {
      const sanitizers::Observe observe;
      machine.kernel_();
    }
  } catch (const Cancelled&) {
  } catch (...) {
    if (!machine.failed_) machine.thrown_ = std::current_exception();
    machine.failed_ = true;
  }
  sanitizers::release(&machine.end_order_);
  thread.state = State::kEnded;
}

void Machine::switch_out(Place place, State state) {
  Thread& thread = current();
  thread.place = place;
  thread.state = state;
  thread.fiber->suspend();
  if (cancelling_) throw Cancelled();
}

void Machine::block(Place place) { switch_out(place, State::kBlocked); }

void Machine::yield(Place place) {
  Warp& warp = *current().warp;
  warp.spinning |= 1u << current().lane();
  if (!std::exchange(warp.listed_spinning, true)) spinning_.push_back(&warp);
  switch_out(place, State::kSpinning);
}

void Machine::wake(Thread& thread) {
  thread.state = State::kReady;
  thread.warp->ready |= 1u << thread.lane();
  list_ready(*thread.warp);
}

void Machine::fail(Place place, const std::string& what) {
  fail(name_of(current()) + " @ " + place.operation + source_of(place) + ": " + what);
  throw Cancelled();
}

void Machine::trap(Place place) { fail(place, "the kernel has ended itself; " + stuck_); }

void Machine::fail(const std::string& what) {
  if (!failed_) failure_ = what;
  failed_ = true;
}

void Machine::retire(Thread& thread) {
  Block& block = *thread.block;
  Warp& warp = *thread.warp;
  Cluster& cluster = *block.cluster;
  const auto name = [&thread] { return name_of(thread); };
  ++warp.ended;
  ++block.ended;
  --cluster.live_threads;
  --live_threads_;
  progress();
  idle_fibers_.push_back(thread.fiber);
  if (thread.fiber->overflowed()) fail(name() + " has overflowed its stack");
  if (failed_) return;

  if (warp.arrived > 0)
    fail(name() + " has exited while lanes of its warp wait at " + warp.place.operation +
         source_of(warp.place));
  if (block.at_barrier > 0)
    fail(name() + " has exited while " + std::to_string(block.at_barrier) +
         " threads of its block wait at bar.sync");
  if (thread.cluster_generation >= 0)
    fail(name() + " has exited between barrier.cluster.arrive and wait");
  complete_if_due(cluster);
  if (block.exited() && delayed.any_to(&block, cluster.blocks[0]->index, shape.cluster))
    fail("block " + std::to_string(block.index) +
         " has exited while an st.async into it is under way");
  if (cluster.live_threads == 0 && clusters_left_ > 0) start_cluster();
}

// ---- stores ----

void Machine::store(const DelayedStore& store) {
  ++statistics.stores;
  if (fault == Fault::kBlockSilent && store.source == 1) return;
  if (fault == Fault::kSkipStore && stores_until_fault-- == 0) return;
  progress();
  if (options.weak_stores || fault == Fault::kTornGranule) {
    delayed.add(store);
  } else {
    arrive(store);
  }
}

void Machine::arrive(const DelayedStore& store) {
  progress();
  if (fault == Fault::kTornGranule && store.target == nullptr && !store.half_arrived) {
    std::memcpy(store.to, &store.value, 4);
    DelayedStore rest = store;
    rest.half_arrived = true;
    delayed.add(rest);
    return;
  }
  if (store.target != nullptr && store.target->exited())
    return fail("an st.async of block " + std::to_string(store.source) + " arrives in block " +
                std::to_string(store.target->index) + ", which has exited");
  std::memcpy(store.to, &store.value, sizeof(store.value));
  if (store.mbarrier != nullptr)
    complete_tx(*store.target->mbarrier_at(store.mbarrier), sizeof(store.value));
}

void Machine::flush(const Block& block) {
  while (const auto store = delayed.take_global(block.index)) arrive(*store);
}

void Machine::complete_tx(MBarrierState& mbarrier, std::int64_t bytes) {
  mbarrier.tx_bytes -= bytes;
  complete_if_due(mbarrier);
}

void Machine::complete_if_due(MBarrierState& mbarrier) {
  if (mbarrier.pending > 0 || mbarrier.tx_bytes != 0) return;
  mbarrier.pending = mbarrier.count;
  ++mbarrier.phase;
  progress();
}

void Machine::complete_if_due(Cluster& cluster) {
  if (cluster.arrived == 0 || cluster.arrived < cluster.live_threads) return;
  cluster.arrived = 0;
  ++cluster.generation;
  ++statistics.barriers;
  for (Thread* thread : cluster.waiting) wake(*thread);
  cluster.waiting.clear();
  progress();
}

// ---- the scheduler ----
//
// It takes warps rather than threads: the lanes that can go on, or some of them, each up to where
// it waits. A warp's stacks then stay in the cache from one collective operation to the next.

void Machine::list_ready(Warp& warp) {
  if (!std::exchange(warp.listed_ready, true)) ready_.push_back(&warp);
}

Warp& Machine::take_ready() {
  if (options.random_order) std::swap(ready_.front(), ready_[random.below(ready_.size())]);
  Warp& warp = *ready_.front();
  ready_.pop_front();
  return warp;
}

void Machine::run_warp(Warp& warp) {
  std::uint32_t lanes = warp.ready;
  int first = 0;
  if (options.random_order) {
    const std::uint64_t draw = random.next();
    first = static_cast<int>(draw % kLanes);
    const std::uint32_t some = lanes & static_cast<std::uint32_t>(draw >> 32);
    if (draw / kLanes % 8 == 0 && some != 0) lanes = some;
  }
  warp.ready &= ~lanes;
  for (int i = 0; i < kLanes && !failed_; ++i) {
    const int lane = (first + i) % kLanes;
    if (lanes & 1u << lane) resume(warp.threads[lane]);
  }
}

void Machine::resume(Thread& thread) {
  ++statistics.switches;
  current_ = &thread;
  thread.fiber->resume();
  current_ = nullptr;
  if (thread.state == State::kEnded) retire(thread);
}

// Lets the spinning threads of a warp look again.
void Machine::rouse(std::size_t spinning_index) {
  Warp& warp = *spinning_[spinning_index];
  spinning_[spinning_index] = spinning_.back();
  spinning_.pop_back();
  warp.listed_spinning = false;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (warp.spinning & 1u << lane) warp.threads[lane].state = State::kReady;
  }
  warp.ready |= std::exchange(warp.spinning, 0);
  list_ready(warp);
}

// Lets all spinning threads look again, where that may help. False: nothing can help.
bool Machine::poll_again() {
  if (spinning_.empty()) return false;
  if (progress_ != progress_at_poll_) {
    idle_polls_ = 0;
  } else if (!delayed.empty()) {
    // Often one or few, so that threads see some of what they wait for without the rest.
    for (std::size_t n = 1 + random.below(delayed.count()); n > 0 && !delayed.empty(); --n)
      arrive(delayed.take_any(random));
  } else if (++idle_polls_ > kIdlePolls) {
    if (!options.time_passes || clock_ >= kLongWhile * kLongWhiles) return false;
    if (stuck_.empty()) stuck_ = deadlock();
    clock_ += kLongWhile;
    idle_polls_ = 0;
  }
  progress_at_poll_ = progress_;
  while (!spinning_.empty()) rouse(spinning_.size() - 1);
  return true;
}

Statistics Machine::run() {
  running_machine = this;
  while (live_threads_ > 0 && !failed_) {
    if (!delayed.empty() && random.one_in(4)) arrive(delayed.take_any(random));
    if (options.random_order && !spinning_.empty() && random.one_in(64))
      rouse(random.below(spinning_.size()));
    if (!ready_.empty()) {
      Warp& warp = take_ready();
      std::size_t turns = options.random_order ? 1 + random.below(kMostTurns) : kMostTurns;
      for (; turns > 0 && warp.ready != 0 && !failed_; --turns) run_warp(warp);
      // Listed all the while, so that what woke its lanes did not list it a second time.
      warp.listed_ready = false;
      if (warp.ready != 0) list_ready(warp);
    } else if (!poll_again()) {
      fail(deadlock());
    }
  }
  while (!failed_ && !delayed.empty()) arrive(delayed.take_any(random));
  if (failed_) cancel();
  sanitizers::acquire(&end_order_);
  if (thrown_) std::rethrow_exception(thrown_);
  if (failed_) throw EmulatorError(failure_);
  return statistics;
}

void Machine::cancel() {
  cancelling_ = true;
  for (Cluster& cluster : clusters_) {
    for (const auto& block : cluster.blocks) {
      for (Thread& thread : block->threads) {
        while (thread.state != State::kEnded) resume(thread);
      }
    }
  }
}

}  // namespace prnn::emulator
