// XLA's calls into the CPU engine, as in ffi/decode.h.
#include <algorithm>
#include <optional>

#include "cpu/run.h"
#include "cpu/workers.h"
#include "ffi/decode.h"
#include "ffi/handlers.h"

namespace ffi = xla::ffi;

namespace prnn {
namespace {

class XlaThreadPool : public ThreadPool {
 public:
  explicit XlaThreadPool(ffi::ThreadPool pool) : pool_(pool) {}
  int threads() const override { return static_cast<int>(pool_.num_threads()); }
  void schedule(std::function<void()> task) override { pool_.Schedule(std::move(task)); }

 private:
  ffi::ThreadPool pool_;
};

std::optional<Dtype> dtype_of(ffi::DataType dtype) {
  if (dtype == ffi::DataType::F32) return Dtype::kFloat32;
  if (dtype == ffi::DataType::BF16) return Dtype::kBfloat16;
  if (dtype == ffi::DataType::F16) return Dtype::kFloat16;
  return std::nullopt;
}

ffi::Error run_call(ffi::ThreadPool pool, Problem p, const NativeCall& call) {
  const auto dtype = dtype_of(call.dtype);
  if (!dtype)
    return ffi::Error::InvalidArgument(
        "prnn_jax: the CPU engine takes float32, bfloat16 and float16");
  p.dtype = *dtype;
  p.cell = call.cell;
  p.shape = call.shape;
  p.forward = call.forward;
  p.backward = call.backward;
  if (call.input_size > 0) {
    p.projection.input_size = call.input_size;
    p.projection.x = call.x;
    p.projection.w = call.w_ih;
    p.projection.b = call.b_ih;
  }
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  if (auto error = check_workspace(call, workspace_floats(p) * kFloat); error.failure())
    return error;
  auto* const workspace = static_cast<float*>(call.workspace);
  XlaThreadPool of_xla(pool);
  Workers workers(std::min(of_xla.threads(), 1 + most_workers()));
  ThreadPool& threads = most_workers() > 0 ? static_cast<ThreadPool&>(workers) : of_xla;
  run(best_isa(), p, threads, workspace);
  return ffi::Error::Success();
}

ffi::Error forward(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                   CallAttributes attributes) {
  const auto call = decode_forward(args, rets, attributes);
  if (!call.has_value()) return call.error();
  Problem p{};
  p.kind = Kind::kForward;
  return run_call(pool, p, *call);
}

ffi::Error backward(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                    CallAttributes attributes) {
  const auto call = decode_backward(args, rets, attributes);
  if (!call.has_value()) return call.error();
  Problem p{};
  p.kind = Kind::kBackward;
  return run_call(pool, p, *call);
}

}  // namespace
}  // namespace prnn

XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCheckCall, prnn::check_attributes,
                              ffi::Ffi::BindInstantiate().Attr<prnn::CallAttributes>("call"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCpuForward, prnn::forward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<prnn::CallAttributes>("call"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCpuBackward, prnn::backward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<prnn::CallAttributes>("call"));
