#include "emulator/matrix.h"

#include "emulator/numbers.h"

namespace prnn::emulator {
namespace {

constexpr int kRows = 16, kColumns = 8;
using Row = float __attribute__((vector_size(sizeof(float) * kColumns)));

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

template <int kDepth>
void multiply(const Operands<kDepth>& operands, Products (&out)[32]) {
  Row d[kRows];
  for (int row = 0; row < kRows; ++row) {
    Row sum = {};
    for (int k = 0; k < kDepth; ++k) sum += operands.a[row][k] * operands.b[k];
    d[row] = sum;
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4, column = 2 * (lane % 4);
    out[lane] = {
        {d[group][column], d[group][column + 1], d[group + 8][column], d[group + 8][column + 1]}};
  }
}

}  // namespace

void multiply(MatrixKind kind, const Fragments (&lanes)[32], Products (&out)[32]) {
  switch (kind) {
    case MatrixKind::kBf16:
      return multiply(unpack_pairs<float_of_bf16>(lanes), out);
    case MatrixKind::kF16:
      return multiply(unpack_pairs<float_of_f16>(lanes), out);
    case MatrixKind::kTf32:
      return multiply(unpack_tf32(lanes), out);
  }
}

}  // namespace prnn::emulator
