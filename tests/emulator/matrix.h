// mma.sync: the product of the matrices whose fragments the 32 lanes of a warp hold.
#pragma once
#include <cstdint>

namespace prnn::emulator {

enum class MatrixKind { kBf16, kF16, kTf32 };

struct Fragments {
  std::uint32_t a[4], b[2];
  float c[4];  // what the product is added to
};
struct Products {
  float d[4];
};

// d = a b + c: exact products, in sums that are cut off.
void multiply(MatrixKind kind, const Fragments (&lanes)[32], Products (&out)[32]);

}  // namespace prnn::emulator
