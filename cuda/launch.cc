#include "cuda/launch.h"

#include <cuda_runtime.h>

#include <vector>

#include "cuda/errors.h"
#include "cuda/kernels.h"

namespace prnn {

Failure failure(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return std::nullopt;
  cudaGetLastError();  // so that the next to ask does not find it
  return std::string("prnn_jax: ") + what + ": " + cudaGetErrorString(error);
}

namespace {

// Calls f.operator()<kNumber>().
template <class F>
cudaError_t visit_number(Number number, F&& f) {
  switch (number) {
    case Number::kBfloat16:
      return f.template operator()<Number::kBfloat16>();
    case Number::kFloat16:
      return f.template operator()<Number::kFloat16>();
    case Number::kTf32:
      return f.template operator()<Number::kTf32>();
    case Number::kFloat32:
      return f.template operator()<Number::kFloat32>();
  }
  return cudaErrorInvalidValue;
}

// The workspace for sums of rows (norms_bytes) is as of the forward pass's columns.
static_assert(kOneProductOfNorms[0].tile.columns() == kThreeProductsOfNorms[0].tile.columns() &&
              kOneProductOfNorms[0].tile.columns() == kFourProductsOfNorms[0].tile.columns());

}  // namespace

CurrentDevice::CurrentDevice(int ordinal) {
  int current;
  if ((failure = prnn::failure("the current device is unknown", cudaGetDevice(&current)))) return;
  if (current == ordinal) return;
  if ((failure = prnn::failure("the device cannot be selected", cudaSetDevice(ordinal)))) return;
  before_ = current;
}

CurrentDevice::~CurrentDevice() {
  // There is no one to tell; the next to ask must not find the error.
  if (before_ >= 0 && cudaSetDevice(before_) != cudaSuccess) cudaGetLastError();
}

Failure read_device(int ordinal, Device& device) {
  cudaDeviceProp properties;
  if (auto failed =
          failure("the device cannot be read", cudaGetDeviceProperties(&properties, ordinal)))
    return failed;
  // What CUDA does not tell (bandwidths, co-resident clusters) is on record for known devices;
  // for others, that of the H200 in proportion, and clusters in groups of 16 multiprocessors.
  const Device* known = find_device(properties.name);
  device = known != nullptr ? *known : *find_device("NVIDIA H200");
  const double share = static_cast<double>(properties.multiProcessorCount) / device.sms;
  if (known == nullptr || device.sms != properties.multiProcessorCount) {
    const std::vector<int> gpcs(static_cast<std::size_t>(properties.multiProcessorCount / 16), 16);
    device.clusters = clusters_in(gpcs, properties.major >= 9 ? kMaxCluster : 0);
    device.l2_bytes_per_s *= share;
    device.dram_bytes_per_s *= share;
  }
  device.name = properties.name;
  device.compute_capability = 10 * properties.major + properties.minor;
  device.sms = properties.multiProcessorCount;
  device.shared_bytes = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin);
  device.cooperative = properties.cooperativeLaunch != 0;
  device.l2_bytes = properties.l2CacheSize;
  return std::nullopt;
}

Failure prepare(const CudaCall& call, const Plan& plan, const Device& device) {
  Residency residency{};
  const cudaError_t error = visit_number(call.number, [&]<Number kNumber>() {
    return prepare_instance<kNumber>(call, plan, device.shared_bytes, residency);
  });
  if (is_not_in_build(error)) {
    cudaGetLastError();
    return "prnn_jax: this build has no kernels for " + device.name + " (compute capability " +
           std::to_string(device.compute_capability) +
           "); build with its architecture in PRNN_CUDA_ARCHS, or use implementation=\"scan\"";
  }
  if (auto failed = failure("the kernel cannot be prepared", error)) return failed;
  if (plan.exchange == Exchange::kCluster && residency.clusters < 1)
    return "prnn_jax: " + device.name + " cannot run a cluster of " + std::to_string(plan.blocks) +
           " blocks now (MPS or MIG limits?); use implementation=\"scan\"";
  // Blocks that wait for no other may come one after the other.
  const int together = plan.exchange == Exchange::kGrid ? plan.grid() : 1;
  if (plan.exchange != Exchange::kCluster && residency.blocks_per_sm * device.sms < together)
    return "prnn_jax: the plan needs " + std::to_string(together) +
           (together == 1 ? " block" : " blocks") +
           " resident at once, but this process can have " +
           std::to_string(residency.blocks_per_sm * device.sms) + " on " + device.name +
           " (MPS or MIG limits?); set PRNN_CUDA_MAX_SMS to what it may use, or use "
           "implementation=\"scan\"";
  return std::nullopt;
}

Failure hand_on_states(const CudaCall& call, CUstream_st* stream) {
  const Shape& shape = call.shape;
  const auto count = static_cast<std::size_t>(shape.batch * shape.groups * shape.hidden);
  const auto value = static_cast<std::size_t>(value_bytes(call.number));
  cudaError_t error = cudaSuccess;
  const auto copy = [&](int n, void* to, const void* from) {
    const std::size_t bytes = count * (n == 0 ? value : sizeof(float));
    if (error == cudaSuccess)
      error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  };
  const auto clear = [&](int, float* to) {
    if (error == cudaSuccess) error = cudaMemsetAsync(to, 0, count * sizeof(float), stream);
  };
  const CellNumbers n = numbers(call.cell);
  if (call.pass == PassKind::kForward) {
    hand_on_states(call.forward, n.states, copy, clear);
  } else {
    hand_on_states(call.backward, n.states, copy, clear);
    for (int of_unit = 0; n.normalises && of_unit < n.per_unit; ++of_unit)
      clear(of_unit, call.backward.dper_unit + of_unit * static_cast<std::int64_t>(count));
  }
  return failure("the states cannot be handed on", error);
}

Failure launch(const CudaCall& call, const Plan& plan, CUstream_st* stream, GridOrder& order) {
  const auto launched = [&] {
    return failure("the launch failed", visit_number(call.number, [&]<Number kNumber>() {
                     return launch_instance<kNumber>(call, plan, stream);
                   }));
  };
  return plan.exchange == Exchange::kGrid ? order.in_turn(stream, launched) : launched();
}

GridOrder::~GridOrder() {
  if (last_ != nullptr && cudaEventDestroy(last_) != cudaSuccess) cudaGetLastError();
}

Failure GridOrder::prepare() {
  return failure("no event for the order of launches",
                 cudaEventCreateWithFlags(&last_, cudaEventDisableTiming));
}

Failure GridOrder::find_captured(CUstream_st* stream, bool& is_captured) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(stream, &status);
  is_captured = status != cudaStreamCaptureStatusNone;
  return failure("whether the stream is captured is unknown", error);
}

// Nothing to wait for where nothing was launched, or on this stream.
Failure GridOrder::wait(CUstream_st* stream) const {
  return failure("the launch cannot wait for the one before",
                 cudaStreamWaitEvent(stream, last_, 0));
}

Failure GridOrder::record(CUstream_st* stream) {
  return failure("the launch cannot be recorded", cudaEventRecord(last_, stream));
}

}  // namespace prnn
