// The controls of a recurrence: lengths (core/shape.h), resets, masks. Every rule is
// here once, for both passes and all engines.
#pragma once
#include "core/cells.h"
#include "core/shape.h"

namespace prnn {

inline constexpr int kMaxStates = 4;

// Each null where the call has none. With R = reset_to and m the mask, step s of a row is
//
//   prev = resets ? R : the state before;   a_h = (m · prev_h) w_hh + b_hh
//   next = cell(a_x, a_h, prev);            the state after = k prev + (1 - k) next
//
// where k = 1 leaves nothing of next and k = 0 nothing of prev, be they infinite or no numbers.
template <class T = float>
struct Controls {
  const std::uint8_t* resets;     // [batch, time, groups], or time-major
  const T* reset_to[kMaxStates];  // [batch, groups, H] each
  const T* mask;                  // [batch, groups, H]
  const T* zoneout;               // sequence [states·H]: k

  PRNN_HD bool any() const { return resets != nullptr || mask != nullptr || zoneout != nullptr; }
  // Whether what a step multiplies is not simply the h before it.
  PRNN_HD bool change_product_input() const { return resets != nullptr || mask != nullptr; }

  // Whether the state is replaced before step s of a row. False beyond its end.
  PRNN_HD bool resets_at(const Shape& shape, std::int64_t g, std::int64_t s, std::int64_t b) const {
    return resets != nullptr && s < shape.length(b, g) &&
           resets[shape.row_at(b, shape.time_at(g, s, b), g)] != 0;
  }
  // The state a step starts from, given that after the step before.
  template <class State, class Io>
  PRNN_HD void replace(State& state, const Shape& shape, std::int64_t g, std::int64_t s,
                       std::int64_t b, std::int64_t unit, Io io) const {
    if (!resets_at(shape, g, s, b)) return;
    for (int n = 0; n < state.size(); ++n)
      state[n] = io.load(reset_to[n] + shape.state_at(b, g) + unit);
  }
  // The same of h alone, where it lies.
  PRNN_HD const T* replaced(const T* h, const Shape& shape, std::int64_t g, std::int64_t s,
                            std::int64_t b) const {
    return resets_at(shape, g, s, b) ? reset_to[0] + shape.state_at(b, g) : h;
  }
  // What step s multiplies, given the h after the step before.
  template <class F, class Io>
  PRNN_HD F product_input(F h, const Shape& shape, std::int64_t g, std::int64_t s, std::int64_t b,
                          std::int64_t unit, Io io) const {
    if (resets_at(shape, g, s, b)) h = io.load(reset_to[0] + shape.state_at(b, g) + unit);
    return masked(h, shape, g, b, unit, io);
  }
  // Of h, or of the gradient of what was multiplied.
  template <class F, class Io>
  PRNN_HD F masked(F h, const Shape& shape, std::int64_t g, std::int64_t b, std::int64_t unit,
                   Io io) const {
    return mask == nullptr ? h : h * io.load(mask + shape.state_at(b, g) + unit);
  }
  // The share of the n-th state that stays at time t.
  template <class Io>
  PRNN_HD auto stays(const Shape& shape, std::int64_t g, std::int64_t t, std::int64_t b,
                     std::int64_t unit, int n, int states, Io io) const {
    return io.load(zoneout + shape.sequence_at(b, t, g, states) + n * shape.hidden + unit);
  }
  template <class State, class Io>
  PRNN_HD void zone_out(State& next, const State& prev, const Shape& shape, std::int64_t g,
                        std::int64_t t, std::int64_t b, std::int64_t unit, Io io) const {
    using F = typename Io::F;
    if (zoneout == nullptr) return;
    for (int n = 0; n < next.size(); ++n) {
      const auto k = stays(shape, g, t, b, unit, n, next.size(), io);
      const auto mixed = k * prev[n] + (1.0f - k) * next[n];
      next[n] = select(k == F(0.0f), next[n], select(k == F(1.0f), prev[n], mixed));
    }
  }
  // Its gradient: d, of the state after, becomes that of the cell's own result; `kept` goes on to
  // the state before.
  template <class State, class Io>
  PRNN_HD void zone_out_grad(State& d, State& kept, const Shape& shape, std::int64_t g,
                             std::int64_t t, std::int64_t b, std::int64_t unit, Io io) const {
    using F = typename Io::F;
    if (zoneout == nullptr) return;
    for (int n = 0; n < d.size(); ++n) {
      const auto k = stays(shape, g, t, b, unit, n, d.size(), io);
      kept[n] = select(k == F(0.0f), F(0.0f), k * d[n]);
      d[n] = select(k == F(1.0f), F(0.0f), (1.0f - k) * d[n]);
    }
  }
};

template <class S, class T>
PRNN_HD decltype(auto) controls_of(const Controls<T>& controls) {
  if constexpr (S::kIsPlain)
    return Controls<T>{};
  else
    return (controls);
}

}  // namespace prnn
