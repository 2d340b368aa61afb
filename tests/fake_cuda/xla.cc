// The handlers for CUDA (ffi/cuda_handlers.cc) as targets of XLA for the CPU, over the fake
// runtime.
//
// XLA's client for the CPU calls `instantiate` and `execute` and knows no stream: here a call to
// `execute` becomes what the client for GPUs does, `initialize` and `execute` on a stream of the
// calling thread, and waits for the stream. The handlers are given XLA's own call frame, but for
// the functions of its API that tell the stream and the device.
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "fake_cuda/control.h"
#include "ffi/handlers.h"
#include "xla/ffi/api/ffi.h"

namespace prnn::fake_cuda {
namespace {

// How calls are made, as the test asks for; and what has run since, "pass:exchange" for each.
struct Session {
  std::mutex mutex;
  int first_device = 0;  // XLA's device n is CUDA's n + first_device
  bool initializes = true, executes = true;
  int replays = 0;  // of a graph that the call is captured in; 0: it is not captured
  std::string ran;
};
Session& session() {
  static auto* const only = new Session;
  return *only;
}

thread_local const XLA_FFI_Api* xla_api;  // of the call that this thread makes
thread_local int call_device;
thread_local cudaStream_t call_stream;

XLA_FFI_Error* get_stream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = call_stream;
  return nullptr;
}
XLA_FFI_Error* get_device(XLA_FFI_DeviceOrdinal_Get_Args* args) {
  args->device_ordinal = call_device;
  return nullptr;
}

XLA_FFI_Error* error_of(const std::string& message) {
  XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message.c_str(),
                                 XLA_FFI_Error_Code_INTERNAL};
  return xla_api->XLA_FFI_Error_Create(&args);
}
XLA_FFI_Error* error_of(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  const std::string of_kernel = failure_of(call_device);
  return error_of(std::string("XLA: ") + cudaGetErrorString(error) +
                  (of_kernel.empty() ? "" : ": " + of_kernel));
}

// Like XLA, whose own calls would find an error that a handler leaves behind.
XLA_FFI_Error* call(XLA_FFI_Handler* handler, const XLA_FFI_CallFrame& frame,
                    XLA_FFI_ExecutionStage stage) {
  XLA_FFI_Api api = *frame.api;
  api.XLA_FFI_Stream_Get = &get_stream;
  api.XLA_FFI_DeviceOrdinal_Get = &get_device;
  XLA_FFI_CallFrame mine = frame;
  mine.api = &api;
  mine.stage = stage;
  count_calls(true);
  XLA_FFI_Error* error = handler(&mine);
  count_calls(false);
  if (cudaPeekAtLastError() == cudaSuccess || error != nullptr) {
    if (cudaGetLastError() == cudaSuccess) return error;
    return error_of("a handler has failed and left its CUDA error behind");
  }
  return error_of(std::string("a handler has left behind: ") +
                  cudaGetErrorString(cudaGetLastError()));
}

// A stream of the call's device, whatever is current.
XLA_FFI_Error* create_stream(cudaStream_t& stream) {
  int before;
  cudaGetDevice(&before);
  cudaSetDevice(
      call_device);  // XLA has its streams from the start: a context that is lost is no matter
  if (auto* e = error_of(cudaStreamCreate(&stream))) return e;
  cudaSetDevice(before);
  cudaGetLastError();
  return nullptr;
}

// As XLA captures a call: once, on a stream of its own; then the graph is launched.
XLA_FFI_Error* capture_and_replay(XLA_FFI_Handler* execute, const XLA_FFI_CallFrame& frame,
                                  int replays) {
  const cudaStream_t stream = call_stream;
  cudaStream_t captured;
  if (auto* e = create_stream(captured)) return e;
  if (auto* e = error_of(cudaStreamBeginCapture(captured, cudaStreamCaptureModeThreadLocal)))
    return e;
  call_stream = captured;
  XLA_FFI_Error* failed = call(execute, frame, XLA_FFI_ExecutionStage_EXECUTE);
  call_stream = stream;
  cudaGraph_t graph;
  const cudaError_t ended = cudaStreamEndCapture(captured, &graph);
  if (failed == nullptr) failed = error_of(ended);
  cudaGraphExec_t executable;
  if (failed == nullptr) failed = error_of(cudaGraphInstantiate(&executable, graph, 0));
  if (failed == nullptr) {
    for (; replays > 0 && failed == nullptr; --replays) {
      failed = error_of(cudaGraphLaunch(executable, stream));
      if (failed == nullptr) failed = error_of(cudaStreamSynchronize(stream));
    }
    cudaGraphExecDestroy(executable);
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaStreamDestroy(captured);
  cudaGetLastError();
  return failed;
}

template <XLA_FFI_Handler* kInitialize, XLA_FFI_Handler* kExecute>
XLA_FFI_Error* run(XLA_FFI_CallFrame* frame, const char* pass) {
  if (frame->extension_start != nullptr) return kExecute(frame);  // XLA asks for the traits
  xla_api = frame->api;
  Session& s = session();
  bool initializes, executes;
  int replays, first_device;
  {
    const std::lock_guard lock(s.mutex);
    initializes = s.initializes;
    executes = s.executes;
    replays = s.replays;
    first_device = s.first_device;
  }
  XLA_FFI_DeviceOrdinal_Get_Args device{XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE, nullptr,
                                        frame->ctx, 0};
  if (auto* e = frame->api->XLA_FFI_DeviceOrdinal_Get(&device)) return e;
  call_device = first_device + device.device_ordinal;

  thread_local std::map<int, cudaStream_t> streams;
  if (streams.count(call_device) == 0)
    if (auto* e = create_stream(streams[call_device])) return e;
  call_stream = streams[call_device];
  // Which device is current when a handler runs, XLA does not say.
  int current_before, current_after;
  if (auto* e = error_of(cudaSetDevice(0))) return e;
  cudaGetDevice(&current_before);

  if (initializes)
    if (auto* e = call(kInitialize, *frame, XLA_FFI_ExecutionStage_INITIALIZE)) return e;
  if (!executes) return nullptr;
  XLA_FFI_Error* failed = nullptr;
  if (replays > 0) {
    failed = capture_and_replay(kExecute, *frame, replays);
  } else {
    failed = call(kExecute, *frame, XLA_FFI_ExecutionStage_EXECUTE);
    const cudaError_t done = cudaStreamSynchronize(call_stream);
    if (failed == nullptr) failed = error_of(done);
    cudaGetLastError();
  }
  cudaGetDevice(&current_after);
  if (failed == nullptr && current_after != current_before)
    failed = error_of("a handler has changed the current device");
  const std::lock_guard lock(s.mutex);
  const std::string launched = last_launch();
  if (failed == nullptr && !launched.empty())
    s.ran += std::string(s.ran.empty() ? "" : " ") + pass + ":" + launched;
  return failed;
}

}  // namespace
}  // namespace prnn::fake_cuda

extern "C" {

XLA_FFI_Error* PrnnFakeForward(XLA_FFI_CallFrame* frame) {
  return prnn::fake_cuda::run<PrnnCudaPrepareForward, PrnnCudaForward>(frame, "forward");
}
XLA_FFI_Error* PrnnFakeBackward(XLA_FFI_CallFrame* frame) {
  return prnn::fake_cuda::run<PrnnCudaPrepareBackward, PrnnCudaBackward>(frame, "backward");
}
XLA_FFI_Error* PrnnFakeElementwise(XLA_FFI_CallFrame* frame) {
  return prnn::fake_cuda::run<PrnnCudaPrepareElementwise, PrnnCudaElementwise>(frame,
                                                                               "elementwise");
}

// ---- for ctypes ----

// Calls go to devices that have not been used yet, all alike; the ordinal of the first.
int prnn_fake_devices(const char* recorded, int count, int largest_cluster, int shared_bytes,
                      int has_image) {
  using namespace prnn::fake_cuda;
  int first = -1;
  for (int n = 0; n < count; ++n) {
    const int added = add_device(recorded, {largest_cluster, shared_bytes, has_image != 0});
    if (n == 0) first = added;
  }
  Session& s = session();
  const std::lock_guard lock(s.mutex);
  s.first_device = first;
  s.ran.clear();
  return first;
}
void prnn_fake_seed(std::uint64_t seed) { prnn::fake_cuda::set_seed(seed); }
void prnn_fake_fault(const char* fault) { prnn::fake_cuda::set_fault(fault); }
int prnn_fake_grids_overlapped(int device) { return prnn::fake_cuda::grids_overlapped(device); }
int prnn_fake_host_blocks(int device) { return prnn::fake_cuda::host_blocks(device); }
void prnn_fake_given_up(char* text, std::size_t bytes) {
  std::string all;
  for (const std::string& one : prnn::cuda_failures()) all += one + "\n";
  if (bytes > 0) text[all.copy(text, bytes - 1)] = '\0';
}
void prnn_fake_stages(int initializes, int executes, int replays) {
  auto& s = prnn::fake_cuda::session();
  const std::lock_guard lock(s.mutex);
  s.initializes = initializes != 0;
  s.executes = executes != 0;
  s.replays = replays;
}
void prnn_fake_fail(const char* function, int nth, int error) {
  prnn::fake_cuda::fail(function, nth, static_cast<cudaError_t>(error));
}

// Texts into a buffer: what has run, and the calls of the API since prnn_fake_fail.
void prnn_fake_ran(char* text, std::size_t bytes) {
  auto& s = prnn::fake_cuda::session();
  const std::lock_guard lock(s.mutex);
  if (bytes > 0) text[s.ran.copy(text, bytes - 1)] = '\0';
}
void prnn_fake_calls(char* text, std::size_t bytes) {
  std::string all;
  for (const std::string& one : prnn::fake_cuda::calls()) all += one + " ";
  if (bytes > 0) text[all.copy(text, bytes - 1)] = '\0';
}
}
