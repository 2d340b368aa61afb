// XLA's call of an elementwise recurrence (core/elementwise.h), on either engine:
//   prnn_elementwise   a, b, y_0  -> y [, workspace]
// b and y [..., steps, width], y_0 [..., width]; a as b, or, if it is `constant`, as y_0. All of
// one dtype, which may be complex64. f is linear where no activation is named, as it is of these.
#pragma once
#include <algorithm>
#include <string_view>

#include "core/elementwise.h"
#include "ffi/attributes.h"

namespace prnn {

struct ElementwiseBuffers {
  xla::ffi::AnyBuffer a, b, y_0, y;
};

inline xla::ffi::ErrorOr<ElementwiseRecurrence> elementwise_call(const ElementwiseBuffers& buffers,
                                                                 bool constant, bool reverse,
                                                                 bool shifted,
                                                                 std::string_view activation) {
  const auto& [a, b, y_0, y] = buffers;
  const bool is_complex = b.element_type() == xla::ffi::DataType::C64;
  const auto dtype = is_complex ? Dtype::kFloat32 : dtype_of(b.element_type());
  const auto sizes = b.dimensions(), state = y_0.dimensions();
  const auto is = [&](const xla::ffi::AnyBuffer& buffer, auto dimensions) {
    return buffer.element_type() == b.element_type() &&
           std::ranges::equal(buffer.dimensions(), dimensions);
  };
  const bool fits =
      dtype && (activation.empty() || !is_complex) && sizes.size() >= 2 &&
      state.size() == sizes.size() - 1 && state.back() == sizes.back() &&
      std::ranges::equal(state.first(state.size() - 1), sizes.first(sizes.size() - 2)) &&
      is(y_0, state) && is(a, constant ? state : sizes) && is(y, sizes);
  const auto f = activation.empty() ? ChosenActivations{} : activations_of(activation);
  if (!fits || !f)
    return xla::ffi::Unexpected(xla::ffi::Error::InvalidArgument(
        "prnn_jax: the buffers of an elementwise recurrence do not have the shapes or dtypes this "
        "version expects; was the program exported by another version?"));
  ElementwiseRecurrence p{};
  p.dtype = *dtype;
  p.rows = 1;
  for (const std::int64_t size : sizes.first(sizes.size() - 2)) p.rows *= size;
  p.steps = sizes[sizes.size() - 2];
  p.width = sizes.back() * (is_complex ? 2 : 1);
  p.reverse = reverse;
  p.is_constant = constant;
  p.is_shifted = shifted;
  p.is_linear = activation.empty();
  p.is_complex = is_complex;
  p.f = f->candidate;
  p.a = a.untyped_data();
  p.b = b.untyped_data();
  p.y_0 = y_0.untyped_data();
  p.y = y.untyped_data();
  return p;
}

}  // namespace prnn
