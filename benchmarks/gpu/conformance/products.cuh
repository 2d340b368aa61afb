// Matrix products.
#pragma once
#include "benchmarks/gpu/conformance/definitions.cuh"

namespace conformance {

enum class Kind { kBf16, kF16, kTf32 };

struct Fragment {
  ptx::Word4 a;
  uint32_t b0, b1;
  float d[4];
};
template <Kind kKind>
__global__ void product(Fragment* warps) {
  Fragment& f = warps[ptx::ctaid() * 32 + ptx::tid()];
  if constexpr (kKind == Kind::kBf16) ptx::mma_m16n8k16_bf16(f.d, f.a, f.b0, f.b1);
  if constexpr (kKind == Kind::kF16) ptx::mma_m16n8k16_f16(f.d, f.a, f.b0, f.b1);
  if constexpr (kKind == Kind::kTf32) ptx::mma_m16n8k8_tf32(f.d, f.a, f.b0, f.b1);
}

// Where a lane's registers lie in the matrices: PTX ISA, "Matrix Fragments for mma.m16n8k16 with
// floating point type" and "... for mma.m16n8k8".
template <Kind kKind>
struct Matrices {
  static constexpr int kPerWord = kKind == Kind::kTf32 ? 1 : 2, kDepth = 8 * kPerWord;
  float a[16][16] = {}, b[16][8] = {}, c[16][8] = {};

  static uint32_t word(float first, float second) {
    const auto bits = [](float v) { return std::bit_cast<uint32_t>(v); };
    if (kKind == Kind::kTf32) return bits(first);
    if (kKind == Kind::kBf16) return bf16_of(bits(first)) | bf16_of(bits(second)) << 16;
    return f16_of(bits(first)) | f16_of(bits(second)) << 16;
  }
  Fragment fragment(int lane) const {
    const int row = lane / 4, column = lane / 4, k = lane % 4 * kPerWord, half = 4 * kPerWord;
    const auto of_a = [&](int r, int c) { return word(a[r][c], a[r][(c + 1) % 16]); };
    const auto of_b = [&](int r) { return word(b[r][column], b[(r + 1) % 16][column]); };
    const int pair = lane % 4 * 2;
    return {{of_a(row, k), of_a(row + 8, k), of_a(row, k + half), of_a(row + 8, k + half)},
            of_b(k),
            of_b(k + half),
            {c[row][pair], c[row][pair + 1], c[row + 8][pair], c[row + 8][pair + 1]}};
  }
  // What lane holds afterwards.
  float expected(int lane, int i) const {
    const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
    float sum = c[row][column];
    for (int k = 0; k < kDepth; ++k) sum += a[row][k] * b[k][column];
    return sum;
  }
};

template <Kind kKind>
std::vector<Fragment> multiply(const std::vector<Matrices<kKind>>& matrices) {
  std::vector<Fragment> lanes;
  for (const auto& m : matrices)
    for (int lane = 0; lane < 32; ++lane) lanes.push_back(m.fragment(lane));
  Array<Fragment> array(lanes);
  bench::launch(product<kKind>, {.blocks = static_cast<int>(matrices.size())}, array.get());
  return array.read();
}

// Small integers, whose products and sums are exact, or numbers of several sizes. In every second
// matrix there is a value that is not finite, which only its row or column may feel.
enum class Drawn { kInteger, kReal };
template <Kind kKind>
std::vector<Matrices<kKind>> random_matrices(Drawn drawn = Drawn::kInteger) {
  std::mt19937 random(7);
  const auto fill = [&](auto& matrix) {
    for (auto& row : matrix)
      for (float& v : row)
        v = drawn == Drawn::kInteger
                ? static_cast<float>(static_cast<int>(random() % 15) - 7)
                : std::ldexp(static_cast<float>(static_cast<int32_t>(random())),
                             static_cast<int>(random() % 8) - 35);
  };
  std::vector<Matrices<kKind>> all(200);
  for (std::size_t n = 0; n < all.size(); ++n) {
    auto& m = all[n];
    fill(m.a), fill(m.b), fill(m.c);
    const float odd = n / 4 % 2 ? INFINITY : NAN;
    if (n % 4 == 1) m.a[random() % 16][random() % m.kDepth] = odd;
    if (n % 4 == 3) m.b[random() % m.kDepth][random() % 8] = odd;
  }
  return all;
}
inline bool same(float a, float b) { return a == b || (a != a && b != b); }

template <Kind kKind>
inline void check_product(const char* name) {
  const auto all = random_matrices<kKind>();
  const auto out = multiply(all);
  long long wrong = 0;
  for (std::size_t n = 0; n < out.size(); ++n)
    for (int i = 0; i < 4; ++i)
      wrong += !same(out[n].d[i], all[n / 32].expected(static_cast<int>(n % 32), i));
  report(name, wrong, static_cast<long long>(4 * out.size()));
}

// What the kernels do not rely on, and the emulator assumes.
inline void note_products() {
  std::vector<Matrices<Kind::kTf32>> one(1);
  one[0].a[0][0] = std::bit_cast<float>(0x3f801fffu);
  one[0].b[0][0] = 1.0f;
  const float cut = multiply(one)[0].d[0];
  report("mma_m16n8k8_tf32 cuts low bits off", cut != 1.0f, 1, false);

  std::vector<Matrices<Kind::kBf16>> denormal(1);
  denormal[0].a[0][0] = std::bit_cast<float>(0x00010000u);  // bf16's smallest
  denormal[0].b[0][0] = 1.0f;
  const float kept = multiply(denormal)[0].d[0];
  report("mma_m16n8k16_bf16 keeps denormal numbers", kept != denormal[0].a[0][0], 1, false);
}

}  // namespace conformance
