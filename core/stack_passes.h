// The passes of the layers of a stack, all of them in one call: the groups of its shape are the
// layers. Beside its own published values of the last step, each multiplies those of the same step
// of its neighbour: forward the layer below (its h, by w_ih), backward the layer above (its ∂a_h,
// by the transpose). So layers take different steps at a time, one a step behind the other: the
// wavefront of Appleyard et al. 2016 (arXiv:1604.01946).
//
// w is [layers, 2H, G·H]: of each layer w_hh, then w_ih; that of the first is not read, for its a_x
// comes from outside. a_x and dy, of the last layer's y, are sequences of one group.
//
// For engines whose layers exchange values themselves (cuda/exchange.cuh); of plain calls.
#pragma once
#include "core/passes.h"

namespace prnn {

template <class C, class Io, class T, class S>
struct StackForwardPass : ForwardPass<C, Io, T, S> {
  using Base = ForwardPass<C, Io, T, S>;
  using Index = typename S::Index;
  using Fetched = typename Base::Fetched;
  using SequenceRows = typename Base::SequenceRows;
  using Base::at, Base::shape;

  static constexpr int kSources = 2, kNeighbour = -1;  // whose values it multiplies, too
  PRNN_HD Index depth(int) const { return kSources * shape.hidden; }
  PRNN_HD T weight(Index g, int, Index unit, int product, Index k) const {
    return weight_rows(g, 0).first[k * C::kGates * shape.hidden + product * shape.hidden + unit];
  }
  PRNN_HD WeightRows<T> weight_rows(Index g, int) const {
    const Index row = C::kGates * shape.hidden;
    return {at.w_hh + g * kSources * shape.hidden * row, row};
  }
  // The same of what multiplies the neighbour's values; null where there is none.
  PRNN_HD WeightRows<T> neighbour_weight_rows(Index g, int phase) const {
    const auto own = weight_rows(g, phase);
    return {g == 0 ? nullptr : own.first + shape.hidden * own.stride, own.stride};
  }
  PRNN_HD Fetched fetch(Index g, Index s, Index b, Index unit, Io io) const {
    return fetch(Base::rows(g, s, b), g, s, b, unit, io);
  }
  PRNN_HD Fetched fetch(const SequenceRows& rows, Index g, Index, Index, Index unit, Io io) const {
    Fetched in{};
    if (g > 0) return in;
    const Index row = rows.here / shape.groups;
    in.a_x = Base::template fetch_values<C::kGates>(
        at.a_x + Base::in_sequence(row, C::kGates) + unit, io);
    return in;
  }
};

template <class C, class Io, class T, class S>
struct StackBackwardPass : BackwardPass<C, Io, T, S> {
  using Base = BackwardPass<C, Io, T, S>;
  using Index = typename S::Index;
  using Fetched = typename Base::Fetched;
  using SequenceRows = typename Base::SequenceRows;
  using Base::at, Base::shape;

  static constexpr int kSources = 2, kNeighbour = 1;
  PRNN_HD Index depth(int) const { return kSources * C::kGates * shape.hidden; }
  PRNN_HD T weight(Index g, int, Index unit, int, Index k) const {
    const Index own = C::kGates * shape.hidden;
    const auto columns = k < own ? weight_columns(g, 0) : neighbour_weight_columns(g, 0);
    return columns.first == nullptr ? T{} : columns.first[unit * columns.stride + k % own];
  }
  PRNN_HD WeightColumns<T> weight_columns(Index g, int) const {
    const Index column = C::kGates * shape.hidden;
    return {at.w_hh + g * kSources * shape.hidden * column, column};
  }
  PRNN_HD WeightColumns<T> neighbour_weight_columns(Index g, int phase) const {
    const auto above = weight_columns(g + 1, phase);
    const bool is_there = g + 1 < shape.groups;
    return {is_there ? above.first + shape.hidden * above.stride : nullptr, above.stride};
  }
  PRNN_HD Fetched fetch(Index g, Index s, Index b, Index unit, Io io) const {
    return fetch(Base::rows(g, s, b), g, s, b, unit, io);
  }
  PRNN_HD Fetched fetch(const SequenceRows& rows, Index g, Index s, Index b, Index unit,
                        Io io) const {
    Fetched in = Base::fetch_kept(rows, g, s, b, unit, io);
    const Index row = rows.here / shape.groups;
    if (s < shape.time && g + 1 == shape.groups)
      in.dy[0] = io.fetch(at.dy + Base::in_sequence(row, 1) + unit);
    return in;
  }
};

}  // namespace prnn
