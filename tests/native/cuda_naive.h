// A pass run naively, one unit after the other. Resets and masks as an equation would have them,
// not by the rules of core/controls.h: a mask multiplies weights, a reset begins a new sequence.
#pragma once
#include <vector>

#include "cuda/number.h"
#include "cuda/task.h"

namespace prnn {

template <Number kNumber, class Pass>
class NaiveRun {
 public:
  explicit NaiveRun(const Pass& pass) : pass_(pass), controls_(pass.at.controls) {
    multiplied_.resize(static_cast<std::size_t>(2 * shape().padded_floats(Pass::kPublished)));
    pass_.at.multiplied = multiplied_.data();
    pass_.at.controls.resets = nullptr;
    pass_.at.controls.mask = nullptr;
  }

  void run() {
    read_weights();
    carries_.resize(carry_at(shape().groups, 0, 0));
    for_all_rows([&](std::int64_t g, std::int64_t b) {
      for (std::int64_t unit = 0; unit < shape().hidden; ++unit) {
        carries_[carry_at(g, b, unit)] = pass_.carried(g, 0, b, unit, io_);
        pass_.begin(g, b, unit, io_);
        if constexpr (!kIsForward)
          for (float* sum : pass_.at.dreset_to)
            if (sum != nullptr) sum[shape().state_at(b, g) + unit] = 0.0f;
      }
    });
    for (std::int64_t s = 0; s < pass_.steps(); ++s)
      for_all_rows([&](std::int64_t g, std::int64_t b) {
        multiply(g, s, b);
        for (std::int64_t unit = 0; unit < shape().hidden; ++unit) step(g, s, b, unit);
      });
  }

 private:
  static constexpr bool kIsForward = Pass::kStartsPublished;

  Shape shape() const { return pass_.shape; }
  // Groups that multiply their neighbours' values come after these.
  template <class F>
  void for_all_rows(F&& f) const {
    for (std::int64_t n = 0; n < shape().groups; ++n)
      for (std::int64_t b = 0; b < shape().batch; ++b)
        f(kIsForward || Pass::kSources == 1 ? n : shape().groups - 1 - n, b);
  }
  // What a matrix product takes of a stored number.
  static float operand(float v) {
    return kNumber == Number::kTf32 && v == v ? float_of(ptx::cvt_rna_tf32(v)) : v;
  }
  float mask(std::int64_t g, std::int64_t b, std::int64_t unit) const {
    return controls_.mask == nullptr ? 1.0f
                                     : to_float(controls_.mask[shape().state_at(b, g) + unit]);
  }
  // Whether the state is replaced before step s, forward, of a row.
  bool resets(std::int64_t g, std::int64_t s, std::int64_t b) const {
    return controls_.resets != nullptr && s >= 0 && s < shape().length(b, g) &&
           controls_.resets[shape().row_at(b, shape().time_at(g, s, b), g)] != 0;
  }
  float reset_to(int n, std::int64_t g, std::int64_t b, std::int64_t unit) const {
    return to_float(controls_.reset_to[n][shape().state_at(b, g) + unit]);
  }

  void read_weights() {
    for (std::int64_t g = 0; g < shape().groups; ++g)
      for (std::int64_t unit = 0; unit < shape().hidden; ++unit)
        for (int p = 0; p < Pass::kProducts; ++p)
          for (std::int64_t k = 0; k < pass_.depth(0); ++k)
            weights_.push_back(operand(to_float(pass_.weight(g, 0, unit, p, k))));
  }
  std::size_t carry_at(std::int64_t g, std::int64_t b, std::int64_t unit) const {
    return static_cast<std::size_t>((g * shape().batch + b) * shape().hidden + unit);
  }
  // What step s multiplies of a neighbour's values, behind the group's own.
  void add_neighbour(std::int64_t g, std::int64_t s, std::int64_t b, std::vector<double>& row) {
    if constexpr (Pass::kSources == 2) {
      const std::int64_t neighbour = g + Pass::kNeighbour;
      if (neighbour < 0 || neighbour == shape().groups || s == shape().time) return;
      const float* const values =
          pass_.slot(pass_.at.multiplied, neighbour, s + 1, b, Pass::kPublished);
      const std::size_t own = row.size() / 2;
      for (std::size_t k = 0; k < own; ++k) row[own + k] = double{operand(values[k])};
    }
  }
  // products_ of a row.
  void multiply(std::int64_t g, std::int64_t s, std::int64_t b) {
    const std::int64_t depth = pass_.depth(0);
    std::vector<double> row(static_cast<std::size_t>(depth));
    const bool starts_anew = kIsForward && resets(g, s, b);
    if (pass_.multiplies(g, 0, s, b))
      for (std::int64_t k = 0; k < depth / Pass::kSources; ++k) {
        const float v = starts_anew ? reset_to(0, g, b, k) : pass_.input(g, 0, s, b)[k];
        row[static_cast<std::size_t>(k)] = double{operand(v)} * (kIsForward ? mask(g, b, k) : 1.0f);
      }
    add_neighbour(g, s, b, row);
    products_.clear();
    for (std::int64_t unit = 0; unit < shape().hidden; ++unit)
      for (int p = 0; p < Pass::kProducts; ++p) {
        const float* w = &weights_[static_cast<std::size_t>(
            ((g * shape().hidden + unit) * Pass::kProducts + p) * depth)];
        double sum = to_float(pass_.bias(g, 0, unit, p));
        for (std::size_t k = 0; k < row.size(); ++k) sum += row[k] * double{w[k]};
        products_.push_back(static_cast<float>(sum * (kIsForward ? 1.0f : mask(g, b, unit))));
      }
  }
  void step(std::int64_t g, std::int64_t s, std::int64_t b, std::int64_t unit) {
    auto& carry = carries_[carry_at(g, b, unit)];
    auto inputs = pass_.inputs(pass_.fetch(g, s, b, unit, io_), io_);
    Vec<Pass::kProducts> products;
    for (int p = 0; p < Pass::kProducts; ++p)
      products[p] = products_[static_cast<std::size_t>(unit * Pass::kProducts + p)];
    if constexpr (kIsForward) {
      if (resets(g, s, b))
        for (int n = 0; n < carry.size(); ++n) carry[n] = reset_to(n, g, b, unit);
    } else {
      const std::int64_t forward = shape().time - 1 - s;  // the step whose gradient this is
      if (resets(g, forward, b))
        for (int n = 0; n < carry.size(); ++n) inputs.prev[n] = reset_to(n, g, b, unit);
      if (forward + 1 < shape().time && resets(g, forward + 1, b)) {
        carry[0] += products[0];
        products[0] = 0.0f;
        for (int n = 0; n < carry.size(); ++n) {
          pass_.at.dreset_to[n][shape().state_at(b, g) + unit] += carry[n];
          carry[n] = 0.0f;
        }
      }
    }
    typename Pass::Saved saved;
    const auto published = pass_.advance(g, s, b, unit, products, inputs, carry, saved, io_);
    const auto rows = pass_.rows(g, s, b);
    pass_.save(rows, g, s, b, unit, saved, io_);
    pass_.publish(rows, g, s, b, unit, published, io_);
    if (s + 1 == pass_.steps()) pass_.keep(g, s, b, unit, carry, io_);
  }

  Pass pass_;
  decltype(Pass::at.controls) controls_;
  UnitIo<kNumber> io_;
  std::vector<float> weights_;  // [groups, hidden, products, depth]
  std::vector<float> multiplied_, products_;
  std::vector<typename Pass::Carry> carries_;  // [groups, batch, hidden], as exact as the engine's
};

}  // namespace prnn
