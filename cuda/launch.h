// Running a planned call on a GPU. Host interface of the CUDA part: ffi/ calls this and includes no
// CUDA header but the stream's type.
#pragma once
#include <mutex>
#include <optional>
#include <string>

#include "cuda/call.h"
#include "cuda/planner.h"

struct CUevent_st;
struct CUstream_st;

namespace prnn {

// Empty: all is well. Else what went wrong, in the caller's words.
using Failure = std::optional<std::string>;

// Makes CUDA device `ordinal` the calling thread's own while it lives, as prepare(), launch() and
// hand_on_states() need it. XLA does not say that it is when a handler runs: where a process has
// several GPUs, a stream of one is an invalid handle while another is current.
class CurrentDevice {
 public:
  explicit CurrentDevice(int ordinal);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  Failure failure;

 private:
  int before_ = -1;  // where it was another
};

// The watchdog of a device's kernels (cuda/watchdog.h), on the host's side.
class HostWatchdog {
 public:
  // Once, while the device is current; it lets waits last so long, and for good where that is 0.
  Failure prepare(double seconds);
  const Watchdog& of_kernels() const { return of_kernels_; }
  // What a kernel that gave up a wait has left behind. The call itself ends with CUDA's own error.
  Failure given_up() const;

 private:
  Watchdog of_kernels_;
  WaitReport* report_ = nullptr;
};

// Grids whose blocks wait for each other run one after the other on a device, whatever streams they
// are launched on: of two that each had a part of the SMs, neither would end, and nothing CUDA
// documents says that this cannot be. Not of those in CUDA graphs: their order is the graph's.
class GridOrder {
 public:
  GridOrder() = default;
  ~GridOrder();
  GridOrder(const GridOrder&) = delete;
  // Once, while the device is current.
  Failure prepare();
  // Launches, of threads one at a time, after what this device's last call of this launched.
  template <class Launch>
  Failure in_turn(CUstream_st* stream, Launch&& launch) {
    bool is_captured;
    if (const Failure failed = find_captured(stream, is_captured)) return failed;
    if (is_captured) return launch();
    const std::lock_guard lock(mutex_);
    if (const Failure failed = wait(stream)) return failed;
    if (const Failure failed = launch()) return failed;
    return record(stream);
  }

 private:
  static Failure find_captured(CUstream_st* stream, bool& is_captured);
  Failure wait(CUstream_st* stream) const;
  Failure record(CUstream_st* stream);

  std::mutex mutex_;
  CUevent_st* last_ = nullptr;
};

// The properties of CUDA device `ordinal`, as the planner wants them; a failure without a driver.
Failure read_device(int ordinal, Device& device);

// Once per plan and device, before the first launch and never while a stream is captured: loads the
// kernel, lets it have its shared memory and cluster size, and asks whether as many blocks as the
// plan counts on can be resident (they cannot under MPS or MIG, where other limits hold).
Failure prepare(const CudaCall& call, const Plan& plan, const Device& device);

// The results of a call of no steps: the states are handed on. Neither allocates nor waits.
Failure hand_on_states(const CudaCall& call, CUstream_st* stream);

// Fills the mailbox and launches. Neither allocates nor waits; may be captured into a graph.
Failure launch(const CudaCall& call, const Plan& plan, CUstream_st* stream, GridOrder& order);

}  // namespace prnn
