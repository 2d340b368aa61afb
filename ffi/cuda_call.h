// From a native call to a call that the CUDA engine plans and launches.
#pragma once
#include "cuda/call.h"
#include "cuda/planner.h"
#include "ffi/decode.h"

namespace prnn {

inline std::optional<Number> number_of(xla::ffi::DataType dtype, bool exact) {
  switch (dtype) {
    case xla::ffi::DataType::BF16:
      return Number::kBfloat16;
    case xla::ffi::DataType::F16:
      return Number::kFloat16;
    case xla::ffi::DataType::F32:
      return exact ? Number::kFloat32 : Number::kTf32;
    default:
      return std::nullopt;
  }
}

inline xla::ffi::ErrorOr<CudaCall> cuda_call(PassKind pass, xla::ffi::RemainingArgs args,
                                             xla::ffi::RemainingRets rets,
                                             const CallAttributes& attributes) {
  const auto call = pass == PassKind::kForward ? decode_forward(args, rets, attributes)
                                               : decode_backward(args, rets, attributes);
  if (!call.has_value()) return xla::ffi::Unexpected(call.error());
  const auto number = number_of(call->dtype, attributes.exact);
  if (!number)
    return xla::ffi::Unexpected(xla::ffi::Error::InvalidArgument(
        "prnn_jax: the CUDA engine takes bfloat16, float16 and float32; "
        "implementation=\"scan\" takes any dtype"));
  const CudaCall out{pass,           call->cell,      *number, call->shape,   call->forward,
                     call->backward, call->workspace, {},      call->is_stack};
  if (auto error = check_workspace(call->workspace_bytes, workspace_bytes(out)); error.failure())
    return xla::ffi::Unexpected(error);
  return out;
}

inline Request request_of(const CudaCall& call, std::int64_t max_sms) {
  return {call.cell.kind, call.pass,     call.number, call.shape, static_cast<int>(max_sms),
          call.is_stack,  call.cell.norm};
}

}  // namespace prnn
