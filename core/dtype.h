// The number formats of a call's arrays.
#pragma once
#include <cstdint>

#include "core/portability.h"

namespace prnn {

enum class Dtype { kFloat32, kBfloat16, kFloat16 };

// 16-bit numbers as they lie in memory: computed with in float.
struct Bfloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

// Calls f(value) with a value of the type chosen at run time.
template <class F>
[[gnu::always_inline]] inline decltype(auto) visit(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::kFloat32:
      return f(float{});
    case Dtype::kBfloat16:
      return f(Bfloat16{});
    case Dtype::kFloat16:
      return f(Float16{});
  }
  __builtin_unreachable();  // the handlers refuse every other value
}

}  // namespace prnn
