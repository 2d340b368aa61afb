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

namespace {

// avx512's, but for products of bfloat16.
Isa with_pairs(const char* name, const Products& products, const MatrixFunctions& matrices) {
  Isa isa = avx512::kIsa;
  isa.name = name;
  isa.bfloat16 = &products;
  isa.bfloat16_matrices = matrices;
  isa.sums_pairs = true;
  return isa;
}

}  // namespace
#endif

const Isa* find_isa(const char* name) {
#if PRNN_HAS_X86_ISAS
  static const Isa dot_products =
      with_pairs("avx512_bf16", avx512_bf16::kDotProducts, avx512_bf16::kDotMatrices);
  static const Isa tiles = with_pairs("amx_bf16", amx_bf16::kTileProducts, amx_bf16::kTileMatrices);
  for (const Isa* isa : {&tiles, &dot_products, &avx512::kIsa, &avx2::kIsa})
    if (std::strcmp(name, isa->name) == 0 && x86().has(name)) return isa;
#if PRNN_EMULATES_TILES
  static const Isa emulated =
      with_pairs("amx_emulated", amx_emulated::kTileProducts, amx_emulated::kTileMatrices);
  if (std::strcmp(name, emulated.name) == 0 && x86().avx512_bf16) return &emulated;
#endif
#endif
  return std::strcmp(name, "portable") == 0 ? &portable::kIsa : nullptr;
}

const Isa& best_isa() {
  static const Isa& best = []() -> const Isa& {
    if (const char* wanted = wanted_isa())
      if (const Isa* isa = find_isa(wanted)) return *isa;
#if PRNN_HAS_X86_ISAS
    return *find_isa(x86().best());
#else
    return portable::kIsa;
#endif
  }();
  return best;
}

}  // namespace prnn
