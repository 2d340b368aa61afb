// Running a planned call on a GPU. Host interface of the CUDA part: ffi/ calls this and includes no
// CUDA header but the stream's type.
#pragma once
#include <optional>
#include <string>

#include "cuda/call.h"
#include "cuda/planner.h"

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

// The properties of CUDA device `ordinal`, as the planner wants them; a failure without a driver.
Failure read_device(int ordinal, Device& device);

// Once per plan and device, before the first launch and never while a stream is captured: loads the
// kernel, lets it have its shared memory and cluster size, and asks whether as many blocks as the
// plan counts on can be resident (they cannot under MPS or MIG, where other limits hold).
Failure prepare(const CudaCall& call, const Plan& plan, const Device& device);

// The results of a call of no steps: the states are handed on. Neither allocates nor waits.
Failure hand_on_states(const CudaCall& call, CUstream_st* stream);

// Fills the mailbox and launches. Neither allocates nor waits; may be captured into a graph.
Failure launch(const CudaCall& call, const Plan& plan, CUstream_st* stream);

}  // namespace prnn
