// The words of the planner's reasons.
#pragma once
#include <cstdio>
#include <string>

#include "cuda/planner.h"

namespace prnn {

template <class... Args>
std::string text(const char* format, Args... args) {
  std::string out(static_cast<std::size_t>(std::snprintf(nullptr, 0, format, args...)), '\0');
  std::snprintf(out.data(), out.size() + 1, format, args...);
  return out;
}

inline std::string megabytes(double bytes) {
  const double mb = bytes * 1e-6;
  return text(mb < 9.95 ? "%.1f MB" : "%.0f MB", mb);
}

inline const char* op(CellKind cell) {
  switch (cell) {
    case CellKind::kLstm:
    case CellKind::kGeneralLstm:
    case CellKind::kProjectedLstm:
    case CellKind::kGeneralProjectedLstm:
      return "lstm";
    case CellKind::kSlstm:
      return "slstm";
    case CellKind::kGru:
    case CellKind::kGeneralGru:
    case CellKind::kGruResetBefore:
      return "gru";
    case CellKind::kRnnTanh:
    case CellKind::kRnnRelu:
    case CellKind::kGeneralRnn:
      return "rnn";
  }
  __builtin_unreachable();
}
inline std::string kilobytes(std::int64_t bytes) {
  return text("%.0f KB", static_cast<double>(bytes) / 1024);
}
// "NVIDIA H200 (132 SMs)", or the part of it that the caller allows.
inline std::string place(const Request& request, const Device& device) {
  if (request.max_sms == 0) return text("%s (%d SMs)", device.name.c_str(), device.sms);
  return text("%s with max_sms=%d", device.name.c_str(), request.max_sms);
}

}  // namespace prnn
