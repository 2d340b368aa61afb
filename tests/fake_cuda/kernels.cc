// Kernels: their attributes, how many can be resident, launches.
#include <algorithm>
#include <optional>
#include <utility>

#include "fake_cuda/state.h"

namespace prnn::fake_cuda {
namespace {

constexpr int kPortableCluster = 8, kMostThreads = 1024;
constexpr int kRegisters = 65536;         // of an SM
constexpr int kRegistersPerThread = 255;  // of every kernel, as the larger ones have
constexpr int kReservedShared = 1024;     // by the system, of each block

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
  // As documented of all that asks about a kernel; a launch says cudaErrorNoKernelImageForDevice.
  if (!device->limits.has_image) return cudaErrorInvalidDeviceFunction;
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

}  // namespace

// Runs a kernel on the SMs that it gets. A cooperative grid starts when all its blocks can; of
// others, as many clusters as there is room for, the rest when these have ended.
void run_kernel(DeviceState& device, const Operation& operation) {
  Runtime& r = runtime();
  emulator::Options options;
  int taken = 0;
  {
    std::unique_lock lock(r.mutex);
    options.seed = r.seed;
    options.fault = r.fault;
    options.time_passes = true;
    const emulator::Launch& shape = operation.shape;
    const int least = shape.cooperative ? shape.grid : shape.cluster;
    const auto free = [&] { return device.record.sms - device.busy_sms; };
    r.sms_freed.wait(lock, [&] { return free() >= least; });
    taken = std::min(free() / shape.cluster * shape.cluster, shape.grid);
    device.busy_sms += taken;
    device.running_grids += shape.cooperative;
    if (device.running_grids > 1) device.grids_overlapped = true;
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
  device.running_grids -= operation.shape.cooperative;
  if (!failure.empty()) {
    device.failure = failure;
    device.sticky = cudaErrorLaunchFailure;
  }
  r.sms_freed.notify_all();
}

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

}  // namespace prnn::fake_cuda
