// A launch while it runs: threads, warps, blocks, clusters, and the scheduler.
#pragma once
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "emulator/delayed_stores.h"
#include "emulator/emulator.h"
#include "emulator/faults.h"
#include "emulator/fiber.h"
#include "emulator/matrix.h"
#include "emulator/operations.h"
#include "emulator/random.h"

namespace prnn::emulator {

inline constexpr int kLanes = 32;

struct Block;
struct Cluster;
struct Warp;

// Where a thread waits, or has failed.
struct Place {
  const char* operation = "start";
  Where where;
};
bool same_place(const Place& a, const Place& b);
// " (file.cuh:12)"
std::string source_of(const Place& place);

// Unwinds the stack of a thread that cannot go on.
struct Cancelled {};

enum class State { kReady, kSpinning, kBlocked, kEnded };

struct Thread {
  int tid = 0;
  Block* block = nullptr;
  Warp* warp = nullptr;
  Fiber* fiber = nullptr;
  State state = State::kReady;
  Place place;
  // Of the cluster barrier: the generation it has arrived at and not yet waited for, or -1.
  std::int64_t cluster_generation = -1;

  int lane() const { return tid % kLanes; }
};

struct Warp {
  Thread* threads = nullptr;  // of kLanes
  // One bit per lane. A warp with some is in the scheduler's list of that name.
  std::uint32_t ready = 0, spinning = 0;
  bool listed_ready = false, listed_spinning = false;
  int ended = 0, at_block_barrier = 0;

  // The collective operation that the lanes are arriving at.
  int arrived = 0;
  Place place;
  std::uint32_t words[kLanes] = {}, word_results[kLanes] = {};
  Fragments fragments[kLanes] = {};
  Products products[kLanes] = {};
  unsigned barriers = 0;  // bar.warp.sync that all lanes have come to
  char order[2] = {};     // ThreadSanitizer's objects for bar.warp.sync
};

struct MBarrierState {
  char* address = nullptr;
  std::uint32_t count = 0, pending = 0;  // arrivals: per phase, and still to come
  std::int64_t tx_bytes = 0;             // expected less arrived
  std::uint64_t phase = 0;               // the one under way
  const Thread* initialiser = nullptr;
  bool fenced = false;  // known to the cluster
  char order[2] = {};   // ThreadSanitizer's objects, by parity of the phase
};

// Of a barrier for which not all who arrive wait.
struct SecondBarrier {
  int arrived = 0;
  std::uint64_t generation = 0;
  std::vector<Thread*> waiting;
  char order[2] = {};  // ThreadSanitizer's objects
};

struct Block {
  Block(int index, int rank, Cluster* cluster, int threads, std::size_t shared_bytes);
  ~Block();
  Block(const Block&) = delete;
  // The mbarrier at this address, or null.
  MBarrierState* mbarrier_at(const void* p);

  const int index, rank;
  Cluster* const cluster;
  char* const shared;  // an allocation of its own, of the exact size, for AddressSanitizer
  const std::size_t shared_bytes;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::deque<MBarrierState> mbarriers;
  int ended = 0, at_barrier = 0;
  std::uint64_t barrier_generation = 0;
  char order[2] = {};  // ThreadSanitizer's objects for bar.sync
  SecondBarrier second;

  bool exited() const { return ended == static_cast<int>(threads.size()); }
  bool holds(const char* p, std::size_t bytes) const {
    return p >= shared && p + bytes <= shared + shared_bytes;
  }
};

struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  int live_threads = 0, arrived = 0;
  std::int64_t generation = 0;
  std::vector<Thread*> waiting;
  char order[2] = {};
};

class Machine {
 public:
  Machine(const Launch& shape, const std::function<void()>& kernel, const Options& options);
  ~Machine();
  Statistics run();

  // ---- for the operations, from the thread that runs ----
  Thread& current() { return *current_; }
  // Lets others run until wake(); throws Cancelled if the launch has failed meanwhile.
  void block(Place place);
  // Lets others run; whether that helps, the thread must see for itself.
  void yield(Place place);
  void wake(Thread& thread);
  // Something has changed that a spinning thread may be waiting for: memory, or who runs.
  void progress() { ++progress_; }
  void store(const DelayedStore& store);  // arrives now or later
  // Those of this block to global memory arrive now.
  void flush(const Block& block);
  void complete_tx(MBarrierState& mbarrier, std::int64_t bytes);
  void complete_if_due(MBarrierState& mbarrier);
  void complete_if_due(Cluster& cluster);
  // Fails the launch. The second is for errors of no particular thread.
  [[noreturn]] void fail(Place place, const std::string& what);
  [[noreturn]] void trap(Place place);
  std::uint32_t clock() const { return clock_; }
  void fail(const std::string& what);

  const Launch shape;
  const Options options;
  const Fault fault;
  Statistics statistics;
  Random random;
  DelayedStores delayed;
  int stores_until_fault;  // Fault::kSkipStore

 private:
  static void run_thread(void* thread);
  void start_cluster();
  void retire(Thread& thread);
  void run_warp(Warp& warp);
  void resume(Thread& thread);
  void list_ready(Warp& warp);
  Warp& take_ready();
  bool poll_again();
  void rouse(std::size_t spinning_index);
  void arrive(const DelayedStore& store);
  void switch_out(Place place, State state);
  void cancel();
  std::string deadlock() const;

  const std::function<void()>& kernel_;
  std::deque<Cluster> clusters_;  // those started, in order
  int clusters_left_;
  int live_threads_ = 0;
  std::deque<Warp*> ready_;
  std::vector<Warp*> spinning_;
  std::vector<Fiber*> idle_fibers_;  // of threads that have ended
  Thread* current_ = nullptr;
  std::uint64_t progress_ = 1, progress_at_poll_ = 0;
  int idle_polls_ = 0;
  std::uint32_t clock_ = 0;  // moves only where nothing else does
  std::string stuck_;        // where all waited when it first did
  bool failed_ = false, cancelling_ = false;
  std::string failure_;
  std::exception_ptr thrown_;
  char begin_order_ = 0, end_order_ = 0;
};

// The launch that this host thread is running, or null.
Machine* running();

}  // namespace prnn::emulator
