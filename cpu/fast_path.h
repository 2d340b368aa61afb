// The fast path: inner steps without controls, of calls in float32, have code of their own: looking
// after each control costs a tenth of a short step, and more.
#pragma once
#include <type_traits>

#include "core/passes.h"

namespace prnn::PRNN_ISA {

// Not of cells that few layers are of: it is half of a cell's code.
template <class Pass>
constexpr bool has_fast_path() {
  if constexpr (requires { Pass::cell; })
    if (kHasFewUsers<std::remove_cvref_t<decltype(Pass::cell)>>) return false;
  return std::is_same_v<typename Pass::Value, float>;
}
template <class Pass>
inline constexpr bool kHasFastPath = has_fast_path<Pass>();

// Whether a step is neither the first nor the last, which read and write what others do not.
template <class Pass>
PRNN_HD bool is_inner(const Pass& pass, std::int64_t step) {
  if constexpr (requires { pass.at.controls; })
    return step > 0 && step + 1 < pass.shape.time;
  else
    return true;
}

// Whether the call has no controls but lengths and resets, as most calls.
template <class Pass>
PRNN_HD bool is_fast(const Pass& pass) {
  if constexpr (!kHasFastPath<Pass>)
    return false;
  else if constexpr (requires { pass.at.controls; })
    return pass.at.controls.zoneout == nullptr && pass.at.controls.mask == nullptr &&
           pass.at.multiplied == nullptr;
  else
    return true;
}

// And not those either.
template <class Pass>
PRNN_HD void straighten(Pass& pass) {
  pass.shape.lengths = nullptr;
  if constexpr (requires { pass.at.controls; }) pass.at.controls.resets = nullptr;
}
template <class Pass>
PRNN_HD bool is_straight(const Pass& pass) {
  if constexpr (requires { pass.at.controls; })
    if (pass.at.controls.resets != nullptr) return false;
  return pass.shape.lengths == nullptr;
}

// Whether steps of some rows, which count, are inner ones of a call without controls.
template <class Pass>
PRNN_HD bool are_fast(const Pass& pass, std::int64_t group, std::int64_t step,
                      const std::int64_t* rows, int count) {
  if (!is_fast(pass) || !is_inner(pass, step)) return false;
  if (is_straight(pass)) return true;
  for (int r = 0; r < count; ++r)
    if (pass.has_controls(group, step, rows[r])) return false;
  return true;
}

}  // namespace prnn::PRNN_ISA
