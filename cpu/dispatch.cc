// Which instruction sets this build has, and which of them this processor runs.
#include <cstring>

#include "cpu/environment.h"
#include "cpu/run.h"
#if defined(__aarch64__)
#include "cpu/arm.h"
#elif PRNN_HAS_X86_ISAS
#include "cpu/x86.h"
#endif

namespace prnn {

#if defined(__aarch64__)
namespace neon {
extern const Isa kIsa;
}
namespace neon_bf16 {
extern const Products kDotProducts;
extern const MatrixFunctions kDotMatrices;
}  // namespace neon_bf16
#else
namespace portable {
extern const Isa kIsa;
}
#endif
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
namespace amx_bf16 {
extern const Products kTileProducts;
extern const MatrixFunctions kTileMatrices;
}  // namespace amx_bf16
#if PRNN_EMULATES_TILES
namespace amx_emulated {
extern const Products kTileProducts;
extern const MatrixFunctions kTileMatrices;
}  // namespace amx_emulated
#endif
#endif

namespace {

// `isa`, but for products of bfloat16.
[[maybe_unused]] Isa with_pairs(Isa isa, const char* name, const Products& products,
                                const MatrixFunctions& matrices) {
  isa.name = name;
  isa.bfloat16 = &products;
  isa.bfloat16_matrices = matrices;
  isa.sums_pairs = true;
  return isa;
}

}  // namespace

#if defined(__aarch64__)
const Isa* find_isa(const char* name) {
  static const Isa dot_products =
      with_pairs(neon::kIsa, "neon_bf16", neon_bf16::kDotProducts, neon_bf16::kDotMatrices);
  if (std::strcmp(name, dot_products.name) == 0 && has_bf16()) return &dot_products;
  return std::strcmp(name, neon::kIsa.name) == 0 ? &neon::kIsa : nullptr;
}
#else
const Isa* find_isa(const char* name) {
#if PRNN_HAS_X86_ISAS
  static const Isa dot_products =
      with_pairs(avx512::kIsa, "avx512_bf16", avx512_bf16::kDotProducts, avx512_bf16::kDotMatrices);
  static const Isa tiles =
      with_pairs(avx512::kIsa, "amx_bf16", amx_bf16::kTileProducts, amx_bf16::kTileMatrices);
  for (const Isa* isa : {&tiles, &dot_products, &avx512::kIsa, &avx2::kIsa})
    if (std::strcmp(name, isa->name) == 0 && x86().has(name)) return isa;
#if PRNN_EMULATES_TILES
  static const Isa emulated = with_pairs(avx512::kIsa, "amx_emulated", amx_emulated::kTileProducts,
                                         amx_emulated::kTileMatrices);
  if (std::strcmp(name, emulated.name) == 0 && x86().avx512_bf16) return &emulated;
#endif
#endif
  return std::strcmp(name, portable::kIsa.name) == 0 ? &portable::kIsa : nullptr;
}
#endif

namespace {

const char* best_name() {
#if defined(__aarch64__)
  return has_bf16() ? "neon_bf16" : "neon";
#elif PRNN_HAS_X86_ISAS
  return x86().best();
#else
  return "portable";
#endif
}

}  // namespace

const Isa& best_isa() {
  static const Isa& best = []() -> const Isa& {
    if (const char* wanted = wanted_isa())
      if (const Isa* isa = find_isa(wanted)) return *isa;
    return *find_isa(best_name());
  }();
  return best;
}

}  // namespace prnn
