// The static part of a call, as it comes from Python: prnn_jax/_call/call.py's dataclass, field by
// field. A field that only one side has is an error when the call is compiled.
#pragma once
#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/cell_table.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "xla/ffi/api/ffi.h"

namespace prnn {

inline std::optional<Dtype> dtype_of(xla::ffi::DataType dtype) {
  if (dtype == xla::ffi::DataType::F32) return Dtype::kFloat32;
  if (dtype == xla::ffi::DataType::BF16) return Dtype::kBfloat16;
  if (dtype == xla::ffi::DataType::F16) return Dtype::kFloat16;
  return std::nullopt;
}

struct CallAttributes {
  std::string_view cell;
  std::string_view activations;  // of the general cells
  std::string_view norm;         // of cells with layer norm, else empty
  std::string_view clip;         // of cells with bounds inside of their steps, else empty
  bool projects;                 // makes its own a_x
  bool prepared;                 // and is given packed weights
  bool time_major, reverse, bidirectional;
  bool is_stack;          // the groups are layers of a stack (core/stack_passes.h)
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
// The cell of a row of Python's table (prnn_jax/_cells/table.py), with the activations it has.
inline std::optional<CellSpec> cell_named(std::string_view name) {
  const auto of = [](CellKind kind) { return CellSpec{kind, 0.0f, 0.0f}; };
  if (name == "rnn_tanh") return of(CellKind::kRnnTanh);
  if (name == "rnn_relu") return of(CellKind::kRnnRelu);
  if (name == "rnn_general") return of(CellKind::kGeneralRnn);
  if (name == "lstm") return of(CellKind::kLstm);
  if (name == "lstm_general") return of(CellKind::kGeneralLstm);
  if (name == "lstm_peephole") {
    CellSpec spec = of(CellKind::kGeneralLstm);
    spec.has_peepholes = true;
    return spec;
  }
  if (name == "slstm") return of(CellKind::kSlstm);
  if (name == "gru") return of(CellKind::kGru);
  if (name == "gru_general") return of(CellKind::kGeneralGru);
  if (name == "gru_reset_before") return of(CellKind::kGruResetBefore);
  if (name == "lstm_projected") return of(CellKind::kProjectedLstm);
  if (name == "lstm_projected_general") return of(CellKind::kGeneralProjectedLstm);
  if (name == "lstm_projected_peephole") {
    CellSpec spec = of(CellKind::kGeneralProjectedLstm);
    spec.has_peepholes = true;
    return spec;
  }
  for (const auto& [normed, kind] :
       {std::pair{"layer_norm_lstm", CellKind::kLstm}, std::pair{"layer_norm_gru", CellKind::kGru}})
    if (name == normed) {
      CellSpec spec = of(kind);
      spec.norm.is_there = true;  // and what most have, where nothing else is said
      spec.norm.inner = kind == CellKind::kLstm ? InnerNorm::kOutput : InnerNorm::kNone;
      return spec;
    }
  return std::nullopt;
}
inline std::optional<ActivationKind> activation_kind(std::string_view name) {
  if (name == "sigmoid") return ActivationKind::kSigmoid;
  if (name == "tanh") return ActivationKind::kTanh;
  if (name == "clipped") return ActivationKind::kClipped;
  if (name == "leaky_relu") return ActivationKind::kLeakyRelu;
  if (name == "elu") return ActivationKind::kElu;
  if (name == "softsign") return ActivationKind::kSoftsign;
  if (name == "softplus") return ActivationKind::kSoftplus;
  return std::nullopt;
}

// Words of a text, one after the other.
class Words {
 public:
  explicit Words(std::string_view text) : left_(text) {}

  std::string_view next() {
    const std::size_t end = std::min(left_.find(' '), left_.size());
    const std::string_view word = left_.substr(0, end);
    left_.remove_prefix(std::min(end + 1, left_.size()));
    return word;
  }
  // A float by its bits, in hex; false if it is none.
  bool next(float& number) {
    const std::string_view word = next();
    std::uint32_t bits = 0;
    const char* end = word.data() + word.size();
    const auto read = std::from_chars(word.data(), end, bits, 16);
    if (read.ec != std::errc() || read.ptr != end) return false;
    number = std::bit_cast<float>(bits);
    return true;
  }
  bool is_over() const { return left_.empty(); }

 private:
  std::string_view left_;
};

// Of the gates, the candidate and the output: a name and four floats each.
inline std::optional<ChosenActivations> activations_of(std::string_view text) {
  Words words(text);
  ChosenActivations out;
  for (AnyActivation* f : {&out.gate, &out.candidate, &out.output}) {
    const auto kind = activation_kind(words.next());
    if (!kind) return std::nullopt;
    f->kind = *kind;
    for (float* number : {&f->alpha, &f->beta, &f->low, &f->high})
      if (!words.next(*number)) return std::nullopt;
  }
  return out;
}
// Bounds of what gates and the candidate make, of the state, of gradients, and of what a projection
// makes: two floats each.
inline std::optional<Clip> clip_of(std::string_view text) {
  Clip out{};
  if (text.empty()) return out;
  out.is_there = true;
  Words words(text);
  for (Bounds* bounds : {&out.gate, &out.candidate, &out.state, &out.gradient, &out.projection})
    if (!words.next(bounds->low) || !words.next(bounds->high)) return std::nullopt;
  if (!words.is_over()) return std::nullopt;
  return out;
}
// How a cell normalises, as prnn_jax/_cells/normed.py says it: of what, over what, what sees the
// inner value, and the bits of epsilon, in hex.
inline std::optional<Normalisation> normalisation_of(std::string_view text) {
  Normalisation out{};
  if (text.empty()) return out;
  out.is_there = true;
  const auto take = [&](std::string_view word) {
    if (!text.starts_with(word)) return false;
    text.remove_prefix(word.size());
    return true;
  };
  out.of_sum = take("sum ");
  if (!out.of_sum && !take("parts ")) return std::nullopt;
  out.per_gate = take("gate ");
  if (!out.per_gate && !take("gates ")) return std::nullopt;
  if (take("output "))
    out.inner = InnerNorm::kOutput;
  else if (take("state "))
    out.inner = InnerNorm::kState;
  else if (!take("none "))
    return std::nullopt;
  if (!Words(text).next(out.epsilon)) return std::nullopt;
  return out;
}
// The cell of a call.
inline std::optional<CellSpec> cell_of(const CallAttributes& call) {
  std::optional<CellSpec> cell = cell_named(call.cell);
  if (!cell) return std::nullopt;
  cell->skip = call.skip;
  cell->cap = call.cap;
  const auto f = activations_of(call.activations);
  if (!f) return std::nullopt;
  cell->f = *f;
  const auto norm = normalisation_of(call.norm);
  if (!norm || norm->is_there != cell->norm.is_there) return std::nullopt;
  cell->norm = *norm;
  const auto clip = clip_of(call.clip);
  if (!clip) return std::nullopt;
  cell->clip = *clip;
  return cell;
}

// Layers of a stack at once have nothing but the plain step.
inline bool may_be_stack(const CallAttributes& call) {
  const bool has_controls =
      call.has_lengths || call.has_resets || call.has_mask || call.has_zoneout;
  return !has_controls && !call.projects && !call.bidirectional && call.save != "states";
}

// Runs when the program is compiled: refuses what no device could execute.
inline xla::ffi::Error check_attributes(CallAttributes call) {
  if (!cell_named(call.cell))
    return xla::ffi::Error::InvalidArgument("prnn_jax: this build has no cell named " +
                                            std::string(call.cell) +
                                            "; the program was made by another version");
  if (!cell_of(call))
    return xla::ffi::Error::InvalidArgument("prnn_jax: this build has no activations named " +
                                            std::string(call.activations) +
                                            "; the program was made by another version");
  const bool has_save = call.save == "nothing" || call.save == "all" || call.save == "states";
  if (!has_save || call.max_sms < 0 || call.max_sms > std::numeric_limits<int>::max() ||
      (call.prepared && !call.projects) || (call.is_stack && !may_be_stack(call)))
    return xla::ffi::Error::InvalidArgument(
        "prnn_jax: a native call's attributes are none that this version knows; was the program "
        "made by another version?");
  return xla::ffi::Error::Success();
}

}  // namespace prnn

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    prnn::CallAttributes, xla::ffi::StructMember<std::string_view>("cell"),
    xla::ffi::StructMember<std::string_view>("activations"),
    xla::ffi::StructMember<std::string_view>("norm"),
    xla::ffi::StructMember<std::string_view>("clip"), xla::ffi::StructMember<bool>("projects"),
    xla::ffi::StructMember<bool>("prepared"), xla::ffi::StructMember<bool>("time_major"),
    xla::ffi::StructMember<bool>("reverse"), xla::ffi::StructMember<bool>("bidirectional"),
    xla::ffi::StructMember<bool>("is_stack"), xla::ffi::StructMember<std::string_view>("save"),
    xla::ffi::StructMember<bool>("has_lengths"), xla::ffi::StructMember<bool>("has_resets"),
    xla::ffi::StructMember<bool>("has_mask"), xla::ffi::StructMember<bool>("has_zoneout"),
    xla::ffi::StructMember<float>("skip"), xla::ffi::StructMember<float>("cap"),
    xla::ffi::StructMember<bool>("exact"), xla::ffi::StructMember<std::int64_t>("max_sms"));
