// The Python module _prnn_cuda: the CUDA engine's XLA targets. A module of its own, so that who has
// no GPU need not have its kernels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "ffi/handlers.h"
#include "ffi/target.h"
#include "xla/ffi/api/c_api.h"

namespace nb = nanobind;

namespace prnn {
namespace {

// {name: {stage: handler}} for jax.ffi.register_ffi_target(..., platform="CUDA"). The names that
// end in _uncaptured never become part of a CUDA graph.
nb::dict cuda_targets() {
  const auto stages = [](auto* prepare, auto* execute) {
    nb::dict handlers;
    handlers["instantiate"] = target(PrnnCheckCall);
    handlers["initialize"] = target(prepare);
    handlers["execute"] = target(execute);
    return handlers;
  };
  nb::dict out;
  out["prnn_forward"] = stages(PrnnCudaPrepareForward, PrnnCudaForward);
  out["prnn_backward"] = stages(PrnnCudaPrepareBackward, PrnnCudaBackward);
  out["prnn_forward_uncaptured"] = stages(PrnnCudaPrepareForward, PrnnCudaForwardUncaptured);
  out["prnn_backward_uncaptured"] = stages(PrnnCudaPrepareBackward, PrnnCudaBackwardUncaptured);
  nb::dict elementwise;
  elementwise["initialize"] = target(PrnnCudaPrepareElementwise);
  elementwise["execute"] = target(PrnnCudaElementwise);
  out["prnn_elementwise"] = elementwise;
  nb::dict uncaptured;
  uncaptured["initialize"] = target(PrnnCudaPrepareElementwise);
  uncaptured["execute"] = target(PrnnCudaElementwiseUncaptured);
  out["prnn_elementwise_uncaptured"] = uncaptured;
  return out;
}

}  // namespace
}  // namespace prnn

NB_MODULE(_prnn_cuda, m) {
  m.def("ffi_api_version", [] { return nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); });
  m.def("cuda_targets", prnn::cuda_targets);
  // What kernels that gave up a wait have left behind (cuda/watchdog.h).
  m.def("cuda_failures", prnn::cuda_failures);
}
