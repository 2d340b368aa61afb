// A native call as XLA hands it over. Arguments and results, in order (core/shape.h has the
// layouts), all of one dtype but the workspace:
//   prnn_forward   a_x, w_hh, b_hh, state_0..., controls      -> y, state_n..., [saved], workspace
//   prnn_backward  w_hh, y, [saved], state_0..., dy, dstate_n..., controls
//                               -> da_x, [da_h], dstate_0..., [dreset_to... float32], workspace
// `saved` is absent where nothing is kept, da_h where it equals da_x. The controls are those that
// the attributes name, of
//   lengths int32, resets bool, reset_to..., mask, zoneout
// Instead of a_x, a forward call that `projects` has what to make it of: x, a sequence [input] of
// all groups, w_ih [input, groups, G·H], b_ih [groups, G·H]; then, if it is `prepared`, what
// prnn_prepare has made of these and of w_hh and b_hh, uint32.
#pragma once
#include <string>

#include "core/arrays.h"
#include "ffi/attributes.h"

namespace prnn {

struct NativeCall {
  CellSpec cell;
  Shape shape;
  xla::ffi::DataType dtype;
  ForwardArrays<void> forward;  // one of the two
  BackwardArrays<void> backward;
  std::int64_t input_size;  // of a call that projects
  const void *x, *w_ih, *b_ih;
  const void* prepared;  // or null
  std::int64_t prepared_words;
  void* workspace;
  std::int64_t workspace_bytes;
};

// Takes the buffers of a call one after the other and checks the size of each. Python has checked
// the caller's arrays; this guards against programs exported by another version.
class Buffers {
 public:
  Buffers(xla::ffi::RemainingArgs args, xla::ffi::RemainingRets rets, xla::ffi::DataType dtype)
      : args_(args), rets_(rets), dtype_(dtype) {}

  const void* argument(std::int64_t elements) { return argument(elements, dtype_); }
  const void* argument(std::int64_t elements, xla::ffi::DataType dtype) {
    const auto buffer = args_.get<xla::ffi::AnyBuffer>(next_arg_++);
    return checked(buffer.has_value() ? &*buffer : nullptr, elements, dtype);
  }
  // Of any size.
  const void* argument_of(xla::ffi::DataType dtype, std::int64_t& elements) {
    const auto buffer = args_.get<xla::ffi::AnyBuffer>(next_arg_);
    if (buffer.has_value()) elements = static_cast<std::int64_t>(buffer->element_count());
    return argument(elements, dtype);
  }
  void* result(std::int64_t elements) { return result(elements, dtype_); }
  void* result(std::int64_t elements, xla::ffi::DataType dtype) {
    auto buffer = rets_.get<xla::ffi::AnyBuffer>(next_ret_++);
    return checked(buffer.has_value() ? &**buffer : nullptr, elements, dtype);
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
        "prnn_jax: a native call's buffers do not have the number, sizes or dtypes this version "
        "expects; was the program exported by another version?");
  }

 private:
  void* checked(const xla::ffi::AnyBuffer* buffer, std::int64_t elements,
                xla::ffi::DataType dtype) {
    if (buffer != nullptr && buffer->element_type() == dtype &&
        static_cast<std::int64_t>(buffer->element_count()) >= elements)
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

// The call without its buffers, from a sequence [batch, time, groups, values·hidden] (or
// time-major) of it.
inline xla::ffi::ErrorOr<NativeCall> decode_shape(
    const xla::ffi::ErrorOr<xla::ffi::AnyBuffer>& sequence, int values,
    const CallAttributes& call) {
  if (!sequence.has_value() || sequence->dimensions().size() != 4)
    return xla::ffi::Unexpected(
        xla::ffi::Error::InvalidArgument("prnn_jax: a sequence must have rank 4"));
  const auto d = sequence->dimensions();
  NativeCall out{};
  out.cell = {*cell_kind(call.cell), call.skip, call.cap};
  out.shape = {d[call.time_major ? 0 : 1],
               d[call.time_major ? 1 : 0],
               d[2],
               d[3] / values,
               call.time_major,
               call.reverse,
               call.bidirectional,
               nullptr};
  out.dtype = sequence->element_type();
  return out;
}

inline Controls<void> decode_controls(Buffers& buffers, Shape& shape, int states,
                                      const CallAttributes& call) {
  const std::int64_t rows = shape.batch * shape.groups;
  Controls<void> out{};
  if (call.has_lengths)
    shape.lengths =
        static_cast<const std::int32_t*>(buffers.argument(rows, xla::ffi::DataType::S32));
  if (call.has_resets) {
    out.resets = static_cast<const std::uint8_t*>(
        buffers.argument(rows * shape.time, xla::ffi::DataType::PRED));
    for (int s = 0; s < states; ++s) out.reset_to[s] = buffers.argument(rows * shape.hidden);
  }
  if (call.has_mask) out.mask = buffers.argument(rows * shape.hidden);
  if (call.has_zoneout) out.zoneout = buffers.argument(rows * shape.hidden * shape.time * states);
  return out;
}

inline xla::ffi::ErrorOr<NativeCall> decode_forward(xla::ffi::RemainingArgs args,
                                                    xla::ffi::RemainingRets rets,
                                                    const CallAttributes& call) {
  const CellNumbers n = numbers({*cell_kind(call.cell), 0, 0});
  auto y = rets.get<xla::ffi::AnyBuffer>(0);
  if (!y.has_value()) return xla::ffi::Unexpected(y.error());
  auto decoded = decode_shape(**y, 1, call);
  if (!decoded.has_value()) return decoded;
  Shape& shape = decoded->shape;
  const std::int64_t state = shape.batch * shape.groups * shape.hidden;
  const std::int64_t sequence = state * shape.time;

  Buffers buffers(args, rets, decoded->dtype);
  auto& at = decoded->forward;
  if (call.projects) {
    const auto x = args.get<xla::ffi::AnyBuffer>(0);
    if (x.has_value() && x->dimensions().size() == 3) decoded->input_size = x->dimensions()[2];
    const std::int64_t columns = shape.groups * n.gates * shape.hidden;
    decoded->x = buffers.argument(shape.batch * shape.time * decoded->input_size);
    decoded->w_ih = buffers.argument(decoded->input_size * columns);
    decoded->b_ih = buffers.argument(columns);
    if (call.prepared)
      decoded->prepared = buffers.argument_of(xla::ffi::DataType::U32, decoded->prepared_words);
  } else {
    at.a_x = buffers.argument(sequence * n.gates);
  }
  at.w_hh = buffers.argument(shape.groups * shape.hidden * n.gates * shape.hidden);
  at.b_hh = buffers.argument(shape.groups * n.gates * shape.hidden);
  for (int s = 0; s < n.states; ++s) at.state_0[s] = buffers.argument(state);
  at.controls = decode_controls(buffers, shape, n.states, call);
  at.y = buffers.result(sequence);
  for (int s = 0; s < n.states; ++s) at.state_n[s] = buffers.result(state);
  at.saves_reserve = call.save == "all";
  const int saved = call.save == "nothing" ? 0 : at.saves_reserve ? n.saved : n.states - 1;
  if (saved > 0) at.saved = buffers.result(sequence * saved);
  decoded->workspace = buffers.workspace(decoded->workspace_bytes);
  if (auto error = buffers.error(); error.failure()) return xla::ffi::Unexpected(error);
  return decoded;
}

inline xla::ffi::ErrorOr<NativeCall> decode_backward(xla::ffi::RemainingArgs args,
                                                     xla::ffi::RemainingRets rets,
                                                     const CallAttributes& call) {
  const CellNumbers n = numbers({*cell_kind(call.cell), 0, 0});
  auto decoded = decode_shape(args.get<xla::ffi::AnyBuffer>(1), 1, call);
  if (!decoded.has_value()) return decoded;
  Shape& shape = decoded->shape;
  const std::int64_t state = shape.batch * shape.groups * shape.hidden;
  const std::int64_t sequence = state * shape.time;

  Buffers buffers(args, rets, decoded->dtype);
  auto& at = decoded->backward;
  at.w_hh = buffers.argument(shape.groups * shape.hidden * n.gates * shape.hidden);
  at.y = buffers.argument(sequence);
  if (n.saved > 0) at.saved = buffers.argument(sequence * n.saved);
  for (int s = 0; s < n.states; ++s) at.state_0[s] = buffers.argument(state);
  at.dy = buffers.argument(sequence);
  for (int s = 0; s < n.states; ++s) at.dstate_n[s] = buffers.argument(state);
  at.controls = decode_controls(buffers, shape, n.states, call);
  at.da_x = buffers.result(sequence * n.gates);
  at.da_h = n.same_gradient ? at.da_x : buffers.result(sequence * n.gates);
  for (int s = 0; s < n.states; ++s) at.dstate_0[s] = buffers.result(state);
  if (call.has_resets)
    for (int s = 0; s < n.states; ++s)
      at.dreset_to[s] = static_cast<float*>(buffers.result(state, xla::ffi::DataType::F32));
  decoded->workspace = buffers.workspace(decoded->workspace_bytes);
  if (auto error = buffers.error(); error.failure()) return xla::ffi::Unexpected(error);
  return decoded;
}

// Where a call's workspace is smaller than the engine needs.
inline xla::ffi::Error check_workspace(std::int64_t bytes, std::int64_t needed) {
  if (bytes >= needed) return xla::ffi::Error::Success();
  return xla::ffi::Error::InvalidArgument(
      "prnn_jax: a native call needs " + std::to_string(needed) + " bytes of workspace and has " +
      std::to_string(bytes) + "; was the program exported by another version?");
}

}  // namespace prnn
