// XLA's call of an elementwise recurrence on a GPU (ffi/elementwise_call.h), with a workspace for
// what chunks hand over; how many chunks there are, `chunks` says (cuda/elementwise_plan.h).
// Initialize loads the kernels, never under capture; execute launches them, nothing else.
#include "cuda/elementwise.h"
#include "cuda/elementwise_plan.h"
#include "ffi/elementwise_call.h"
#include "ffi/handlers.h"

namespace ffi = xla::ffi;

namespace prnn {
namespace {

struct OnDevice {
  ElementwiseRecurrence recurrence;
  float* workspace;
  int chunks;
};

ffi::ErrorOr<OnDevice> on_device(const ElementwiseBuffers& buffers, ffi::AnyBuffer workspace,
                                 bool constant, bool reverse, bool shifted,
                                 std::string_view activation, std::int64_t chunks) {
  const auto call = elementwise_call(buffers, constant, reverse, shifted, activation);
  if (!call.has_value()) return ffi::Unexpected(call.error());
  const bool is_known =
      chunks >= 1 && chunks <= std::numeric_limits<int>::max() && (chunks == 1 || call->is_linear);
  if (!is_known || workspace.element_type() != ffi::DataType::F32 ||
      static_cast<std::int64_t>(workspace.element_count()) <
          call->elements() * elementwise_workspace(static_cast<int>(chunks)))
    return ffi::Unexpected(ffi::Error::InvalidArgument(
        "prnn_jax: the chunks of an elementwise recurrence and its workspace do not fit each "
        "other; was the program exported by another version?"));
  return OnDevice{*call, static_cast<float*>(workspace.untyped_data()), static_cast<int>(chunks)};
}

bool is_empty(const ElementwiseRecurrence& p) { return p.elements() * p.steps == 0; }

ffi::Error initialize_elementwise(std::int32_t device, ffi::AnyBuffer a, ffi::AnyBuffer b,
                                  ffi::AnyBuffer y_0, ffi::Result<ffi::AnyBuffer> y,
                                  ffi::Result<ffi::AnyBuffer> workspace, bool constant,
                                  bool reverse, bool shifted, std::string_view activation,
                                  std::int64_t chunks) {
  const auto call =
      on_device({a, b, y_0, *y}, *workspace, constant, reverse, shifted, activation, chunks);
  if (!call.has_value()) return call.error();
  if (is_empty(call->recurrence)) return ffi::Error::Success();
  const CurrentDevice current(device);
  if (current.failure) return ffi::Error::Internal(*current.failure);
  const Failure failed = prepare(call->recurrence, call->chunks);
  return failed ? ffi::Error::Internal(*failed) : ffi::Error::Success();
}

ffi::Error execute_elementwise(CUstream_st* stream, std::int32_t device, ffi::AnyBuffer a,
                               ffi::AnyBuffer b, ffi::AnyBuffer y_0, ffi::Result<ffi::AnyBuffer> y,
                               ffi::Result<ffi::AnyBuffer> workspace, bool constant, bool reverse,
                               bool shifted, std::string_view activation, std::int64_t chunks) {
  const auto call =
      on_device({a, b, y_0, *y}, *workspace, constant, reverse, shifted, activation, chunks);
  if (!call.has_value()) return call.error();
  if (is_empty(call->recurrence)) return ffi::Error::Success();
  const CurrentDevice current(device);
  if (current.failure) return ffi::Error::Internal(*current.failure);
  const Failure failed = launch(call->recurrence, call->chunks, call->workspace, stream);
  return failed ? ffi::Error::Internal(*failed) : ffi::Error::Success();
}

template <class Binding>
auto with_buffers(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Attr<bool>("constant")
      .template Attr<bool>("reverse")
      .template Attr<bool>("shifted")
      .template Attr<std::string_view>("activation")
      .template Attr<std::int64_t>("chunks");
}
auto bind_elementwise() {
  return with_buffers(
      ffi::Ffi::Bind().Ctx<ffi::PlatformStream<CUstream_st*>>().Ctx<ffi::DeviceOrdinal>());
}

}  // namespace
}  // namespace prnn

XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCudaPrepareElementwise, prnn::initialize_elementwise,
                              prnn::with_buffers(ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
                                                     .Ctx<ffi::DeviceOrdinal>()));
// Capturable: launches of fixed size, whatever the buffers' addresses.
XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCudaElementwise, prnn::execute_elementwise,
                              prnn::bind_elementwise(), {ffi::Traits::kCmdBufferCompatible});
// The same, never captured.
XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCudaElementwiseUncaptured, prnn::execute_elementwise,
                              prnn::bind_elementwise());
