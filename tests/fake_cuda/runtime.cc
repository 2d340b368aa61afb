#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "cuda/devices.h"
#include "emulator/emulator.h"
#include "fake_cuda/control.h"

namespace prnn::fake_cuda {
namespace {

constexpr int kDefaultShared = 48 * 1024, kPortableCluster = 8, kMostThreads = 1024;
constexpr int kRegisters = 65536;         // of an SM
constexpr int kRegistersPerThread = 255;  // of every kernel, as the larger ones have
constexpr int kReservedShared = 1024;     // by the system, of each block

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
};

struct Operation {
  std::function<void()> run;
  emulator::Launch shape;  // of a kernel; grid 0: none
};

}  // namespace
}  // namespace prnn::fake_cuda

using prnn::fake_cuda::Operation;

struct CUgraph_st {
  int device;
  std::vector<Operation> nodes;
};
struct CUgraphExec_st : CUgraph_st {};
struct CUstream_st {
  int device;
  std::deque<Operation> queue;
  std::mutex running;
  bool capturing = false, invalid = false;
  CUgraph_st graph;
};

namespace prnn::fake_cuda {
namespace {

struct Runtime {
  std::mutex mutex;
  std::condition_variable sms_freed;
  std::deque<DeviceState> devices;
  std::map<std::string, int, std::less<>> calls;
  std::string fails;
  int fails_in = 0;
  cudaError_t fails_with = cudaSuccess;
  std::uint64_t seed = 1;
};
Runtime& runtime() {
  static auto* const only = new Runtime;
  return *only;
}

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local std::string launched;
thread_local bool counting = false;
thread_local CUstream_st* capture = nullptr;  // begun by this thread

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
  void unlock() { lock_.unlock(); }

 private:
  std::unique_lock<std::mutex> lock_;
  cudaError_t injected_ = cudaSuccess;
};

DeviceState* device_at(int ordinal) {
  auto& all = runtime().devices;
  if (ordinal < 0 || ordinal >= static_cast<int>(all.size())) return nullptr;
  return &all[static_cast<std::size_t>(ordinal)];
}

// Loading a kernel, or asking about one, while this thread captures may wait for the device: unsafe
// there, and the capture is lost.
cudaError_t outside_of_capture() {
  if (capture == nullptr) return cudaSuccess;
  capture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

// The kernel on the current device, loaded.
cudaError_t find_kernel(const void* kernel, DeviceState*& device, KernelState*& state) {
  device = device_at(current_device);
  if (device == nullptr) return cudaErrorInvalidDevice;
  if (device->sticky != cudaSuccess) return device->sticky;
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  if (!device->limits.has_image) return cudaErrorNoKernelImageForDevice;
  if (device->kernels.count(kernel) == 0)
    if (const cudaError_t e = outside_of_capture()) return e;
  state = &device->kernels[kernel];
  return cudaSuccess;
}

int blocks_on_sm(const DeviceState& device, const KernelState& kernel, int threads,
                 std::size_t shared_bytes) {
  const auto shared = static_cast<std::int64_t>(shared_bytes);
  if (shared > kernel.max_dynamic_shared) return 0;
  if (device.limits.shared_bytes != 0 && shared > device.limits.shared_bytes) return 0;
  const std::int64_t of_sm = device.record.shared_bytes + kReservedShared;
  const std::int64_t by_registers = kRegisters / ((kRegistersPerThread + 7) / 8 * 8 * threads);
  return static_cast<int>(std::min(by_registers, of_sm / (shared + kReservedShared)));
}

struct Shape {
  int cluster = 1;
  bool cooperative = false;
};
std::optional<Shape> shape_of(const cudaLaunchConfig_t& config) {
  Shape out;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    switch (attribute.id) {
      case cudaLaunchAttributeCooperative:
        out.cooperative = attribute.val.cooperative != 0;
        break;
      case cudaLaunchAttributeClusterDimension:
        if (attribute.val.clusterDim.y != 1 || attribute.val.clusterDim.z != 1)
          return std::nullopt;  // the emulator has one dimension
        out.cluster = static_cast<int>(attribute.val.clusterDim.x);
        break;
      default:
        return std::nullopt;
    }
  }
  return out;
}

// How many clusters can be resident, or why none may be asked for.
cudaError_t clusters_of(const DeviceState& device, const KernelState& kernel,
                        const cudaLaunchConfig_t& config, int size, int& clusters) {
  clusters = 0;
  if (device.record.compute_capability < 90) return cudaErrorNotSupported;
  if (size < 1 || size > kMaxCluster) return cudaErrorInvalidClusterSize;
  if (size > kPortableCluster && !kernel.non_portable_cluster) return cudaErrorInvalidClusterSize;
  if (config.gridDim.x % static_cast<unsigned>(size) != 0) return cudaErrorInvalidValue;
  const int each =
      blocks_on_sm(device, kernel, static_cast<int>(config.blockDim.x), config.dynamicSmemBytes);
  const bool refused = device.limits.largest_cluster != 0 && size > device.limits.largest_cluster;
  if (!refused) {
    clusters =
        size == 1 ? device.record.sms : device.record.clusters[static_cast<std::size_t>(size)];
    clusters *= each;
  }
  return cudaSuccess;
}

// What a launch is refused for (CUDA Runtime API, "Execution Control"; Programming Guide,
// "Thread Block Clusters", "Cooperative Groups").
cudaError_t check_launch(const cudaLaunchConfig_t& config, const void* kernel, Operation& out) {
  DeviceState* device;
  KernelState* state;
  if (const cudaError_t e = find_kernel(kernel, device, state)) return e;
  // The project never uses the default stream, which would order it with all others.
  if (config.stream == nullptr || config.stream->device != current_device)
    return cudaErrorInvalidResourceHandle;
  const auto shape = shape_of(config);
  const unsigned threads = config.blockDim.x * config.blockDim.y * config.blockDim.z;
  if (!shape || config.gridDim.y != 1 || config.gridDim.z != 1 || config.gridDim.x == 0 ||
      threads == 0 || threads > kMostThreads)
    return cudaErrorInvalidConfiguration;
  if (static_cast<std::int64_t>(config.dynamicSmemBytes) > state->max_dynamic_shared)
    return cudaErrorInvalidValue;
  const int blocks = static_cast<int>(config.gridDim.x);
  const int each =
      blocks_on_sm(*device, *state, static_cast<int>(threads), config.dynamicSmemBytes);
  if (each == 0) return cudaErrorLaunchOutOfResources;
  if (shape->cluster != 1) {
    int clusters;
    if (const cudaError_t e = clusters_of(*device, *state, config, shape->cluster, clusters))
      return e;
    if (clusters == 0) return cudaErrorInvalidClusterSize;
  }
  if (shape->cooperative && !device->record.cooperative) return cudaErrorNotSupported;
  if (shape->cooperative && blocks > each * device->record.sms)
    return cudaErrorCooperativeLaunchTooLarge;
  out.shape = {blocks, shape->cluster, static_cast<int>(threads), config.dynamicSmemBytes,
               shape->cooperative};
  return cudaSuccess;
}

cudaError_t enqueue(cudaStream_t stream, Operation operation) {
  if (stream->capturing) {
    if (stream->invalid) return cudaErrorStreamCaptureInvalidated;
    stream->graph.nodes.push_back(std::move(operation));
  } else {
    stream->queue.push_back(std::move(operation));
  }
  return cudaSuccess;
}

// Runs a kernel on the SMs that it gets. A cooperative grid starts when all its blocks can; of
// others, as many clusters as there is room for, the rest when these have ended.
void run_kernel(DeviceState& device, const Operation& operation) {
  Runtime& r = runtime();
  emulator::Options options;
  int taken = 0;
  {
    std::unique_lock lock(r.mutex);
    options.seed = r.seed;
    const emulator::Launch& shape = operation.shape;
    const int least = shape.cooperative ? shape.grid : shape.cluster;
    const auto free = [&] { return device.record.sms - device.busy_sms; };
    r.sms_freed.wait(lock, [&] { return free() >= least; });
    taken = std::min(free() / shape.cluster * shape.cluster, shape.grid);
    device.busy_sms += taken;
  }
  options.resident_blocks = taken;
  std::string failure;
  try {
    emulator::launch(operation.shape, operation.run, options);
  } catch (const emulator::EmulatorError& error) {
    failure = error.what();
  }
  const std::lock_guard lock(r.mutex);
  device.busy_sms -= taken;
  if (!failure.empty()) {
    device.failure = failure;
    device.sticky = cudaErrorLaunchFailure;
  }
  r.sms_freed.notify_all();
}

}  // namespace

// ---- kernels ----

cudaError_t set_attribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  Call call("cudaFuncSetAttribute");
  if (call.failed()) return call.end(cudaSuccess);
  DeviceState* device;
  KernelState* state;
  if (const cudaError_t e = find_kernel(kernel, device, state)) return call.end(e);
  if (const cudaError_t e = outside_of_capture()) return call.end(e);
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize:
      if (value < 0 || value > device->record.shared_bytes) return call.end(cudaErrorInvalidValue);
      state->max_dynamic_shared = value;
      return call.end(cudaSuccess);
    case cudaFuncAttributeNonPortableClusterSizeAllowed:
      if (device->record.compute_capability < 90) return call.end(cudaErrorInvalidValue);
      state->non_portable_cluster = value != 0;
      return call.end(cudaSuccess);
  }
  return call.end(cudaErrorInvalidValue);
}

cudaError_t blocks_per_sm(int* blocks, const void* kernel, int threads, std::size_t shared_bytes) {
  Call call("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  if (call.failed()) return call.end(cudaSuccess);
  DeviceState* device;
  KernelState* state;
  if (const cudaError_t e = find_kernel(kernel, device, state)) return call.end(e);
  if (const cudaError_t e = outside_of_capture()) return call.end(e);
  *blocks = blocks_on_sm(*device, *state, threads, shared_bytes);
  return call.end(cudaSuccess);
}

cudaError_t active_clusters(int* clusters, const void* kernel, const cudaLaunchConfig_t* config) {
  Call call("cudaOccupancyMaxActiveClusters");
  if (call.failed()) return call.end(cudaSuccess);
  DeviceState* device;
  KernelState* state;
  if (const cudaError_t e = find_kernel(kernel, device, state)) return call.end(e);
  if (const cudaError_t e = outside_of_capture()) return call.end(e);
  const auto shape = shape_of(*config);
  if (!shape) return call.end(cudaErrorInvalidConfiguration);
  return call.end(clusters_of(*device, *state, *config, shape->cluster, *clusters));
}

cudaError_t launch(const cudaLaunchConfig_t* config, const void* kernel,
                   std::function<void()> run) {
  Call call("cudaLaunchKernelExC");
  if (call.failed()) return call.end(cudaSuccess);
  Operation operation{std::move(run), {}};
  if (const cudaError_t e = check_launch(*config, kernel, operation)) return call.end(e);
  const emulator::Launch shape = operation.shape;
  if (const cudaError_t e = enqueue(config->stream, std::move(operation))) return call.end(e);
  launched = shape.cooperative   ? "grid"
             : shape.cluster > 1 ? "cluster:" + std::to_string(shape.cluster)
                                 : "block";
  return call.end(cudaSuccess);
}

// ---- control ----

int add_device(std::string_view recorded, const Limits& limits) {
  const Device* record = find_device(recorded);
  if (record == nullptr) return -1;
  const std::lock_guard lock(runtime().mutex);
  auto& all = runtime().devices;
  all.emplace_back();
  all.back().record = *record;
  all.back().limits = limits;
  return static_cast<int>(all.size()) - 1;
}

void count_calls(bool count) { counting = count; }

void fail(std::string_view function, int nth, cudaError_t error) {
  const std::lock_guard lock(runtime().mutex);
  Runtime& r = runtime();
  r.calls.clear();
  r.fails = function;
  r.fails_in = nth;
  r.fails_with = error;
}

std::vector<std::string> calls() {
  const std::lock_guard lock(runtime().mutex);
  std::vector<std::string> out;
  for (const auto& [name, count] : runtime().calls)
    out.push_back(name + ":" + std::to_string(count));
  return out;
}

void set_seed(std::uint64_t seed) {
  const std::lock_guard lock(runtime().mutex);
  runtime().seed = seed;
}

std::string last_launch() { return std::exchange(launched, {}); }

std::string failure_of(int device) {
  const std::lock_guard lock(runtime().mutex);
  const DeviceState* state = device_at(device);
  return state == nullptr ? "" : state->failure;
}

}  // namespace prnn::fake_cuda

using namespace prnn::fake_cuda;

// ---- errors ----

// Clears what is there, unless the context is lost: that error comes back with the next call.
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInitializationError:
      return "initialization error";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidDeviceFunction:
      return "invalid device function";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorLaunchOutOfResources:
      return "too many resources requested for launch";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorCooperativeLaunchTooLarge:
      return "too many blocks in cooperative launch";
    case cudaErrorNotSupported:
      return "operation not supported";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorInvalidClusterSize:
      return "cluster misconfiguration";
  }
  return "unrecognized error code";
}

// ---- devices ----

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  Call call("cudaGetDeviceProperties");
  const DeviceState* device = device_at(ordinal);
  if (call.failed() || device == nullptr) return call.end(cudaErrorInvalidDevice);
  const prnn::Device& record = device->record;
  *properties = {};
  record.name.copy(properties->name, sizeof properties->name - 1);
  properties->sharedMemPerBlockOptin = static_cast<std::size_t>(record.shared_bytes);
  properties->major = record.compute_capability / 10;
  properties->minor = record.compute_capability % 10;
  properties->multiProcessorCount = record.sms;
  properties->cooperativeLaunch = record.cooperative;
  return call.end(cudaSuccess);
}

cudaError_t cudaGetDevice(int* device) {
  Call call("cudaGetDevice");
  if (!call.failed()) *device = current_device;
  return call.end(cudaSuccess);
}

cudaError_t cudaSetDevice(int device) {
  Call call("cudaSetDevice");
  if (call.failed()) return call.end(cudaSuccess);
  if (device_at(device) == nullptr) return call.end(cudaErrorInvalidDevice);
  current_device = device;
  return call.end(device_at(device)->sticky);
}

// ---- streams and graphs ----

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  Call call("cudaStreamCreate");
  if (call.failed()) return call.end(cudaSuccess);
  if (device_at(current_device) == nullptr) return call.end(cudaErrorInvalidDevice);
  *stream = new CUstream_st;
  (*stream)->device = current_device;
  return call.end(cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Call call("cudaStreamDestroy");
  delete stream;
  return call.end(cudaSuccess);
}

// The work of a stream is done here, in the caller's thread, one operation after the other.
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  {
    Call call("cudaStreamSynchronize");
    if (call.failed()) return call.end(cudaSuccess);
    if (stream->capturing) {
      stream->invalid = true;
      return call.end(cudaErrorStreamCaptureUnsupported);
    }
  }
  const std::lock_guard one_at_a_time(stream->running);
  Runtime& r = runtime();
  while (true) {
    std::unique_lock lock(r.mutex);
    DeviceState& device = *device_at(stream->device);
    if (device.sticky != cudaSuccess) {
      stream->queue.clear();
      return last_error = device.sticky;
    }
    if (stream->queue.empty()) return cudaSuccess;
    const Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    lock.unlock();
    if (operation.shape.grid == 0)
      operation.run();
    else
      run_kernel(device, operation);
  }
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  Call call("cudaStreamBeginCapture");
  if (call.failed()) return call.end(cudaSuccess);
  if (stream->capturing || capture != nullptr) return call.end(cudaErrorInvalidValue);
  stream->capturing = true;
  stream->invalid = false;
  stream->graph = {stream->device, {}};
  capture = stream;
  return call.end(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Call call("cudaStreamEndCapture");
  if (!stream->capturing || capture != stream) return call.end(cudaErrorInvalidValue);
  stream->capturing = false;
  capture = nullptr;
  *graph = nullptr;
  if (stream->invalid) return call.end(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st(std::move(stream->graph));
  return call.end(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  Call call("cudaGraphInstantiate");
  if (call.failed()) return call.end(cudaSuccess);
  *executable = new CUgraphExec_st{*graph};
  return call.end(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  Call call("cudaGraphLaunch");
  if (call.failed()) return call.end(cudaSuccess);
  if (executable->device != stream->device) return call.end(cudaErrorInvalidResourceHandle);
  for (const Operation& node : executable->nodes)
    if (const cudaError_t e = enqueue(stream, node)) return call.end(e);
  return call.end(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  Call call("cudaGraphDestroy");
  delete graph;
  return call.end(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  Call call("cudaGraphExecDestroy");
  delete executable;
  return call.end(cudaSuccess);
}

// What is done with memory, in the order of the stream.
static cudaError_t enqueue_on_memory(Call& call, cudaStream_t stream, bool is_valid,
                                     std::function<void()> run) {
  if (call.failed()) return call.end(cudaSuccess);
  if (stream == nullptr) return call.end(cudaErrorInvalidResourceHandle);
  if (!is_valid) return call.end(cudaErrorInvalidValue);
  DeviceState* device = device_at(stream->device);
  if (device->sticky != cudaSuccess) return call.end(device->sticky);
  prnn::emulator::Launch no_kernel;
  no_kernel.grid = 0;
  return call.end(enqueue(stream, {std::move(run), no_kernel}));
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  Call call("cudaMemsetAsync");
  return enqueue_on_memory(call, stream, to != nullptr, [=] { std::memset(to, value, bytes); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  Call call("cudaMemcpyAsync");
  const bool is_valid = to != nullptr && from != nullptr;
  return enqueue_on_memory(call, stream, is_valid, [=] { std::memcpy(to, from, bytes); });
}
