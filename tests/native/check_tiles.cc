// Products by tiles that are emulated (cpu/emulated_tiles.h), in buffers of exactly the right size,
// for the sanitizers: against a loop that takes each sum as Intel's manual has it, to the last bit.
// Built and run by tests/test_tiles.py.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "cpu/problem.h"

namespace prnn::PRNN_ISA {
extern const Products kTileProducts;
extern const MatrixFunctions kTileMatrices;
}  // namespace prnn::PRNN_ISA

namespace {

using prnn::PRNN_ISA::kTileMatrices;
using prnn::PRNN_ISA::kTileProducts;
using Floats = std::vector<float>;

constexpr int kLane = 16, kDepth = 32;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

[[noreturn]] void fail(const char* what, int rows, int vectors, int depth) {
  std::printf("FAILED: %s (%d rows, %d vectors, depth %d)\n", what, rows, vectors, depth);
  std::exit(1);
}

std::uint32_t bits(float v) {
  std::uint32_t out;
  std::memcpy(&out, &v, sizeof out);
  return out;
}
float from_bits(std::uint32_t v) {
  float out;
  std::memcpy(&out, &v, sizeof out);
  return out;
}
// A number of bfloat16.
float narrow(float v) { return from_bits(bits(v) & 0xffff0000); }
float value(int n, float frequency) {
  return narrow(std::sin(frequency * static_cast<float>(n + 1)));
}
float flushed(float v) { return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.0f, v) : v; }
// Vectors are read where they begin.
struct Aligned {
  explicit Aligned(std::size_t floats)
      : at(static_cast<float*>(std::aligned_alloc(64, (4 * floats + 63) / 64 * 64))) {}
  ~Aligned() { std::free(at); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  float* at;
};

// The sum of one row and lane: b[k] are weights.
float sum_of(float bias, const Floats& a, const Floats& b) {
  float sum = bias;
  for (std::size_t first = 0; first < a.size(); first += kDepth) {
    float of[2] = {};
    for (std::size_t k = first; k < std::min(a.size(), first + kDepth); ++k)
      of[k % 2] = flushed(std::fma(flushed(a[k]), flushed(b[k]), of[k % 2]));
    sum = flushed(flushed(sum) + flushed(of[0] + of[1]));
  }
  return sum;
}
bool is_same(float a, float b) { return std::isnan(a) ? std::isnan(b) : bits(a) == bits(b); }

struct Weights {
  int vectors, depth;
  Floats bias;
  std::vector<Floats> lanes;
  Aligned micropanel;

  Weights(int vectors, int depth) : vectors(vectors), depth(depth), micropanel(floats()) {
    for (int n = 0; n < vectors * kLane; ++n) {
      bias.push_back(0.3f * std::sin(0.9f * static_cast<float>(n)));
      lanes.emplace_back();
      for (int k = 0; k < depth; ++k) lanes.back().push_back(value(n * depth + k, 0.7f));
    }
    bias[1] = 0;
    for (float& weight : lanes[1]) weight = from_bits(0x00400000);  // subnormal
  }
  std::size_t floats() const {
    return static_cast<std::size_t>(vectors) * kLane *
           static_cast<std::size_t>(1 + (depth + 1) / 2);
  }
  void pack() {
    const int all = vectors * kLane;
    std::vector<std::uint16_t> halves(2 * static_cast<std::size_t>(all * ((depth + 1) / 2)));
    for (int n = 0; n < all; ++n)
      for (int k = 0; k < depth; ++k)
        halves[2 * static_cast<std::size_t>(k / 2 * all + n) + static_cast<std::size_t>(k % 2)] =
            static_cast<std::uint16_t>(bits(lanes[n][k]) >> 16);
    std::memcpy(micropanel.at, bias.data(), 4 * bias.size());
    std::memcpy(micropanel.at + all, halves.data(), 2 * halves.size());
  }
};

// Everything that `multiply` puts is there, and nothing else.
Floats run(prnn::Product multiply, const Weights& weights, const float* const* rows, int count) {
  const int lanes = weights.vectors * kLane, stride = lanes + 3;
  Floats out(static_cast<std::size_t>((count - 1) * stride + lanes), NAN);
  multiply(weights.micropanel.at, rows, weights.depth, out.data(), stride);
  Floats made;
  for (int r = 0; r < count; ++r) {
    for (int n = 0; n < lanes; ++n) made.push_back(out[r * stride + n]);
    for (int n = lanes; n < stride && r + 1 < count; ++n)
      if (!std::isnan(out[r * stride + n])) fail("something else was written", count, 0, 0);
  }
  return made;
}

// Rows of bfloat16 with zeros at their ends: side by side, or not equally far from each other.
struct HalfRows {
  HalfRows(const std::vector<Floats>& rows, int depth, bool is_even) {
    const std::size_t words = (depth + kDepth - 1) / kDepth * kDepth / 2;
    std::vector<std::size_t> from;
    for (std::size_t r = 0, end = 0; r < rows.size(); ++r, end += words + (is_even ? 0 : r % 3))
      from.push_back(end);
    all.resize(from.back() + words);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      at.push_back(all.data() + from[r]);
      for (int k = 0; k < depth; ++k) {
        const auto half = static_cast<std::uint16_t>(bits(rows[r][k]) >> 16);
        std::memcpy(reinterpret_cast<char*>(all.data() + from[r]) + 2 * k, &half, sizeof half);
      }
    }
  }
  Floats all;
  std::vector<const float*> at;
};

void check_products(int count, int vectors, int depth) {
  Weights weights(vectors, depth);
  if (depth > 40) weights.lanes[5][40] = kInfinity;
  weights.pack();
  std::vector<Floats> rows;
  std::vector<const float*> at;
  for (int r = 0; r < count; ++r) {
    rows.emplace_back();
    for (int k = 0; k < depth; ++k) rows.back().push_back(value(r * depth + k, 0.3f));
    if (r == 2) rows[r][0] = kInfinity;
    if (r == 4) rows[r][depth - 1] = NAN;
  }
  for (const Floats& row : rows) at.push_back(row.data());
  kTileProducts.begin_turn(count);
  const Floats made = run(kTileProducts.of_floats[count][vectors], weights, at.data(), count);
  for (int r = 0; r < count; ++r)
    for (int n = 0; n < vectors * kLane; ++n)
      if (!is_same(made[r * vectors * kLane + n],
                   sum_of(weights.bias[n], rows[r], weights.lanes[n])))
        fail("a sum is another", count, vectors, depth);

  // Rows that are put in tiles before, if there is room; one row by itself.
  const std::int64_t tiles = (count + 15) / 16,
                     room = tiles * ((depth + kDepth - 1) / kDepth) * 256;
  const Aligned place(static_cast<std::size_t>(room));
  std::vector<const float*> prepared = at;
  if (kTileProducts.prepare(prepared.data(), count, depth, place.at, room - 1) != 0 ||
      prepared != at)
    fail("rows were put where there is no room", count, vectors, depth);
  if (kTileProducts.prepare(prepared.data(), count, depth, place.at, room) != room)
    fail("rows take more room", count, vectors, depth);
  const Floats again =
      run(kTileProducts.of_prepared[count][vectors], weights, prepared.data(), count);
  const Floats last = run(kTileProducts.of_floats[1][vectors], weights, &at[count - 1], 1);
  const auto of_halves = [&](bool is_even) {
    const HalfRows halves(rows, depth, is_even);
    return run(kTileProducts.of_bfloat16[count][vectors], weights, halves.at.data(), count);
  };
  const Floats even = of_halves(true), uneven = of_halves(false);
  kTileProducts.end_turn();
  for (std::size_t n = 0; n < made.size(); ++n)
    if (!is_same(again[n], made[n])) fail("prepared rows give others", count, vectors, depth);
  for (std::size_t n = 0; n < made.size(); ++n)
    if (!is_same(even[n], made[n]) || !is_same(uneven[n], made[n]))
      fail("rows of bfloat16 give others", count, vectors, depth);
  for (std::size_t n = 0; n < last.size(); ++n)
    if (!is_same(last[n], made[made.size() - last.size() + n]))
      fail("a row alone gives another sum", count, vectors, depth);
}

// c = a b, or += that, of matrices whose rows lie apart; and sums over the rows of b.
void check_matrices(int rows, int columns, int depth, bool is_b_along_depth, bool adds) {
  const auto half = [](float v) { return static_cast<std::uint16_t>(bits(v) >> 16); };
  const int stride_a = depth + 1, stride_b = is_b_along_depth ? depth + 2 : columns + 1;
  std::vector<std::uint16_t> a((rows - 1) * stride_a + depth), ones(depth, half(1));
  std::vector<std::uint16_t> b(is_b_along_depth ? (columns - 1) * stride_b + depth
                                                : (depth - 1) * stride_b + columns);
  std::vector<Floats> of_a(rows + 1, Floats(depth, 1.0f)), of_b(columns, Floats(depth));
  for (int m = 0; m < rows; ++m)
    for (int k = 0; k < depth; ++k)
      a[m * stride_a + k] = half(of_a[m][k] = value(m * depth + k, 0.3f));
  for (int n = 0; n < columns; ++n)
    for (int k = 0; k < depth; ++k)
      b[is_b_along_depth ? n * stride_b + k : k * stride_b + n] =
          half(of_b[n][k] = value(n * depth + k, 0.7f));
  Floats c(rows * columns, 0.5f), sums(columns, 0.5f);
  const Aligned panels(static_cast<std::size_t>((columns + 15) / 16 * 16 * (1 + (depth + 1) / 2)));
  prnn::MatrixBlock block{};
  block.rows = rows, block.columns = columns, block.depth = depth;
  block.a = a.data(), block.b = b.data(), block.c = c.data();
  block.stride_a = stride_a, block.stride_b = stride_b, block.stride_c = columns;
  block.is_b_along_depth = is_b_along_depth, block.adds = adds;
  block.panels = panels.at;
  if (!is_b_along_depth) block.ones = ones.data(), block.sums = sums.data();
  kTileMatrices.multiply(block);
  for (int m = 0; m <= rows; ++m)
    for (int n = 0; n < columns; ++n) {
      const float product = sum_of(0, of_a[m], of_b[n]), expected = adds ? 0.5f + product : product;
      if (m == rows && is_b_along_depth) continue;
      if (!is_same(m < rows ? c[m * columns + n] : sums[n], expected))
        fail("a product of matrices is another", rows, columns, depth);
    }
}

}  // namespace

int main() {
  for (const int depth : {1, 2, 31, 32, 33, 65, 96, 511, 512, 513, 1030})
    for (const int vectors : {1, 2, 3, 4, 5, 8})
      for (const int rows : {1, 2, 5, 15, 16, 17, 32}) check_products(rows, vectors, depth);
  for (int rows = 1; rows <= 32; ++rows)
    for (int vectors = 1; vectors <= 8; ++vectors) check_products(rows, vectors, 70);
  for (const bool is_b_along_depth : {false, true})
    for (const bool adds : {false, true})
      for (const int depth : {1, 31, 64, 97, 512})
        for (const int rows : {1, 15, 16, 17, 37})
          for (const int columns : {1, 16, 65, 130})
            check_matrices(rows, columns, depth, is_b_along_depth, adds);
  std::printf("ok\n");
}
