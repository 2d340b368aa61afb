// Where the elements of a matrix lie among the lanes of a warp: the emulator's mma.sync against a
// second source, the layouts that CUTLASS publishes (cute/atom/mma_traits_sm80.hpp), as numbers.
#pragma once
#include <array>
#include <vector>

#include "emulator/numbers.h"
#include "kernels.h"

namespace prnn::checks {

// CuTe's notation: a coordinate is split into digits, the first one the fastest, and each digit has
// a stride. The first mode is the lane, the second the value within it.
struct Mode {
  std::vector<int> shape, stride;
  int offset(int coordinate) const {
    int out = 0;
    for (std::size_t n = 0; n < shape.size(); ++n) {
      out += coordinate % shape[n] * stride[n];
      coordinate /= shape[n];
    }
    return out;
  }
};
struct FragmentLayout {
  Mode lane, value;
  int offset(int of_lane, int of_value) const {
    return lane.offset(of_lane) + value.offset(of_value);
  }
};
// Offsets: a by m + 16 k, b by n + 8 k, d by m + 16 n.
struct MmaLayouts {
  int depth;
  FragmentLayout a, b, d;
};
inline const FragmentLayout kProductLayout{{{4, 8}, {32, 1}}, {{2, 2}, {16, 8}}};
inline const MmaLayouts kM16N8K16{// SM80_16x8x16_F32F16F16F32_TN, and of bfloat16
                                  16,
                                  {{{4, 8}, {32, 1}}, {{2, 2, 2}, {16, 8, 128}}},
                                  {{{4, 8}, {16, 1}}, {{2, 2}, {8, 64}}},
                                  kProductLayout};
inline const MmaLayouts kM16N8K8{// SM80_16x8x8_F32TF32TF32F32_TN
                                 8,
                                 {{{4, 8}, {16, 1}}, {{2, 2}, {8, 64}}},
                                 {{{4, 8}, {8, 1}}, {{2}, {32}}},
                                 kProductLayout};

inline void check_layout(emulator::MatrixKind kind, const MmaLayouts& layouts) {
  const bool is_tf32 = kind == emulator::MatrixKind::kTf32;
  const auto bits = [&](int v) -> std::uint32_t {
    const auto f = static_cast<float>(v);
    if (is_tf32) return emulator::tf32_of(f, false);
    return kind == emulator::MatrixKind::kBf16 ? emulator::bf16_of(f, false)
                                               : emulator::f16_of(f, false);
  };
  // Small whole numbers, so that sums are exact; no two products are alike.
  const auto a = [](int offset) { return offset * 7 % 23 - 11; };
  const auto b = [](int offset) { return offset * 5 % 19 - 9; };
  const int per_word = is_tf32 ? 1 : 2;
  emulator::Fragments lanes[32] = {};
  for (int lane = 0; lane < 32; ++lane) {
    for (int v = 0; v < 4 * per_word; ++v)
      lanes[lane].a[v / per_word] |= bits(a(layouts.a.offset(lane, v))) << (v % per_word * 16);
    for (int v = 0; v < 2 * per_word; ++v)
      lanes[lane].b[v / per_word] |= bits(b(layouts.b.offset(lane, v))) << (v % per_word * 16);
  }
  emulator::Products products[32];
  emulator::multiply(kind, lanes, products);
  std::array<bool, 16 * 8> seen{};
  for (int lane = 0; lane < 32; ++lane)
    for (int v = 0; v < 4; ++v) {
      const int offset = layouts.d.offset(lane, v), m = offset % 16, n = offset / 16;
      int sum = 0;
      for (int k = 0; k < layouts.depth; ++k) sum += a(m + 16 * k) * b(n + 8 * k);
      expect(products[lane].d[v] == static_cast<float>(sum), "mma.sync, CuTe's layouts");
      seen[static_cast<std::size_t>(offset)] = true;
    }
  for (const bool element : seen) expect(element, "mma.sync, an element of no lane");
}

inline void check_layouts() {
  check_layout(emulator::MatrixKind::kBf16, kM16N8K16);
  check_layout(emulator::MatrixKind::kF16, kM16N8K16);
  check_layout(emulator::MatrixKind::kTf32, kM16N8K8);
}

}  // namespace prnn::checks
