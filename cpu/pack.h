// Packing: the weights of a panel's units in the order product() reads them. Units past the end
// of the layer get zeros.
#pragma once
#include "core/passes.h"
#include "cpu/simd.h"

namespace prnn::PRNN_ISA {

template <class Pass>
void pack_panel(const Pass& pass, std::int64_t group, int phase, std::int64_t first_unit,
                int vectors, float* panel) {
  const std::int64_t lanes = (std::int64_t)vectors * kWidth, depth = pass.depth(phase);
  const std::int64_t left = pass.shape.hidden - first_unit, units = left < lanes ? left : lanes;
  const int products = pass.products(phase);
  float* line = panel;
  for (int product = 0; product < products; ++product, line += lanes)
    for (std::int64_t u = 0; u < lanes; ++u)
      line[u] = u < units ? pass.bias(group, phase, first_unit + u, product) : 0.0f;
  // Sixteen lines at a time: where the matrix is read along k (backward), a cache line of it is
  // used whole before the next.
  for (std::int64_t k0 = 0; k0 < depth; k0 += 16) {
    const std::int64_t k1 = depth < k0 + 16 ? depth : k0 + 16;
    for (int product = 0; product < products; ++product)
      for (std::int64_t k = k0; k < k1; ++k) {
        float* to = line + ((k - k0) * products + product) * lanes;
        for (std::int64_t u = 0; u < units; ++u)
          to[u] = pass.weight(group, phase, first_unit + u, product, k);
        for (std::int64_t u = units; u < lanes; ++u) to[u] = 0.0f;
      }
    line += (k1 - k0) * products * lanes;
  }
}

}  // namespace prnn::PRNN_ISA
