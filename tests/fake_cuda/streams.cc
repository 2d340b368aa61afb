// Streams, their capture into graphs, and what is done with memory in their order.
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "fake_cuda/state.h"

namespace prnn::fake_cuda {

cudaError_t enqueue(cudaStream_t stream, Operation operation) {
  if (stream->capturing) {
    if (stream->invalid) return cudaErrorStreamCaptureInvalidated;
    stream->graph.nodes.push_back(std::move(operation));
  } else {
    stream->queue.push_back(std::move(operation));
    ++stream->enqueued;
  }
  return cudaSuccess;
}

namespace {

// Does a stream's work up to a position, in the calling thread, one operation after the other.
// Waits only for what was enqueued before it, so that no two threads wait for each other.
cudaError_t drain(cudaStream_t stream, std::uint64_t position) {
  if (stream->done >= position) return cudaSuccess;
  const std::lock_guard one_at_a_time(stream->running);
  Runtime& r = runtime();
  while (true) {
    std::unique_lock lock(r.mutex);
    DeviceState& device = *device_at(stream->device);
    if (device.sticky != cudaSuccess) {
      stream->queue.clear();
      stream->done = stream->enqueued;
      return last_error = device.sticky;
    }
    if (stream->queue.empty() || stream->done >= position) return cudaSuccess;
    const Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    lock.unlock();
    if (operation.shape.grid == 0)
      operation.run();
    else
      run_kernel(device, operation);
    ++stream->done;
  }
}

Operation of_host(std::function<void()> run) {
  prnn::emulator::Launch no_kernel;
  no_kernel.grid = 0;
  return {std::move(run), no_kernel};
}

}  // namespace

}  // namespace prnn::fake_cuda

using namespace prnn::fake_cuda;

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

// The work of a stream is done here, in the caller's thread.
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  {
    Call call("cudaStreamSynchronize");
    if (call.failed()) return call.end(cudaSuccess);
    if (stream->capturing) {
      stream->invalid = true;
      return call.end(cudaErrorStreamCaptureUnsupported);
    }
    if (device_at(stream->device)->sticky != cudaSuccess)
      return call.end(device_at(stream->device)->sticky);
  }
  return drain(stream, std::numeric_limits<std::uint64_t>::max());
}

// ---- order between streams ----

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  Call call("cudaStreamIsCapturing");
  if (call.failed()) return call.end(cudaSuccess);
  *status = !stream->capturing ? cudaStreamCaptureStatusNone
            : stream->invalid  ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  return call.end(cudaSuccess);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  Call call("cudaEventCreateWithFlags");
  if (call.failed()) return call.end(cudaSuccess);
  if (flags != cudaEventDisableTiming) return call.end(cudaErrorInvalidValue);
  DeviceState* device = device_at(current_device);
  if (device == nullptr) return call.end(cudaErrorInvalidDevice);
  if (device->sticky != cudaSuccess) return call.end(device->sticky);
  *event = new CUevent_st;
  (*event)->device = current_device;
  return call.end(cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Call call("cudaEventDestroy");
  if (call.failed()) return call.end(cudaSuccess);
  delete event;
  return call.end(cudaSuccess);
}

// An event that is recorded in a capture is the graph's: the project has none.
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Call call("cudaEventRecord");
  if (call.failed()) return call.end(cudaSuccess);
  if (stream == nullptr || event->device != stream->device)
    return call.end(cudaErrorInvalidResourceHandle);
  if (stream->capturing) return call.end(cudaErrorStreamCaptureUnsupported);
  event->stream = stream;
  event->position = stream->enqueued;
  return call.end(cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  Call call("cudaStreamWaitEvent");
  if (call.failed()) return call.end(cudaSuccess);
  if (stream == nullptr) return call.end(cudaErrorInvalidResourceHandle);
  if (flags != 0) return call.end(cudaErrorInvalidValue);
  if (stream->capturing) {
    stream->invalid = true;
    return call.end(cudaErrorStreamCaptureIsolation);
  }
  if (event->stream == nullptr || event->stream == stream) return call.end(cudaSuccess);
  const CUevent_st as_recorded = *event;
  return call.end(
      enqueue(stream, of_host([as_recorded] { drain(as_recorded.stream, as_recorded.position); })));
}

// ---- graphs ----

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

// ---- memory ----

// Of the host, which the device reaches at another address on some systems: here at the same.
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
  Call call("cudaHostAlloc");
  if (call.failed()) return call.end(cudaSuccess);
  if (flags != cudaHostAllocMapped || bytes == 0) return call.end(cudaErrorInvalidValue);
  if (capture != nullptr) {
    capture->invalid = true;
    return call.end(cudaErrorStreamCaptureUnsupported);
  }
  DeviceState* device = device_at(current_device);
  if (device == nullptr) return call.end(cudaErrorInvalidDevice);
  if (device->sticky != cudaSuccess) return call.end(device->sticky);
  *memory = std::malloc(bytes);
  ++device->host_blocks;
  return call.end(*memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaHostGetDevicePointer(void** on_device, void* memory, unsigned flags) {
  Call call("cudaHostGetDevicePointer");
  if (call.failed()) return call.end(cudaSuccess);
  if (flags != 0 || memory == nullptr) return call.end(cudaErrorInvalidValue);
  *on_device = memory;
  return call.end(cudaSuccess);
}
cudaError_t cudaFreeHost(void* memory) {
  Call call("cudaFreeHost");
  if (call.failed()) return call.end(cudaSuccess);
  DeviceState* device = device_at(current_device);
  if (device == nullptr) return call.end(cudaErrorInvalidDevice);
  --device->host_blocks;
  std::free(memory);
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
  return call.end(enqueue(stream, of_host(std::move(run))));
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  Call call("cudaMemsetAsync");
  return enqueue_on_memory(call, stream, to != nullptr, [=] { std::memset(to, value, bytes); });
}

constexpr std::align_val_t kDeviceAlignment{256};
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = bytes == 0 ? nullptr : ::operator new(bytes, kDeviceAlignment);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  ::operator delete(memory, kDeviceAlignment);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  if (bytes > 0) std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  Call call("cudaMemcpyAsync");
  const bool is_valid = to != nullptr && from != nullptr;
  return enqueue_on_memory(call, stream, is_valid, [=] { std::memcpy(to, from, bytes); });
}
