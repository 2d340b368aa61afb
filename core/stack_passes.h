// The passes of the layers of a stack, all of them in one call: the groups of its shape are the
// layers. Beside its own published values of the last step, each multiplies those of the same step
// of its neighbour: forward the layer below (its h, by w_ih), backward the layer above (its ∂a_x,
// by the transpose). So layers take different steps at a time, one a step behind the other: the
// wavefront of Appleyard et al. 2016 (arXiv:1604.01946).
//
// w is [layers, 2H, G·H]: of each layer w_hh, then w_ih; that of the first is not read, for its a_x
// comes from outside. a_x and dy, of the last layer's y, are sequences of one group.
//
// Where a cell takes the sum of both products, a unit has one for each gate. A GRU's candidate
// takes them apart: so its unit has one more, of w_ih alone, and the candidate's is of w_hh alone;
// b_hh is [layers, products·H], and backward ∂a_x of the candidate is published, too.
//
// For engines whose layers exchange values themselves (cuda/grid_exchange.cuh); of plain calls.
#pragma once
#include "core/passes.h"

namespace prnn {

template <class C>
struct StackProducts {
  static constexpr bool kTakesApart = !C::kSameGradient;
  static constexpr int kCount = C::kGates + (kTakesApart ? 1 : 0);
  // Whose weights in w_hh (source 0) or w_ih a product has; -1: none.
  PRNN_HD static constexpr int gate_of(int source, int product) {
    if (!kTakesApart) return product;
    constexpr int kCandidate = C::kGates - 1, kOfX = C::kGates;
    if (source == 0) return product == kOfX ? -1 : product;
    return product == kCandidate ? -1 : product == kOfX ? kCandidate : product;
  }
};

// The row of a forward step in a sequence of one group.
template <class S>
PRNN_HD typename S::Index outer_row(S shape, typename S::Index step, typename S::Index b) {
  shape.groups = 1;
  return shape.row_at(b, shape.time_at(0, step, b), 0);
}

template <class C, class Io, class T, class S>
struct StackForwardPass : ForwardPass<C, Io, T, S> {
  using Base = ForwardPass<C, Io, T, S>;
  using Products = StackProducts<C>;
  using Index = typename S::Index;
  using F = typename Base::F;
  using Carry = typename Base::Carry;
  using Fetched = typename Base::Fetched;
  using Inputs = typename Base::Inputs;
  using Saved = typename Base::Saved;
  using SequenceRows = typename Base::SequenceRows;
  using Base::at, Base::shape;

  static constexpr int kProducts = Products::kCount;
  static constexpr int kSources = 2, kNeighbour = -1;  // whose values it multiplies, too

  PRNN_HD Index depth(int) const { return kSources * shape.hidden; }
  PRNN_HD T weight(Index g, int, Index unit, int product, Index k) const {
    const int source = k < shape.hidden ? 0 : 1, gate = Products::gate_of(source, product);
    const auto rows = weight_rows(g, source);
    if (rows.first == nullptr || gate < 0) return T{};
    return rows.first[k % shape.hidden * rows.stride + gate * shape.hidden + unit];
  }
  // Of w_hh and of w_ih; null where there is no neighbour.
  PRNN_HD WeightRows<T> weight_rows(Index g, int source) const {
    const Index row = C::kGates * shape.hidden, first = (kSources * g + source) * shape.hidden;
    return {g == 0 && source == 1 ? nullptr : at.w_hh + first * row, row};
  }
  PRNN_HD T bias(Index g, int, Index unit, int product) const {
    return at.b_hh[(g * kProducts + product) * shape.hidden + unit];
  }
  PRNN_HD Fetched fetch(Index g, Index s, Index b, Index unit, Io io) const {
    return fetch(Base::rows(g, s, b), g, s, b, unit, io);
  }
  PRNN_HD Fetched fetch(const SequenceRows&, Index g, Index s, Index b, Index unit, Io io) const {
    Fetched in{};
    if (g > 0) return in;
    const Index row = Base::in_sequence(outer_row(shape, s, b), C::kGates);
    in.a_x = Base::template fetch_values<C::kGates>(at.a_x + row + unit, io);
    return in;
  }
  PRNN_HD Vec<1, F> advance(Index g, Index s, Index b, Index unit, const Vec<kProducts, F>& a,
                            const Inputs& in, Carry& carry, Saved& saved, Io io) const {
    if constexpr (!Products::kTakesApart) {
      return Base::advance(g, s, b, unit, a, in, carry, saved, io);
    } else {
      Vec<C::kGates, F> a_h;
      for (int n = 0; n < C::kGates; ++n) a_h[n] = a[n];
      Inputs all = in;
      all.a_x[C::kGates - 1] = all.a_x[C::kGates - 1] + a[C::kGates];
      return Base::advance(g, s, b, unit, a_h, all, carry, saved, io);
    }
  }
};

template <class C, class Io, class T, class S>
struct StackBackwardPass : BackwardPass<C, Io, T, S> {
  using Base = BackwardPass<C, Io, T, S>;
  using Products = StackProducts<C>;
  using Index = typename S::Index;
  using F = typename Base::F;
  using Carry = typename Base::Carry;
  using Fetched = typename Base::Fetched;
  using Inputs = typename Base::Inputs;
  using Saved = typename Base::Saved;
  using SequenceRows = typename Base::SequenceRows;
  using Base::at, Base::shape;

  static constexpr int kPublished = Products::kCount;
  static constexpr int kSources = 2, kNeighbour = 1;
  using Published = Vec<kPublished, F>;

  PRNN_HD Index depth(int) const { return kSources * kPublished * shape.hidden; }
  PRNN_HD T weight(Index g, int, Index unit, int, Index k) const {
    const Index value = k / shape.hidden;
    const int source = value < kPublished ? 0 : 1;
    const int gate = Products::gate_of(source, static_cast<int>(value - source * kPublished));
    const auto columns = weight_columns(g, source);
    if (columns.first == nullptr || gate < 0) return T{};
    return columns.first[unit * columns.stride + gate * shape.hidden + k % shape.hidden];
  }
  // Of w_hh, and of the w_ih of the layer above; null where there is none.
  PRNN_HD WeightColumns<T> weight_columns(Index g, int source) const {
    const Index column = C::kGates * shape.hidden;
    const Index first = (kSources * (g + source) + source) * shape.hidden;
    return {g + source < shape.groups ? at.w_hh + first * column : nullptr, column};
  }
  PRNN_HD const float* input(Index g, int, Index s, Index b) const {
    return Base::slot(at.multiplied, g, s, b, kPublished);
  }
  PRNN_HD static Index published_at(const S& shape, Index g, Index s, Index b) {
    return shape.sequence_at(b, shape.time_at(g, Base::forward_step(shape, s), b), g, kPublished);
  }
  PRNN_HD Fetched fetch(Index g, Index s, Index b, Index unit, Io io) const {
    return fetch(Base::rows(g, s, b), g, s, b, unit, io);
  }
  PRNN_HD Fetched fetch(const SequenceRows& rows, Index g, Index s, Index b, Index unit,
                        Io io) const {
    // dy has the last layer's rows alone; of others, any number is read, which advance() leaves
    // out: here, it would be waited for.
    const bool is_last = g + 1 == shape.groups;
    const Index row = outer_row(shape, Base::forward_step(shape, s), b);
    const T* const dy = is_last ? at.dy + Base::in_sequence(row - rows.here, 1) : at.y;
    return Base::fetch(dy, rows, g, s, b, unit, io);
  }
  PRNN_HD Published advance(Index g, Index s, Index b, Index unit, const Vec<1, F>& dh,
                            const Inputs& in, Carry& d, Saved& da_x, Io io) const {
    // In the first step, the neighbour's alone.
    if (!Base::multiplies(g, 0, s, b)) d[0] = d[0] + dh[0];
    Inputs own = in;
    if (g + 1 < shape.groups) own.dy[0] = F(0.0f);
    const Gates<C, F> da_h = Base::advance(g, s, b, unit, dh, own, d, da_x, io);
    Published out;
    for (int n = 0; n < C::kGates; ++n) out[n] = da_h[n];
    if constexpr (Products::kTakesApart) out[C::kGates] = da_x[C::kGates - 1];
    return out;
  }
  PRNN_HD void publish(const SequenceRows& rows, Index g, Index s, Index b, Index unit,
                       const Published& values, Io io) const {
    Gates<C, F> da_h;
    for (int n = 0; n < C::kGates; ++n) da_h[n] = values[n];
    if (s < shape.time)
      Base::store_values(at.da_h + Base::in_sequence(rows.here, C::kGates) + unit, da_h, io);
    if (at.multiplied == nullptr) return;
    Published stored;
    for (int n = 0; n < kPublished; ++n) stored[n] = io.stored(values[n]);
    Base::store_values(Base::slot(at.multiplied, g, s + 1, b, kPublished) + unit, stored, io);
  }
  PRNN_HD void save(const SequenceRows& rows, Index, Index s, Index, Index unit, const Saved& da_x,
                    Io io) const {
    if constexpr (Products::kTakesApart)
      if (s < shape.time)
        Base::store_values(at.da_x + Base::in_sequence(rows.here, C::kGates) + unit, da_x, io);
  }
  PRNN_HD Published exchanged(Index, Index, Index, Index, const Published& values, Io) const {
    return values;
  }
};

}  // namespace prnn
