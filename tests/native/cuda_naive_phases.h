// Passes that a GPU takes in a way of its own, of half steps or of units that add up, run naively:
// as the passes of two phases have it, which the CPU engine runs, one row and one unit after the
// other.
#pragma once
#include <vector>

#include "core/half_step_passes.h"
#include "core/normed_unit_passes.h"
#include "native/cuda_naive.h"

namespace prnn {

// As the CPU engine's, of one unit.
template <Number kNumber>
struct NaiveIo : UnitIo<kNumber> {
  static constexpr int kUnits = 1;
  int lanes;
  explicit NaiveIo(int n = kUnits) : lanes(n) {}
};

template <Number kNumber, class Pass, class Io = UnitIo<kNumber>>
class NaivePhases {
 public:
  explicit NaivePhases(const Pass& pass) : pass_(pass) {
    const auto floats = [&](std::vector<float>& to, int n, int buffers) {
      to.resize(static_cast<std::size_t>(buffers * pass_.shape.padded_floats(n)));
      return to.data();
    };
    pass_.at.multiplied = floats(multiplied_, kGates, 2);
    pass_.at.phase_scratch = floats(scratch_, norm_scratch(kGates), 1);
    pass_.at.carried = floats(carried_, kMaxStates, 1);
  }

  void run() {
    const auto& shape = pass_.shape;
    for (std::int64_t g = 0; g < shape.groups; ++g)
      for (std::int64_t b = 0; b < shape.batch; ++b) {
        for (std::int64_t unit = 0; unit < shape.hidden; ++unit) pass_.begin(g, b, unit, io_);
        for (std::int64_t s = 0; s < pass_.steps(); ++s) {
          phase<0>(g, s, b);
          phase<1>(g, s, b);
        }
      }
  }

 private:
  static constexpr int kGates = std::remove_cvref_t<decltype(Pass::cell)>::kGates;

  static float operand(float v) {
    return kNumber == Number::kTf32 && v == v ? float_of(ptx::cvt_rna_tf32(v)) : v;
  }
  template <int kPhase>
  void phase(std::int64_t g, std::int64_t s, std::int64_t b) {
    constexpr int kProducts = Pass::products(kPhase);
    std::vector<Vec<kProducts>> products;
    for (std::int64_t unit = 0; unit < pass_.units(kPhase); ++unit) {
      auto& of_unit = products.emplace_back();
      for (int p = 0; p < kProducts; ++p) {
        double sum = to_float(pass_.bias(g, kPhase, unit, p));
        if (pass_.multiplies(g, kPhase, s, b))
          for (std::int64_t k = 0; k < pass_.depth(kPhase); ++k)
            sum += double{operand(pass_.input(g, kPhase, s, b)[k])} *
                   double{operand(to_float(pass_.weight(g, kPhase, unit, p, k)))};
        of_unit[p] = static_cast<float>(sum);
      }
    }
    for (std::int64_t unit = 0; unit < pass_.units(kPhase); ++unit)
      pass_.template step<kPhase>(g, s, b, unit, products[static_cast<std::size_t>(unit)], io_);
  }

  Pass pass_;
  Io io_;
  std::vector<float> multiplied_, scratch_, carried_;
};

template <Number kNumber, TwoPhaseCell C, class Io, class T>
class NaiveRun<kNumber, HalfStepForwardPass<C, Io, T>>
    : public NaivePhases<kNumber, ForwardPass<C, Io, T>> {
 public:
  explicit NaiveRun(const HalfStepForwardPass<C, Io, T>& pass)
      : NaivePhases<kNumber, ForwardPass<C, Io, T>>({{pass.cell, pass.of_call()}, pass.at}) {}
};
template <Number kNumber, TwoPhaseCell C, class Io, class T>
class NaiveRun<kNumber, HalfStepBackwardPass<C, Io, T>>
    : public NaivePhases<kNumber, BackwardPass<C, Io, T>> {
 public:
  explicit NaiveRun(const HalfStepBackwardPass<C, Io, T>& pass)
      : NaivePhases<kNumber, BackwardPass<C, Io, T>>({{pass.cell, pass.of_call()}, pass.at}) {}
};

template <Number kNumber, NormedCell C, class Io, class T>
class NaiveRun<kNumber, NormedUnitForwardPass<C, Io, T>>
    : public NaivePhases<kNumber, ForwardPass<C, NaiveIo<kNumber>, T>, NaiveIo<kNumber>> {
 public:
  explicit NaiveRun(const NormedUnitForwardPass<C, Io, T>& pass)
      : NaivePhases<kNumber, ForwardPass<C, NaiveIo<kNumber>, T>, NaiveIo<kNumber>>(
            {{{pass.cell, pass.shape}}, pass.at}) {}
};
template <Number kNumber, NormedCell C, class Io, class T>
class NaiveRun<kNumber, NormedUnitBackwardPass<C, Io, T>>
    : public NaivePhases<kNumber, BackwardPass<C, NaiveIo<kNumber>, T>, NaiveIo<kNumber>> {
 public:
  explicit NaiveRun(const NormedUnitBackwardPass<C, Io, T>& pass)
      : NaivePhases<kNumber, BackwardPass<C, NaiveIo<kNumber>, T>, NaiveIo<kNumber>>(
            {{{pass.cell, pass.shape}}, pass.at}) {}
};

}  // namespace prnn
