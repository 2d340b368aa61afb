// The Python module _prnn: the CPU engine's XLA targets, and what Python may ask of the planners.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include "cpu/environment.h"
#include "cpu/run.h"
#include "ffi/attributes.h"
#include "ffi/handlers.h"
#include "ffi/plan_module.h"
#include "ffi/target.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace prnn {
namespace {

// {name: {stage: handler}} for jax.ffi.register_ffi_target(..., platform="cpu").
nb::dict cpu_targets() {
  nb::dict forward, backward, products, prepare, elementwise, out;
  forward["instantiate"] = target(PrnnCheckCall);
  forward["execute"] = target(PrnnCpuForward);
  backward["instantiate"] = target(PrnnCheckCall);
  backward["execute"] = target(PrnnCpuBackward);
  products["execute"] = target(PrnnCpuProducts);
  prepare["execute"] = target(PrnnCpuPrepare);
  elementwise["execute"] = target(PrnnCpuElementwise);
  out["prnn_forward"] = forward;
  out["prnn_backward"] = backward;
  out["prnn_products"] = products;
  out["prnn_prepare"] = prepare;
  out["prnn_elementwise"] = elementwise;
  return out;
}

using FloatArray = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatResult = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

const Isa& isa_named(const std::string& name) {
  const Isa* isa = find_isa(name.c_str());
  if (isa == nullptr) throw nb::value_error("instruction set not available");
  return *isa;
}

// A function of floats as the instruction set `isa` computes it.
template <Isa::Map Isa::* kMap>
void bind_map(nb::module_& m, const char* name) {
  m.def(name, [](const std::string& isa, FloatArray in, FloatResult out) {
    (isa_named(isa).*kMap)(in.data(), out.data(), static_cast<std::int64_t>(in.size()));
  });
}

}  // namespace
}  // namespace prnn

NB_MODULE(_prnn, m) {
  using namespace prnn;
  m.def("ffi_api_version", [] { return nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); });
  m.def("environment_error", environment_error);
  m.def("cpu_targets", cpu_targets);
  bind_planner(m);
  bind_cpu_planner(m);
  bind_workspaces(m);
  m.def("has_isa", [](const std::string& name) { return find_isa(name.c_str()) != nullptr; });
  bind_map<&Isa::sigmoid>(m, "sigmoid");
  bind_map<&Isa::tanh>(m, "tanh");
  bind_map<&Isa::log_sigmoid>(m, "log_sigmoid");
  bind_map<&Isa::exp>(m, "exp");
}
