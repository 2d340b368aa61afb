// All cells, by a value at run time.
#pragma once
#include "core/clipped_cells.h"
#include "core/normed_cells.h"

namespace prnn {

enum class CellKind {
  kRnnTanh,
  kRnnRelu,
  kGeneralRnn,
  kLstm,
  kGeneralLstm,
  kSlstm,
  kGru,
  kGeneralGru,
  kGruResetBefore,
  kProjectedLstm,
  kGeneralProjectedLstm
};

// The cell and its numbers, as they come from the caller.
struct CellSpec {
  CellKind kind;
  float skip;                  // RNN only
  float cap;                   // clipped ReLU only
  ChosenActivations f = {};    // of the general cells; an RNN's is the candidate's
  bool has_peepholes = false;  // general LSTMs only
  Normalisation norm = {};     // LSTM and GRU only, and not on a GPU
  Clip clip = {};              // general cells, and the GRU's with the reset before
};

// Calls f(cell) for the cell chosen at run time. Of the host; inlined as PRNN_HD is.
template <class F>
[[gnu::always_inline]] inline decltype(auto) visit(const CellSpec& spec, F&& f) {
  const ClippedActivations clipped(spec.f, spec.clip);
  switch (spec.kind) {
    case CellKind::kRnnTanh:
      return f(Rnn<Tanh>{{}, spec.skip});
    case CellKind::kRnnRelu:
      return f(Rnn<ClippedRelu>{{spec.cap}, spec.skip});
    case CellKind::kGeneralRnn:
      if (spec.clip.is_there) return f(ClippedRnn{clipped.candidate, spec.skip});
      return f(Rnn<AnyActivation>{spec.f.candidate, spec.skip});
    case CellKind::kLstm:
      if (spec.norm.is_there) return f(NormedLstm{spec.norm});
      return f(Lstm{});
    case CellKind::kGeneralLstm:
      if (spec.clip.is_there) return f(ClippedLstm{clipped, spec.has_peepholes});
      return f(GeneralLstm{spec.f, spec.has_peepholes});
    case CellKind::kSlstm:
      return f(Slstm{});
    case CellKind::kGru:
      if (spec.norm.is_there) return f(NormedGru{spec.norm});
      return f(Gru{});
    case CellKind::kGeneralGru:
      if (spec.clip.is_there) return f(ClippedGru{clipped});
      return f(GeneralGru{spec.f});
    case CellKind::kGruResetBefore:
      if (spec.clip.is_there) return f(ClippedGruResetBefore{clipped});
      return f(GruResetBefore{spec.f});
    case CellKind::kProjectedLstm:
      return f(Projected<Lstm>{});
    case CellKind::kGeneralProjectedLstm:  // without a clip too: few layers are of it
      return f(ClippedProjectedLstm{{{clipped, spec.has_peepholes}}, spec.clip.projection});
  }
  __builtin_unreachable();  // the handlers refuse every other value
}

}  // namespace prnn
