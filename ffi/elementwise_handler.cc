// XLA's call of an elementwise recurrence on the CPU (ffi/elementwise_call.h).
#include "cpu/elementwise.h"
#include "cpu/run.h"
#include "ffi/cpu_call.h"
#include "ffi/elementwise_call.h"
#include "ffi/handlers.h"

namespace ffi = xla::ffi;

namespace prnn {
namespace {

ffi::Error run_elementwise(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b,
                           ffi::AnyBuffer y_0, ffi::Result<ffi::AnyBuffer> y, bool constant,
                           bool reverse, bool shifted, std::string_view activation) {
  if (auto error = check_environment(); error.failure()) return error;
  const auto call = elementwise_call({a, b, y_0, *y}, constant, reverse, shifted, activation);
  if (!call.has_value()) return call.error();
  with_threads(pool, [&](ThreadPool& threads) { run(best_isa(), *call, threads); });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace prnn

XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCpuElementwise, prnn::run_elementwise,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<bool>("constant")
                                  .Attr<bool>("reverse")
                                  .Attr<bool>("shifted")
                                  .Attr<std::string_view>("activation"));
