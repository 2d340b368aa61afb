// The units of a panel, and how the weights of their products lie in it.
#pragma once
#include "cpu/pack.h"
#include "cpu/problem.h"

namespace prnn::PRNN_ISA {

// The units of a panel, and how their products lie in its slices: product after product, in as many
// vectors each as there are of units.
struct Units {
  std::int64_t first;
  int vectors;             // of units, or of a product
  int product_vectors;     // of all products
  int micropanel_vectors;  // of these, in a micropanel

  PRNN_HD int lanes() const { return product_vectors * kWidth; }
  PRNN_HD int product_lanes() const { return vectors * kWidth; }
  // Of vector v, of a phase of so many units.
  PRNN_HD std::int64_t first_of(int v) const { return first + v * kWidth; }
  PRNN_HD int count_of(std::int64_t units, int v) const {
    const std::int64_t left = units - first_of(v);
    return left < kWidth ? (int)left : kWidth;
  }
  // The micropanel of a vector of products, of a panel of so many slices.
  PRNN_HD Micropanel micropanel(int vector, std::int64_t slices) const {
    const int first_vector = vector / micropanel_vectors * micropanel_vectors;
    return {first_vector, (int)min(micropanel_vectors, product_vectors - first_vector),
            first_vector * kWidth * slices};
  }
};

inline Units units_of(const Blocking& blocking, int phase, int products, std::int64_t panel) {
  const std::int64_t all = ceil_div(blocking.units[phase], kWidth), panels = blocking.panels[phase];
  const std::int64_t first = all * panel / panels;
  const int vectors = (int)(all * (panel + 1) / panels - first);
  return {first * kWidth, vectors, products * vectors, blocking.micropanel_vectors[phase]};
}

struct Panel {
  float* weights;
  Units units;
};

// Where a panel begins among the packed weights.
PRNN_HD std::int64_t panel_at(const Blocking& blocking, std::int64_t group, int phase,
                              const Units& units) {
  return group * blocking.group_words + (phase == 0 ? 0 : blocking.phase_words[0]) +
         units.first / kWidth * blocking.vector_words[phase];
}

}  // namespace prnn::PRNN_ISA
