// Which instruction sets this build has, and which of them this processor runs.
#include <cstring>

#include "cpu/environment.h"
#include "cpu/run.h"
#if PRNN_HAS_X86_ISAS
#include "cpu/x86.h"
#endif

namespace prnn {

namespace portable {
extern const Isa kIsa;
}
#if PRNN_HAS_X86_ISAS
namespace avx2 {
extern const Isa kIsa;
}
namespace avx512 {
extern const Isa kIsa;
}
namespace avx512_bf16 {
extern const Products kDotProducts;
extern const MatrixFunctions kDotMatrices;
}  // namespace avx512_bf16
#endif

const Isa* find_isa(const char* name) {
#if PRNN_HAS_X86_ISAS
  if (std::strcmp(name, "avx512_bf16") == 0 && x86().avx512_bf16) {
    static const Isa with_dot_products = [] {
      Isa isa = avx512::kIsa;
      isa.name = "avx512_bf16";
      isa.bfloat16 = &avx512_bf16::kDotProducts;
      isa.bfloat16_matrices = avx512_bf16::kDotMatrices;
      return isa;
    }();
    return &with_dot_products;
  }
  if (std::strcmp(name, "avx512") == 0 && x86().avx512) return &avx512::kIsa;
  if (std::strcmp(name, "avx2") == 0 && x86().avx2) return &avx2::kIsa;
#endif
  return std::strcmp(name, "portable") == 0 ? &portable::kIsa : nullptr;
}

const Isa& best_isa() {
  static const Isa& best = []() -> const Isa& {
    if (const char* wanted = wanted_isa())
      if (const Isa* isa = find_isa(wanted)) return *isa;
#if PRNN_HAS_X86_ISAS
    // AMD's processors do two multiply-adds of bfloat16 in the time of one of float (Zen 5: 490
    // GFLOP/s against 240). On an Intel Xeon with AMX, widening in registers took 0.7 to 0.9 of
    // the time where weights come from the second-level cache, and the same elsewhere.
    if (x86().is_amd)
      if (const Isa* isa = find_isa("avx512_bf16")) return *isa;
#endif
    for (const char* name : {"avx512", "avx2"})
      if (const Isa* isa = find_isa(name)) return *isa;
    return portable::kIsa;
  }();
  return best;
}

}  // namespace prnn
