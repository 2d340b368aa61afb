// Prefetches what a step will read and write, one step before: its place in the sequences, where
// each row, gate and kept value is a stream of its own. Of many, the processor loses track.
#pragma once
#include "core/passes.h"
#include "cpu/simd.h"

namespace prnn::PRNN_ISA {

// Bytes of sequences that a step reads and writes from which on it is worth asking. Measured on a
// Zen 5, backward: 98 KB of GRU 256 at batch 8 gain 15 %, 49 KB of batch 4 lose 2 %.
inline constexpr std::int64_t kWorthPrefetching = 64 << 10;

// Whether the steps of a call are worth it.
template <class C, class Io, class T>
  requires(C::kPhases == 1)
PRNN_HD bool is_worth_prefetching(const BackwardPass<C, Io, T>& pass) {
  constexpr int kGradients = (C::kSameGradient ? 1 : 2) * C::kGates;
  constexpr std::int64_t kBytes = (2 + saved_values<C> + kGradients) * sizeof(T);  // of a unit
  return kBytes * pass.shape.batch * pass.shape.groups * pass.shape.hidden >= kWorthPrefetching;
}

// Forward, of an a_x that is in memory. Where it comes from the third-level cache, a fifth of the
// time of GRU 193, two directions, batch 9; where from the second-level one, it costs one part in a
// hundred. Cells of two phases do without.
template <class C, class Io, class T>
  requires(C::kPhases == 1)
PRNN_HD bool is_worth_prefetching(const ForwardPass<C, Io, T>& pass) {
  return pass.at.chunk_steps == 0;
}

// Whether a vector of units may be the first of its cache line: the others come with it.
PRNN_HD bool begins_line(std::int64_t unit) {
  constexpr std::int64_t kLine = 16;
  return unit % kLine < kWidth;
}

template <bool kWrites, class T>
PRNN_HD void prefetch(T* p, int values, std::int64_t stride) {
#pragma GCC unroll 8
  for (int n = 0; n < values; ++n) __builtin_prefetch(p + n * stride, kWrites);
}

// What step s of a unit will read and write, and no earlier step has.
template <class C, class Io, class T>
PRNN_HD void prefetch_step(const BackwardPass<C, Io, T>& pass, std::int64_t g, std::int64_t s,
                           std::int64_t b, std::int64_t unit) {
  const Shape& shape = pass.shape;
  const auto& at = pass.at;
  const std::int64_t step = pass.forward_step(shape, s);
  if (step < 0) return;
  const std::int64_t row = shape.row_at(b, shape.time_at(g, step, b), g) * shape.hidden;
  const auto place = [&](int values) { return row * values + unit; };
  prefetch<false>(at.dy + place(1), 1, 0);
  prefetch<false>(pass.h_before(at.y, at.state_0[0], g, step, b) + unit, 1, 0);
  if constexpr (saved_values<C> > 0)
    prefetch<false>(at.saved + place(saved_values<C>), saved_values<C>, shape.hidden);
  if constexpr (C::kKeepsMade)
    if (at.controls.zoneout != nullptr) prefetch<false>(at.saved + place(1), 1, 0);
  prefetch<true>(at.da_x + place(C::kGates), C::kGates, shape.hidden);
  if constexpr (!C::kSameGradient)
    prefetch<true>(at.da_h + place(C::kGates), C::kGates, shape.hidden);
}

template <class C, class Io, class T>
PRNN_HD void prefetch_step(const ForwardPass<C, Io, T>& pass, std::int64_t g, std::int64_t s,
                           std::int64_t b, std::int64_t unit) {
  const Shape& shape = pass.shape;
  if (s >= shape.time) return;
  const std::int64_t at = shape.sequence_at(b, shape.time_at(g, s, b), g, C::kGates);
  prefetch<false>(pass.at.a_x + at + unit, C::kGates, shape.hidden);
}

}  // namespace prnn::PRNN_ISA
