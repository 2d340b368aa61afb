// The static part of a call, as it comes from Python: prnn_jax/_call.py's dataclass, field by
// field. A field that only one side has is an error when the call is compiled.
#pragma once
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "core/cells.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "xla/ffi/api/ffi.h"

namespace prnn {

struct CallAttributes {
  std::string_view cell;
  bool projects;  // makes its own a_x
  bool prepared;  // and is given packed weights
  bool time_major, reverse, bidirectional;
  std::string_view save;  // "nothing", "all", or only the "states"
  bool has_lengths, has_resets, has_mask, has_zoneout;
  float skip, cap;
  bool exact;            // GPU: float32 products in float32, not TF32
  std::int64_t max_sms;  // GPU: streaming multiprocessors a call may take; 0: all
};

inline std::optional<Dtype> dtype_named(std::string_view name) {
  if (name == "float32") return Dtype::kFloat32;
  if (name == "bfloat16") return Dtype::kBfloat16;
  if (name == "float16") return Dtype::kFloat16;
  return std::nullopt;
}
inline std::optional<CellKind> cell_kind(std::string_view name) {
  if (name == "rnn_tanh") return CellKind::kRnnTanh;
  if (name == "rnn_relu") return CellKind::kRnnRelu;
  if (name == "lstm") return CellKind::kLstm;
  if (name == "lstm_peephole") return CellKind::kPeepholeLstm;
  if (name == "slstm") return CellKind::kSlstm;
  if (name == "gru") return CellKind::kGru;
  if (name == "gru_reset_before") return CellKind::kGruResetBefore;
  return std::nullopt;
}

// Runs when the program is compiled: refuses what no device could execute.
inline xla::ffi::Error check_attributes(CallAttributes call) {
  if (!cell_kind(call.cell))
    return xla::ffi::Error::InvalidArgument("prnn_jax: this build has no cell named " +
                                            std::string(call.cell) +
                                            "; the program was made by another version");
  const bool has_save = call.save == "nothing" || call.save == "all" || call.save == "states";
  if (!has_save || call.max_sms < 0 || call.max_sms > std::numeric_limits<int>::max() ||
      (call.prepared && !call.projects))
    return xla::ffi::Error::InvalidArgument(
        "prnn_jax: a native call's attributes are none that this version knows; was the program "
        "made by another version?");
  return xla::ffi::Error::Success();
}

}  // namespace prnn

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    prnn::CallAttributes, xla::ffi::StructMember<std::string_view>("cell"),
    xla::ffi::StructMember<bool>("projects"), xla::ffi::StructMember<bool>("prepared"),
    xla::ffi::StructMember<bool>("time_major"), xla::ffi::StructMember<bool>("reverse"),
    xla::ffi::StructMember<bool>("bidirectional"), xla::ffi::StructMember<std::string_view>("save"),
    xla::ffi::StructMember<bool>("has_lengths"), xla::ffi::StructMember<bool>("has_resets"),
    xla::ffi::StructMember<bool>("has_mask"), xla::ffi::StructMember<bool>("has_zoneout"),
    xla::ffi::StructMember<float>("skip"), xla::ffi::StructMember<float>("cap"),
    xla::ffi::StructMember<bool>("exact"), xla::ffi::StructMember<std::int64_t>("max_sms"));
