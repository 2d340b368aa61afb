// The units of a panel, and how the weights of their products lie in it.
#pragma once
#include "cpu/remainder.h"

namespace prnn::PRNN_ISA {

// The units of a panel, and how their products lie in its lines, or in its first if they are taken
// along k.
struct Units {
  std::int64_t first;
  int vectors;          // of units
  int product_stride;   // from a unit's product to its next
  int product_vectors;  // of all products
  int at_once;          // of these, in a strip
  bool along_k;

  PRNN_HD int lanes() const { return product_vectors * kWidth; }
  // Of vector v, of a phase of so many units.
  PRNN_HD std::int64_t first_of(int v) const { return first + v * kWidth; }
  PRNN_HD int count_of(std::int64_t units, int v) const {
    const std::int64_t left = units - first_of(v);
    return left < kWidth ? (int)left : kWidth;
  }
  // Whether the products share vectors, and a vector of units must not write beyond its own.
  PRNN_HD bool share_vectors() const { return product_stride < kWidth; }
  // The strip of a vector of products, of a panel of so many lines.
  PRNN_HD Strip strip(int vector, std::int64_t lines) const {
    const int first_vector = vector / at_once * at_once;
    return {first_vector, (int)min(at_once, product_vectors - first_vector),
            first_vector * kWidth * lines};
  }
};

inline Units units_of(const Blocking& blocking, int phase, int products, std::int64_t panel) {
  const Remainder remainder = blocking.remainder[phase];
  const int at_once = blocking.at_once[phase];
  const std::int64_t whole = ceil_div(blocking.units[phase] - remainder.units, kWidth);
  if (remainder.units > 0 && panel == blocking.panels[phase] - 1)
    return {whole * kWidth,  1,
            remainder.units, (int)ceil_div(products * remainder.units, kWidth),
            at_once,         remainder.along_k};
  const std::int64_t panels = blocking.panels[phase] - (remainder.units > 0 ? 1 : 0);
  const std::int64_t first = whole * panel / panels;
  const int vectors = (int)(whole * (panel + 1) / panels - first);
  return {first * kWidth, vectors, vectors * kWidth, products * vectors, at_once, false};
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
