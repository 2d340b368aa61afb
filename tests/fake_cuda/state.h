// What the parts of the fake runtime share: its devices, streams and calls. All under one lock.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/devices.h"
#include "emulator/emulator.h"
#include "fake_cuda/control.h"

namespace prnn::fake_cuda {

constexpr int kDefaultShared = 48 * 1024;

// Per kernel and device; kept until the process ends.
struct KernelState {
  int max_dynamic_shared = kDefaultShared;
  bool non_portable_cluster = false;
};

struct DeviceState {
  Device record;
  Limits limits;
  std::map<const void*, KernelState> kernels;  // those loaded
  cudaError_t sticky = cudaSuccess;            // the context is lost
  std::string failure;
  int busy_sms = 0;
  int running_grids = 0;  // cooperative
  bool grids_overlapped = false;
  int host_blocks = 0;  // of the host's memory, that are allocated
};

struct Operation {
  std::function<void()> run;
  emulator::Launch shape;  // of a kernel; grid 0: none
};

}  // namespace prnn::fake_cuda

struct CUgraph_st {
  int device;
  std::vector<prnn::fake_cuda::Operation> nodes;
};
struct CUgraphExec_st : CUgraph_st {};
struct CUstream_st {
  int device;
  std::deque<prnn::fake_cuda::Operation> queue;
  std::uint64_t enqueued = 0;  // since it was made
  std::atomic<std::uint64_t> done = 0;
  std::mutex running;
  bool capturing = false, invalid = false;
  CUgraph_st graph;
};

// What a stream had to do when it was recorded.
struct CUevent_st {
  int device;
  CUstream_st* stream = nullptr;
  std::uint64_t position = 0;
};

namespace prnn::fake_cuda {

struct Runtime {
  std::mutex mutex;
  std::condition_variable sms_freed;
  std::deque<DeviceState> devices;
  std::map<std::string, int, std::less<>> calls;
  std::string fails;
  int fails_in = 0;
  cudaError_t fails_with = cudaSuccess;
  std::uint64_t seed = 1;
  std::string fault;
};
Runtime& runtime();
// Null where there is none.
DeviceState* device_at(int ordinal);

inline thread_local int current_device = 0;
inline thread_local cudaError_t last_error = cudaSuccess;
inline thread_local std::string launched;
inline thread_local bool counting = false;
inline thread_local CUstream_st* capture = nullptr;  // begun by this thread

// A call of the API: counted, failed where a test wants it, and its error is kept for
// cudaGetLastError. All under the lock.
class Call {
 public:
  explicit Call(const char* function) : lock_(runtime().mutex) {
    if (!counting) return;
    Runtime& r = runtime();
    ++r.calls[function];
    if (r.fails_in > 0 && r.fails == function && --r.fails_in == 0) injected_ = r.fails_with;
  }
  // The error, with what the context says before it.
  cudaError_t end(cudaError_t error) {
    if (injected_ != cudaSuccess) error = injected_;
    if (error != cudaSuccess) last_error = error;
    return error;
  }
  bool failed() const { return injected_ != cudaSuccess; }

 private:
  std::unique_lock<std::mutex> lock_;
  cudaError_t injected_ = cudaSuccess;
};

// To the end of a stream, or of what it captures.
cudaError_t enqueue(cudaStream_t stream, Operation operation);
// On the SMs that it gets, in the calling thread.
void run_kernel(DeviceState& device, const Operation& operation);

}  // namespace prnn::fake_cuda
