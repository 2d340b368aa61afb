#include "emulator/matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "emulator/numbers.h"

namespace prnn::emulator {
namespace {

constexpr int kRows = 16, kColumns = 8;
using Row = float __attribute__((vector_size(sizeof(float) * kColumns)));
using Wide = double __attribute__((vector_size(sizeof(double) * kColumns)));
using WideBits = std::int64_t __attribute__((vector_size(sizeof(double) * kColumns)));
using Integers = std::int32_t __attribute__((vector_size(sizeof(float) * kColumns)));

template <int kDepth>
struct Operands {
  float a[kRows][kDepth];
  Row b[kDepth];
};

// PTX ISA 9.7.14.5.8, "Matrix fragments for mma.m16n8k16 with floating point type": each register
// has the values of two neighbours in k.
template <float (*kToFloat)(std::uint32_t)>
Operands<16> unpack_pairs(const Fragments (&lanes)[32]) {
  Operands<16> out;
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4, k = 2 * (lane % 4);
    const Fragments& from = lanes[lane];
    for (int half = 0; half < 2; ++half) {
      const auto value = [half](std::uint32_t pair) {
        return kToFloat(half == 0 ? pair & 0xffff : pair >> 16);
      };
      out.a[group][k + half] = value(from.a[0]);
      out.a[group + 8][k + half] = value(from.a[1]);
      out.a[group][k + 8 + half] = value(from.a[2]);
      out.a[group + 8][k + 8 + half] = value(from.a[3]);
      out.b[k + half][group] = value(from.b[0]);
      out.b[k + 8 + half][group] = value(from.b[1]);
    }
  }
  return out;
}

// 9.7.14.5.7, "Matrix fragments for mma.m16n8k8", for .tf32.
Operands<8> unpack_tf32(const Fragments (&lanes)[32]) {
  Operands<8> out;
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4, k = lane % 4;
    const Fragments& from = lanes[lane];
    out.a[group][k] = float_of_tf32(from.a[0]);
    out.a[group + 8][k] = float_of_tf32(from.a[1]);
    out.a[group][k + 4] = float_of_tf32(from.a[2]);
    out.a[group + 8][k + 4] = float_of_tf32(from.a[3]);
    out.b[k][group] = float_of_tf32(from.b[0]);
    out.b[k + 4][group] = float_of_tf32(from.b[1]);
  }
  return out;
}

// A sum much as the matrix units of an H100 make it. Below the power of two of the largest addend
// they keep 25 bits of each, and of the sum 24 significant ones; all others are cut off. So a sum
// to which much is added, time after time, loses half a bit of its last place each time, always
// towards 0. Fasi et al. 2021, "Numerical behavior of NVIDIA tensor cores"; Khattak and Mikaitis
// 2025, "Accurate models of NVIDIA tensor cores". With it the emulator's float32 results were as
// far from the naive run's as those of an H100 (benchmarks/results/gpu/h100.json) in three digits,
// with one bit less or more they were not. Bit for bit it is not the hardware: of 25600 sums of an
// H200 (h200.json) 2338 differ in bfloat16, 4512 in float16, 2754 in TF32.
template <int kAddends>
void cut_sum(const Wide (&addends)[kAddends], Row& out) {
  constexpr int kKeptBits = 25, kSignificantBits = 24;
  Wide sum = {}, largest = Wide{} + 0x1p-300;
  for (const Wide& addend : addends) {
    sum += addend;
    const Wide size = addend < 0 ? -addend : addend;
    largest = size > largest ? size : largest;
  }
  constexpr std::int64_t kExponent = 0x7ff0000000000000;
  const Wide power = reinterpret_cast<Wide>(reinterpret_cast<WideBits>(largest) & kExponent);
  const Wide per_unit = static_cast<double>(1 << kKeptBits) / power;
  Integers units = {};
  for (const Wide& addend : addends) units += __builtin_convertvector(addend * per_unit, Integers);
  for (int n = 0; n < kColumns; ++n) {
    out[n] = static_cast<float>(sum[n]);
    if (!std::isfinite(sum[n])) continue;
    const auto size = static_cast<unsigned>(std::abs(units[n]));
    const int cut = std::max(static_cast<int>(std::bit_width(size)) - kSignificantBits, 0);
    const double kept = std::copysign(size >> cut << cut, units[n]) / per_unit[n];
    out[n] = static_cast<float>(kept);
  }
}

template <int kDepth>
void multiply(const Operands<kDepth>& operands, const Fragments (&lanes)[32], Products (&out)[32]) {
  const auto for_all = [](auto f) {  // (lane, register, row, column) of d
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) f(lane, i, lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2);
  };
  Row d[kRows];
  for_all([&](int lane, int i, int row, int column) { d[row][column] = lanes[lane].c[i]; });
  for (int row = 0; row < kRows; ++row) {
    Wide addends[kDepth + 1] = {__builtin_convertvector(d[row], Wide)};
    for (int k = 0; k < kDepth; ++k)
      addends[k + 1] = operands.a[row][k] * __builtin_convertvector(operands.b[k], Wide);
    cut_sum(addends, d[row]);
  }
  for_all([&](int lane, int i, int row, int column) { out[lane].d[i] = d[row][column]; });
}

}  // namespace

void multiply(MatrixKind kind, const Fragments (&lanes)[32], Products (&out)[32]) {
  switch (kind) {
    case MatrixKind::kBf16:
      return multiply(unpack_pairs<float_of_bf16>(lanes), lanes, out);
    case MatrixKind::kF16:
      return multiply(unpack_pairs<float_of_f16>(lanes), lanes, out);
    case MatrixKind::kTf32:
      return multiply(unpack_tf32(lanes), lanes, out);
  }
}

}  // namespace prnn::emulator
