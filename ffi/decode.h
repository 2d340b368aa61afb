// A native call as XLA hands it over. Arguments and results, in order (core/shape.h has the
// layouts), all of one dtype but the workspace and states* other than h, which are float32:
//   prnn_forward   a_x, w_hh, b_hh, [per_unit], [w_hr], state_0*..., controls
//                               -> y, state_n*..., [saved], workspace
//   prnn_backward  w_hh, [per_unit], [w_hr], y, [saved], state_0..., dy, dstate_n*..., controls
//                        -> da_x, [da_h], [dh], [dper_unit float32], dstate_0*...,
//                           [dreset_to... float32], workspace
// `per_unit` is absent where the cell has no such numbers, w_hr and dh where it does not project,
// dper_unit (of each row) where it does not normalise,
// `saved` where nothing is kept, da_h where it equals da_x. The controls are those that the
// attributes name, of
//   lengths int32, resets bool, reset_to..., mask, zoneout
// Of a stack's layers, which are the groups, a_x and dy have one group, and w_hh is
// [groups, 2H, G·H] (core/stack_passes.h); for the CUDA engine alone.
// Instead of a_x, a forward call that `projects` has what to make it of: x, a sequence [input] of
// all groups, w_ih [input, groups, G·H], b_ih [groups, G·H]; then, if it is `prepared`, what
// prnn_prepare has made of these and of w_hh and b_hh, uint32.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <string>

#include "core/arrays.h"
#include "ffi/attributes.h"

namespace prnn {

struct NativeCall {
  CellSpec cell;
  Shape shape;
  xla::ffi::DataType dtype;
  bool is_stack;
  ForwardArrays<void> forward;  // one of the two
  BackwardArrays<void> backward;
  std::int64_t input_size;  // of a call that projects
  const void *x, *w_ih, *b_ih;
  const void* prepared;  // or null
  std::int64_t prepared_words;
  void* workspace;
  std::int64_t workspace_bytes;
};

// a b of sizes; of more than an integer holds, a size that no buffer has.
inline std::int64_t times(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product) ? -1 : product;
}

// Takes the buffers of a call one after the other and checks the shape of each. Python has checked
// the caller's arrays; this guards against programs exported by another version, and damaged ones.
class Buffers {
 public:
  using Dimensions = std::initializer_list<std::int64_t>;
  Buffers(xla::ffi::RemainingArgs args, xla::ffi::RemainingRets rets, xla::ffi::DataType dtype)
      : args_(args), rets_(rets), dtype_(dtype) {}

  const void* argument(Dimensions dimensions) { return argument(dimensions, dtype_); }
  const void* argument(Dimensions dimensions, xla::ffi::DataType dtype) {
    const auto buffer = args_.get<xla::ffi::AnyBuffer>(next_arg_++);
    return checked(buffer.has_value() ? &*buffer : nullptr, dimensions, dtype);
  }
  // A row of any length.
  const void* row_argument(xla::ffi::DataType dtype, std::int64_t& elements) {
    const auto buffer = args_.get<xla::ffi::AnyBuffer>(next_arg_);
    if (buffer.has_value()) elements = static_cast<std::int64_t>(buffer->element_count());
    return argument({elements}, dtype);
  }
  // One that is not read.
  void ignore_argument() { ++next_arg_; }
  void* result(Dimensions dimensions) { return result(dimensions, dtype_); }
  void* result(Dimensions dimensions, xla::ffi::DataType dtype) {
    auto buffer = rets_.get<xla::ffi::AnyBuffer>(next_ret_++);
    return checked(buffer.has_value() ? &**buffer : nullptr, dimensions, dtype);
  }
  // Of any dtype and size.
  void* workspace(std::int64_t& bytes) {
    auto buffer = rets_.get<xla::ffi::AnyBuffer>(next_ret_++);
    if (!buffer.has_value()) {
      wrong_ = true;
      return nullptr;
    }
    bytes = static_cast<std::int64_t>((*buffer)->size_bytes());
    return (*buffer)->untyped_data();
  }
  xla::ffi::Error error() const {
    if (!wrong_ && next_arg_ == args_.size() && next_ret_ == rets_.size())
      return xla::ffi::Error::Success();
    return xla::ffi::Error::InvalidArgument(
        "prnn_jax: a native call's buffers do not have the number, shapes or dtypes this version "
        "expects; was the program exported by another version?");
  }

 private:
  void* checked(const xla::ffi::AnyBuffer* buffer, Dimensions dimensions,
                xla::ffi::DataType dtype) {
    if (buffer != nullptr && buffer->element_type() == dtype &&
        std::ranges::equal(buffer->dimensions(), dimensions))
      return buffer->untyped_data();
    wrong_ = true;
    return nullptr;
  }
  xla::ffi::RemainingArgs args_;
  xla::ffi::RemainingRets rets_;
  xla::ffi::DataType dtype_;
  std::size_t next_arg_ = 0, next_ret_ = 0;
  bool wrong_ = false;
};

// The buffers of one call's arrays, by what they are.
class CallBuffers : public Buffers {
 public:
  CallBuffers(xla::ffi::RemainingArgs args, xla::ffi::RemainingRets rets, const NativeCall& call)
      : Buffers(args, rets, call.dtype), shape_(call.shape) {
    const bool time_major = shape_.time_major;
    rows_[0] = time_major ? shape_.time : shape_.batch;
    rows_[1] = time_major ? shape_.batch : shape_.time;
  }
  // With so many values per unit.
  const void* sequence(std::int64_t values) {
    return argument({rows_[0], rows_[1], shape_.groups, times(values, shape_.hidden)});
  }
  void* sequence_result(std::int64_t values) {
    return result({rows_[0], rows_[1], shape_.groups, times(values, shape_.hidden)});
  }
  // Of a stack, that of its outer layer.
  const void* outer_sequence(std::int64_t values, bool is_stack) {
    return argument(
        {rows_[0], rows_[1], is_stack ? 1 : shape_.groups, times(values, shape_.hidden)});
  }
  // Of h.
  const void* output() { return argument({rows_[0], rows_[1], shape_.groups, shape_.output()}); }
  void* output_result() { return result({rows_[0], rows_[1], shape_.groups, shape_.output()}); }
  // The n-th, of which the first is h.
  const void* state(int n) { return argument({shape_.batch, shape_.groups, size_of_state(n)}); }
  void* state_result(int n) { return result({shape_.batch, shape_.groups, size_of_state(n)}); }
  GivenStates<void> states(int count) {
    GivenStates<void> out{state(0), {}};
    for (int n = 1; n < count; ++n)
      out.others[n - 1] = static_cast<const float*>(
          argument({shape_.batch, shape_.groups, size_of_state(n)}, xla::ffi::DataType::F32));
    return out;
  }
  MadeStates<void> states_result(int count) {
    MadeStates<void> out{state_result(0), {}};
    for (int n = 1; n < count; ++n) out.others[n - 1] = state_sums(n);
    return out;
  }
  float* state_sums(int n) {
    return static_cast<float*>(
        result({shape_.batch, shape_.groups, size_of_state(n)}, xla::ffi::DataType::F32));
  }
  float* row_sums(std::int64_t values) {
    return static_cast<float*>(result({shape_.batch, shape_.groups, times(values, shape_.hidden)},
                                      xla::ffi::DataType::F32));
  }
  const void* matrix(std::int64_t gates, std::int64_t sources) {
    return argument({shape_.groups, times(sources, shape_.output()), times(gates, shape_.hidden)});
  }
  const void* projection() { return argument({shape_.groups, shape_.hidden, shape_.output()}); }
  const void* bias(std::int64_t gates) {
    return argument({shape_.groups, times(gates, shape_.hidden)});
  }
  const void* input(std::int64_t size) { return argument({rows_[0], rows_[1], size}); }
  const void* input_matrix(std::int64_t size, std::int64_t gates) {
    return argument({size, times(shape_.groups, times(gates, shape_.hidden))});
  }
  const std::int32_t* lengths() {
    return static_cast<const std::int32_t*>(
        argument({shape_.batch, shape_.groups, 1}, xla::ffi::DataType::S32));
  }
  const std::uint8_t* resets() {
    return static_cast<const std::uint8_t*>(
        argument({rows_[0], rows_[1], shape_.groups, 1}, xla::ffi::DataType::PRED));
  }

 private:
  std::int64_t size_of_state(int n) const { return n == 0 ? shape_.output() : shape_.hidden; }

  Shape shape_;
  std::int64_t rows_[2];  // of a sequence: the two leading axes
};

// The call without its buffers, from a sequence [batch, time, groups, hidden] (or time-major) of
// it: of h; and, where the cell projects, from w_hr.
inline xla::ffi::ErrorOr<NativeCall> decode_shape(
    const xla::ffi::ErrorOr<xla::ffi::AnyBuffer>& sequence,
    const xla::ffi::ErrorOr<xla::ffi::AnyBuffer>& w_hr, const CallAttributes& call) {
  if (auto error = check_attributes(call); error.failure()) return xla::ffi::Unexpected(error);
  if (!sequence.has_value() || sequence->dimensions().size() != 4)
    return xla::ffi::Unexpected(
        xla::ffi::Error::InvalidArgument("prnn_jax: a sequence must have rank 4"));
  const auto d = sequence->dimensions();
  NativeCall out{};
  out.cell = *cell_of(call);
  out.shape = {d[call.time_major ? 0 : 1],
               d[call.time_major ? 1 : 0],
               d[2],
               d[3],
               call.time_major,
               call.reverse,
               call.bidirectional,
               nullptr};
  out.dtype = sequence->element_type();
  out.is_stack = call.is_stack;
  if (!numbers(out.cell).projects) return out;
  // Of no units, or no values, h would be zeros that nobody writes.
  if (!w_hr.has_value() || w_hr->dimensions().size() != 3 || w_hr->dimensions()[1] == 0 ||
      out.shape.hidden == 0)
    return xla::ffi::Unexpected(xla::ffi::Error::InvalidArgument(
        "prnn_jax: w_hr must have rank 3 and units, and h some values"));
  out.shape.projected = out.shape.hidden;
  out.shape.hidden = w_hr->dimensions()[1];
  return out;
}

inline Controls<void> decode_controls(CallBuffers& buffers, Shape& shape, int states,
                                      const CallAttributes& call) {
  Controls<void> out{};
  if (call.has_lengths) shape.lengths = buffers.lengths();
  if (call.has_resets) {
    out.resets = buffers.resets();
    for (int s = 0; s < states; ++s) out.reset_to[s] = buffers.state(s);
  }
  if (call.has_mask) out.mask = buffers.state(0);
  if (call.has_zoneout) out.zoneout = buffers.sequence(states);
  return out;
}

// How many arguments the numbers are that each unit has for itself.
inline std::size_t per_unit_arguments(const CallAttributes& call) {
  const auto cell = cell_named(call.cell);
  return cell && numbers(*cell).per_unit > 0 ? 1 : 0;
}

// How many values of each unit and step the forward pass keeps, besides y.
inline int saved_of_forward(const CallAttributes& call, const CellNumbers& n) {
  if (call.save == "nothing") return 0;
  return call.save == "all" ? n.kept(call.has_zoneout) : n.states - 1;
}

inline xla::ffi::ErrorOr<NativeCall> decode_forward(xla::ffi::RemainingArgs args,
                                                    xla::ffi::RemainingRets rets,
                                                    const CallAttributes& call) {
  auto y = rets.get<xla::ffi::AnyBuffer>(0);
  if (!y.has_value()) return xla::ffi::Unexpected(y.error());
  const std::size_t before_w_hh = (call.projects ? 3 : 1) + (call.prepared ? 1 : 0);
  const std::size_t before_w_hr = before_w_hh + 2 + per_unit_arguments(call);
  auto decoded = decode_shape(**y, args.get<xla::ffi::AnyBuffer>(before_w_hr), call);
  if (!decoded.has_value()) return decoded;
  const CellNumbers n = numbers(decoded->cell);
  Shape& shape = decoded->shape;

  CallBuffers buffers(args, rets, *decoded);
  auto& at = decoded->forward;
  if (call.projects) {
    const auto x = args.get<xla::ffi::AnyBuffer>(0);
    if (x.has_value() && x->dimensions().size() == 3) decoded->input_size = x->dimensions()[2];
    if (decoded->input_size < 1)
      return xla::ffi::Unexpected(xla::ffi::Error::InvalidArgument(
          "prnn_jax: a call that makes its own a_x must have an input of rank 3 with features"));
    decoded->x = buffers.input(decoded->input_size);
    decoded->w_ih = buffers.input_matrix(decoded->input_size, n.gates);
    decoded->b_ih = buffers.bias(n.gates);
    if (call.prepared)
      decoded->prepared = buffers.row_argument(xla::ffi::DataType::U32, decoded->prepared_words);
  } else {
    at.a_x = buffers.outer_sequence(n.gates, call.is_stack);
  }
  at.w_hh = buffers.matrix(n.gates, call.is_stack ? 2 : 1);
  // A product of a stack's that is of w_ih alone has a bias of its own.
  at.b_hh = buffers.bias(n.gates + (call.is_stack && !n.same_gradient ? 1 : 0));
  if (n.per_unit > 0) at.per_unit = buffers.bias(n.per_unit);
  if (n.projects) at.w_hr = buffers.projection();
  at.state_0 = buffers.states(n.states);
  at.controls = decode_controls(buffers, shape, n.states, call);
  at.y = buffers.output_result();
  at.state_n = buffers.states_result(n.states);
  at.saves_reserve = call.save == "all";
  if (const int saved = saved_of_forward(call, n); saved > 0)
    at.saved = buffers.sequence_result(saved);
  decoded->workspace = buffers.workspace(decoded->workspace_bytes);
  if (auto error = buffers.error(); error.failure()) return xla::ffi::Unexpected(error);
  return decoded;
}

inline xla::ffi::ErrorOr<NativeCall> decode_backward(xla::ffi::RemainingArgs args,
                                                     xla::ffi::RemainingRets rets,
                                                     const CallAttributes& call) {
  const auto cell = cell_named(call.cell);
  const std::size_t before_w_hr = 1 + per_unit_arguments(call);
  const std::size_t before_y = before_w_hr + (cell && numbers(*cell).projects ? 1 : 0);
  auto decoded = decode_shape(args.get<xla::ffi::AnyBuffer>(before_y),
                              args.get<xla::ffi::AnyBuffer>(before_w_hr), call);
  if (!decoded.has_value()) return decoded;
  const CellNumbers n = numbers(decoded->cell);
  Shape& shape = decoded->shape;

  CallBuffers buffers(args, rets, *decoded);
  auto& at = decoded->backward;
  at.w_hh = buffers.matrix(n.gates, call.is_stack ? 2 : 1);
  if (n.per_unit > 0) at.per_unit = buffers.bias(n.per_unit);
  if (n.projects) at.w_hr = buffers.projection();
  at.y = buffers.output();
  if (const int kept = n.kept(call.has_zoneout); kept > 0) at.saved = buffers.sequence(kept);
  for (int s = 0; s < n.states; ++s) at.state_0[s] = buffers.state(s);
  at.dy = call.is_stack ? buffers.outer_sequence(1, true) : buffers.output();
  at.dstate_n = buffers.states(n.states);
  at.controls = decode_controls(buffers, shape, n.states, call);
  at.da_x = buffers.sequence_result(n.gates);
  at.da_h = n.same_gradient ? at.da_x : buffers.sequence_result(n.gates);
  if (n.projects) at.dh = buffers.output_result();
  if (n.normalises) at.dper_unit = buffers.row_sums(n.per_unit);
  at.dstate_0 = buffers.states_result(n.states);
  if (call.has_resets)
    for (int s = 0; s < n.states; ++s) at.dreset_to[s] = buffers.state_sums(s);
  decoded->workspace = buffers.workspace(decoded->workspace_bytes);
  if (auto error = buffers.error(); error.failure()) return xla::ffi::Unexpected(error);
  return decoded;
}

// Whether a call has nothing to compute and no result of any size.
inline bool is_empty(const Shape& shape) {
  return shape.batch == 0 || shape.groups == 0 || shape.hidden == 0;
}

// Where a call's workspace is smaller than the engine needs.
inline xla::ffi::Error check_workspace(std::int64_t bytes, std::int64_t needed) {
  if (bytes >= needed) return xla::ffi::Error::Success();
  return xla::ffi::Error::InvalidArgument(
      "prnn_jax: a native call needs " + std::to_string(needed) + " bytes of workspace and has " +
      std::to_string(bytes) + "; was the program exported by another version?");
}

}  // namespace prnn
