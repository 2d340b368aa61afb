// Products of matrices (cpu/matrix_product.h) in buffers of exactly the right size, against a loop
// in double precision, and by any number of threads.
#pragma once
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "cpu/matrix_product.h"
#include "native/engine_data.h"

// What two products in one call multiply, [rows, 2, left], [rows, 2, right] and [left, 2, right].
struct Matrices {
  Floats a, b, w;
  Matrices(std::int64_t rows, std::int64_t left, std::int64_t right)
      : a(wave(rows * 2 * left, 0.7f, 1)),
        b(wave(rows * 2 * right, 0.3f, 1)),
        w(wave(left * 2 * right, 0.9f, 1)) {}
  // Rounded towards zero.
  void round_to_bfloat16() {
    for (Floats* of : {&a, &b, &w})
      for (float& value : *of)
        value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0xffff0000);
  }
};
// As the engine is given them. No float lies behind: the sanitizer sees what reads there.
inline std::vector<std::uint16_t> halves(const Floats& all) {
  std::vector<std::uint16_t> out;
  for (const float value : all)
    out.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
  return out;
}

// c and the sums over the rows of a and b, and over the columns of b and w.
inline std::vector<Floats> products(std::int64_t rows, std::int64_t left, std::int64_t right,
                                    const Matrices& of, Dtype dtype, int threads) {
  std::vector<Floats> out{Floats(2 * left * right, NAN), Floats(2 * right, NAN),
                          Floats(rows * 2 * left, NAN)};
  const auto a = halves(of.a), b = halves(of.b), w = halves(of.w);
  const auto given = [&](const Floats& floats, const auto& shorts) {
    return dtype == Dtype::kFloat32 ? static_cast<const void*>(floats.data()) : shorts.data();
  };
  const prnn::MatrixProduct both[] = {
      {dtype, true, 2, left, right, rows, given(of.a, a), given(of.b, b), out[0].data(),
       out[1].data()},
      {dtype, false, 2, rows, left, right, given(of.b, b), given(of.w, w), out[2].data(), nullptr}};
  Floats workspace(prnn::workspace_floats(both, 2), NAN);
  {
    Threads pool(threads);
    prnn::run(prnn::best_isa(), both, 2, pool, workspace.data());
  }
  return out;
}

// The largest error of the above, relative to the square root of the number of terms.
inline double error_of_products(std::int64_t rows, std::int64_t left, std::int64_t right,
                                const Matrices& of, const std::vector<Floats>& out) {
  const auto& [a, b, w] = of;
  double worst = 0;
  const auto compare = [&](double expected, float value, std::int64_t terms) {
    worst = std::fmax(worst, std::fabs(expected - value) / std::sqrt(terms));
  };
  for (int g = 0; g < 2; ++g) {
    for (std::int64_t n = 0; n < right; ++n) {
      double sum = 0;
      for (std::int64_t r = 0; r < rows; ++r) sum += b[(r * 2 + g) * right + n];
      compare(sum, out[1][g * right + n], rows);
      for (std::int64_t m = 0; m < left; ++m) {
        double c = 0;
        for (std::int64_t r = 0; r < rows; ++r)
          c += double{a[(r * 2 + g) * left + m]} * b[(r * 2 + g) * right + n];
        compare(c, out[0][(g * left + m) * right + n], rows);
      }
    }
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t m = 0; m < left; ++m) {
        double c = 0;
        for (std::int64_t n = 0; n < right; ++n)
          c += double{b[(r * 2 + g) * right + n]} * w[(m * 2 + g) * right + n];
        compare(c, out[2][(r * 2 + g) * left + m], right);
      }
  }
  return worst;
}

inline void check_products() {
  // Depths of one block, whole blocks and a part of one; sizes around vectors, panels, blocks.
  const std::int64_t sizes[][3] = {{1, 1, 1},     {3, 17, 5},    {40, 9, 130},  {513, 7, 65},
                                   {600, 33, 16}, {37, 70, 515}, {1025, 3, 31}, {64, 64, 256}};
  for (const auto& [rows, left, right] : sizes)
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16}) {
      Matrices of(rows, left, right);
      if (dtype == Dtype::kBfloat16) of.round_to_bfloat16();
      const auto alone = products(rows, left, right, of, dtype, 1);
      // 1e-6: a few float32 roundings of values below 1.
      if (!(error_of_products(rows, left, right, of, alone) < 1e-6)) {
        std::printf("products of %ld, %ld, %ld are wrong\n", static_cast<long>(rows),
                    static_cast<long>(left), static_cast<long>(right));
        std::exit(1);
      }
      for (int threads : {3, 16})
        if (products(rows, left, right, of, dtype, threads) != alone) {
          std::printf("products depend on the number of threads\n");
          std::exit(1);
        }
    }
}
