// Operations of a thread, a warp and a block against their definitions.
#pragma once
#include <cmath>
#include <cstring>
#include <random>

#include "kernels.h"

namespace prnn::checks {

// ---- conversions ----

inline void check_half(float v, const char* where) {
  const std::uint32_t ours = ptx::cvt_rn_f16x2(v, 0) & 0xffff;
  const auto half = static_cast<_Float16>(v);
  const std::uint32_t right = v != v ? 0x7fff : std::bit_cast<std::uint16_t>(half);
  expect(ours == right, std::string("cvt.rn.f16x2 of ") + std::to_string(v) + " " + where);
}

inline void check_conversions() {
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    const float ours = ptx::cvt_f32_f16(static_cast<std::uint16_t>(h));
    const float right = std::bit_cast<_Float16>(static_cast<std::uint16_t>(h));
    expect(right != right ? bits(ours) == 0x7fffffff : bits(ours) == bits(right), "cvt.f32.f16");
    if (right != right) continue;
    // The numbers themselves, and those halfway to the next and beside that.
    check_half(right, "as it is");
    const std::uint32_t half_step = bits(right) + 0x1000;
    for (int i = -1; i <= 1; ++i) check_half(value(half_step + i), "near a half");
  }
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const float v = value(random());
    check_half(v, "at random");
    const std::uint32_t pair = ptx::cvt_rn_bf16x2(v, 1.0f);
    expect(pair >> 16 == 0x3f80, "cvt.rn.bf16x2: the high half");
    const double below = value(bits(v) & 0xffff0000),
                 above = value((bits(v) >> 16 << 16) + 0x10000);
    const double ours = value(pair << 16);
    if (v != v) {
      expect((pair & 0xffff) == 0x7fff, "cvt.rn.bf16x2: NaN");
      expect(ptx::cvt_rna_tf32(v) == (bits(v) & ~0x1fffu), "cvt.rna.tf32: NaN");
      continue;
    }
    if (std::isinf(v) || std::isinf(above)) continue;
    const double error = std::fabs(ours - v);
    expect((ours == below || ours == above) && error <= std::fabs(below - v) &&
               error <= std::fabs(above - v),
           "cvt.rn.bf16x2: to the nearest");
    const double tf32 = value(ptx::cvt_rna_tf32(v));
    const double unit = std::fabs(value((bits(v) & ~0x1fffu) + 0x2000) - value(bits(v) & ~0x1fffu));
    expect((ptx::cvt_rna_tf32(v) & 0x1fff) == 0 && std::fabs(tf32 - v) <= unit / 2,
           "cvt.rna.tf32: to the nearest");
  }
  expect((ptx::cvt_rn_bf16x2(value(0x3f808000), 0) & 0xffff) == 0x3f80, "bf16: half to even, down");
  expect((ptx::cvt_rn_bf16x2(value(0x3f818000), 0) & 0xffff) == 0x3f82, "bf16: half to even, up");
  expect(ptx::cvt_rna_tf32(value(0x3f801000)) == 0x3f802000, "tf32: half away from zero");
}

// ---- matrix products ----

// The fragments as the PTX ISA defines them: element i of the lane's a is A(row, column).
struct Element {
  int row, column;
};
inline Element a_of_k16(int lane, int i) {
  const int group = lane >> 2, in_group = lane % 4;
  return {(i < 2 || (4 <= i && i < 6)) ? group : group + 8,
          in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)};
}
inline Element b_of_k16(int lane, int i) {
  return {(lane % 4) * 2 + (i & 1) + (i < 2 ? 0 : 8), lane >> 2};
}
inline Element a_of_k8(int lane, int i) {
  return {(lane >> 2) + (i == 1 || i == 3 ? 8 : 0), lane % 4 + (i >= 2 ? 4 : 0)};
}
Element b_of_k8(int lane, int i) { return {lane % 4 + 4 * i, lane >> 2}; }
Element d_of(int lane, int i) { return {(lane >> 2) + (i < 2 ? 0 : 8), (lane % 4) * 2 + (i & 1)}; }

struct Matrices {
  float a[16][16], b[16][8], d[16][8];
};

enum class Kind { kBf16, kF16, kTf32 };

inline std::uint32_t pack(Kind kind, float low, float high) {
  return kind == Kind::kBf16 ? ptx::cvt_rn_bf16x2(low, high) : ptx::cvt_rn_f16x2(low, high);
}

inline void multiply_lane(Kind kind, Matrices& m) {
  const int lane = ptx::tid();
  std::uint32_t a[4], b[2];
  if (kind == Kind::kTf32) {
    // Garbage in the bits that the tensor core does not read.
    for (int i = 0; i < 4; ++i)
      a[i] = bits(m.a[a_of_k8(lane, i).row][a_of_k8(lane, i).column]) | 0x1abc;
    for (int i = 0; i < 2; ++i)
      b[i] = bits(m.b[b_of_k8(lane, i).row][b_of_k8(lane, i).column]) | 0x0fff;
  } else {
    const auto a_at = [&](int i) { return m.a[a_of_k16(lane, i).row][a_of_k16(lane, i).column]; };
    const auto b_at = [&](int i) { return m.b[b_of_k16(lane, i).row][b_of_k16(lane, i).column]; };
    for (int i = 0; i < 4; ++i) a[i] = pack(kind, a_at(2 * i), a_at(2 * i + 1));
    for (int i = 0; i < 2; ++i) b[i] = pack(kind, b_at(2 * i), b_at(2 * i + 1));
  }
  float d[4];
  for (int i = 0; i < 4; ++i) d[i] = m.d[d_of(lane, i).row][d_of(lane, i).column];
  const Word4 fragment{a[0], a[1], a[2], a[3]};
  if (kind == Kind::kBf16) ptx::mma_m16n8k16_bf16(d, fragment, b[0], b[1]);
  if (kind == Kind::kF16) ptx::mma_m16n8k16_f16(d, fragment, b[0], b[1]);
  if (kind == Kind::kTf32) ptx::mma_m16n8k8_tf32(d, fragment, b[0], b[1]);
  for (int i = 0; i < 4; ++i) m.d[d_of(lane, i).row][d_of(lane, i).column] = d[i];
}

// 1 and `count` products of this size, as matrix units add them: towards 0.
inline void check_cut_sum(float size, int count, float right) {
  for (const float sign : {1.0f, -1.0f}) {
    Matrices m{};
    m.d[0][0] = sign;
    for (int k = 0; k < count; ++k) m.a[0][k] = sign * 0x1p-12f, m.b[k][0] = size * 0x1p12f;
    emulator::launch({}, [&] { multiply_lane(Kind::kTf32, m); });
    expect(m.d[0][0] == sign * right, "mma: a sum that is cut off");
  }
}

inline void check_matrix_products() {
  check_cut_sum(0x1p-25f, 3, 1);             // to the nearest, 1 + 2^-23
  check_cut_sum(0x1p-25f, 4, 1 + 0x1p-23f);  // two bits more than a float's are kept
  check_cut_sum(0x1p-26f, 8, 1);             // three are not
  std::mt19937 random(2);
  for (const Kind kind : {Kind::kBf16, Kind::kF16, Kind::kTf32}) {
    const int depth = kind == Kind::kTf32 ? 8 : 16;
    Matrices m;
    // Integers of few bits: exact in every format, and in any order of summation.
    const auto draw = [&](auto& matrix) {
      for (auto& row : matrix) {
        for (float& v : row) v = static_cast<float>(static_cast<int>(random() % 15) - 7);
      }
    };
    draw(m.a);
    draw(m.b);
    draw(m.d);
    const Matrices before = m;
    emulator::launch({}, [&] { multiply_lane(kind, m); });
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        float right = before.d[i][j];
        for (int k = 0; k < depth; ++k) right += before.a[i][k] * before.b[k][j];
        expect(m.d[i][j] == right, "mma: a product, kind " + std::to_string(int(kind)));
      }
    }
  }
  std::uint32_t nan = 0;
  emulator::launch({}, [&] {
    float d[4] = {value(kUnwritten), 0, 0, 0};
    ptx::mma_m16n8k16_bf16(d, {}, 0, 0);
    if (ptx::tid() == 0) nan = bits(d[0]);
  });
  expect(nan == 0x7fffffff, "mma: NaN as the device writes it");
}

// ---- within a block ----

inline void check_shuffles_and_votes() {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    emulator::launch(
        {.grid = 2, .block = 64},
        [&] {
          const int lane = ptx::tid() % 32;
          for (int mask = 0; mask < 32; ++mask) {
            const auto got =
                ptx::shfl_bfly(static_cast<std::uint32_t>(100 * mask + ptx::tid()), mask);
            expect(got == static_cast<std::uint32_t>(100 * mask + (ptx::tid() ^ mask)),
                   "shfl.bfly");
            expect(
                ptx::vote_all(true) && !ptx::vote_all(lane != mask) && !ptx::vote_all(lane == mask),
                "vote.all");
          }
        },
        seeded(seed));
  }
}

inline void check_barriers() {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Launch shape{.grid = 2, .block = 64, .shared_bytes = 512};
    emulator::launch(shape, [] { exchange(64, [] { ptx::bar_sync(); }, 5); }, seeded(seed));
    emulator::launch(shape, [] { exchange(32, [] { ptx::bar_warp_sync(); }, 5); }, seeded(seed));
  }
  emulator::launch({.shared_bytes = 4}, [] {
    expect(*reinterpret_cast<std::uint32_t*>(ptx::shared()) == kUnwritten,
           "shared memory is poisoned");
    expect(reinterpret_cast<std::uintptr_t>(ptx::shared()) % 128 == 0, "shared memory is aligned");
  });
}

}  // namespace prnn::checks
