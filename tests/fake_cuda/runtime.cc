// Devices and errors, and what a test may ask.
#include <utility>

#include "fake_cuda/state.h"

namespace prnn::fake_cuda {

Runtime& runtime() {
  static auto* const only = new Runtime;
  return *only;
}

DeviceState* device_at(int ordinal) {
  auto& all = runtime().devices;
  if (ordinal < 0 || ordinal >= static_cast<int>(all.size())) return nullptr;
  return &all[static_cast<std::size_t>(ordinal)];
}

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

void set_fault(std::string_view fault) {
  const std::lock_guard lock(runtime().mutex);
  runtime().fault = fault;
}

int host_blocks(int device) {
  const std::lock_guard lock(runtime().mutex);
  const DeviceState* state = device_at(device);
  return state == nullptr ? 0 : state->host_blocks;
}

bool grids_overlapped(int device) {
  const std::lock_guard lock(runtime().mutex);
  const DeviceState* state = device_at(device);
  return state != nullptr && state->grids_overlapped;
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
    case cudaErrorMemoryAllocation:
      return "out of memory";
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
    case cudaErrorStreamCaptureIsolation:
      return "dependency created on uncaptured work in another stream";
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
  properties->l2CacheSize = static_cast<int>(record.l2_bytes);
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
