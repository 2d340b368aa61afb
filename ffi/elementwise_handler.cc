// XLA's call of an elementwise recurrence (cpu/elementwise.h):
//   prnn_elementwise   a, b, y_0  -> y
// b and y [..., steps, width], y_0 [..., width]; a as b, or, if it is `constant`, as y_0. All of
// one dtype. f is linear where no activation is named.
#include <algorithm>
#include <string_view>

#include "cpu/elementwise.h"
#include "cpu/run.h"
#include "ffi/attributes.h"
#include "ffi/cpu_call.h"
#include "ffi/handlers.h"

namespace ffi = xla::ffi;

namespace prnn {
namespace {

ffi::Error run_elementwise(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b,
                           ffi::AnyBuffer y_0, ffi::Result<ffi::AnyBuffer> y, bool constant,
                           bool reverse, bool shifted, std::string_view activation) {
  if (auto error = check_environment(); error.failure()) return error;
  const auto dtype = dtype_of(b.element_type());
  const auto sizes = b.dimensions(), state = y_0.dimensions();
  const auto is = [&](const ffi::AnyBuffer& buffer, auto dimensions) {
    return buffer.element_type() == b.element_type() &&
           std::ranges::equal(buffer.dimensions(), dimensions);
  };
  const bool fits =
      dtype && sizes.size() >= 2 && state.size() == sizes.size() - 1 &&
      state.back() == sizes.back() &&
      std::ranges::equal(state.first(state.size() - 1), sizes.first(sizes.size() - 2)) &&
      is(y_0, state) && is(a, constant ? state : sizes) && is(*y, sizes);
  const auto f = activation.empty() ? ChosenActivations{} : activations_of(activation);
  if (!fits || !f)
    return ffi::Error::InvalidArgument(
        "prnn_jax: the buffers of an elementwise recurrence do not have the shapes or dtypes this "
        "version expects; was the program exported by another version?");
  ElementwiseRecurrence p{};
  p.dtype = *dtype;
  p.rows = 1;
  for (const std::int64_t size : sizes.first(sizes.size() - 2)) p.rows *= size;
  p.steps = sizes[sizes.size() - 2];
  p.width = sizes.back();
  p.reverse = reverse;
  p.is_constant = constant;
  p.is_shifted = shifted;
  p.is_linear = activation.empty();
  p.f = f->candidate;
  p.a = a.untyped_data();
  p.b = b.untyped_data();
  p.y_0 = y_0.untyped_data();
  p.y = y->untyped_data();
  with_threads(pool, [&](ThreadPool& threads) { run(best_isa(), p, threads); });
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
