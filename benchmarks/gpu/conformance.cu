// Does every function of cuda/ptx.h do on this GPU what the emulator says it does?
//
//   conformance          one row of JSON for each check
//   conformance --host   the definitions here against those of tests/emulator; needs no GPU
//
// Build: nvcc -std=c++20 -O2 -I<repository> -gencode=arch=compute_90a,code=sm_90a
#include "benchmarks/gpu/conformance/block.cuh"
#include "benchmarks/gpu/conformance/clusters.cuh"
#include "benchmarks/gpu/conformance/conversions.cuh"
#include "benchmarks/gpu/conformance/memory.cuh"
#include "benchmarks/gpu/conformance/products.cuh"
#include "benchmarks/gpu/conformance/watchdog.cuh"
#if __has_include("tests/emulator/numbers.h")
#include "tests/emulator/numbers.h"
#define PRNN_HAS_EMULATOR 1
#endif
#ifdef PRNN_EMULATOR_MATRIX
#include "tests/emulator/matrix.h"
#endif

namespace conformance {
namespace {

// ---- without a GPU -------------------------------------------------------------------

#ifdef PRNN_EMULATOR_MATRIX
// What the emulator makes of d[lane][i] of each of the matrices.
template <Kind kKind, class F>
void for_emulated(const std::vector<Matrices<kKind>>& matrices, F&& f) {
  namespace emulator = prnn::emulator;
  constexpr auto kind = static_cast<emulator::MatrixKind>(kKind);  // in the same order
  for (std::size_t n = 0; n < matrices.size(); ++n) {
    emulator::Fragments lanes[32];
    emulator::Products out[32];
    for (int lane = 0; lane < 32; ++lane) {
      const auto [a, b0, b1, d] = matrices[n].fragment(lane);
      lanes[lane] = {{a.x, a.y, a.z, a.w}, {b0, b1}, {d[0], d[1], d[2], d[3]}};
    }
    emulator::multiply(kind, lanes, out);
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) f(n, lane, i, out[lane].d[i]);
  }
}
template <Kind kKind>
void compare_products(const char* name) {
  const auto all = random_matrices<kKind>();
  long long wrong = 0, of = 0;
  for_emulated(all, [&](std::size_t n, int lane, int i, float emulated) {
    wrong += !same(emulated, all[n].expected(lane, i)), ++of;
  });
  report(name, wrong, of);
}
// Of numbers whose sums are not exact. The emulator's are an H100's.
template <Kind kKind>
void compare_sums(const char* name) {
  const auto all = random_matrices<kKind>(Drawn::kReal);
  const auto of_device = multiply(all);
  long long wrong = 0, of = 0;
  for_emulated(all, [&](std::size_t n, int lane, int i, float emulated) {
    wrong += !same(emulated, of_device[32 * n + static_cast<std::size_t>(lane)].d[i]), ++of;
  });
  report(name, wrong, of, false);
}
#endif

int compare_with_emulator() {
#ifdef PRNN_HAS_EMULATOR
  namespace emulator = prnn::emulator;
  long long bf16 = 0, f16 = 0, tf32 = 0, widened = 0, of = 0;
  // A step that is coprime to 2^32, and all numbers near halves of what is cut off.
  const auto compare = [&](uint32_t f) {
    const float v = std::bit_cast<float>(f);
    bf16 += bf16_of(f) != emulator::bf16_of(v);
    f16 += f16_of(f) != emulator::f16_of(v);
    tf32 += tf32_of(f) != emulator::tf32_of(v);
    ++of;
  };
  for (uint64_t n = 0; n < 1ull << 32; n += 4099) compare(static_cast<uint32_t>(n));
  for (uint32_t high = 0; high < 1 << 16; ++high)
    for (const uint32_t low : {0u, 0xfffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u, 0x7fffu, 0x8000u})
      compare(high << 16 | low);
  for (uint32_t h = 0; h < 1 << 16; ++h)
    widened += float_of_f16(h) !=
               std::bit_cast<uint32_t>(emulator::float_of_f16(static_cast<uint16_t>(h)));
  report("bf16 as in the emulator", bf16, of);
  report("f16 as in the emulator", f16, of);
  report("tf32 as in the emulator", tf32, of);
  report("float of f16 as in the emulator", widened, 1 << 16);
#endif
#ifdef PRNN_EMULATOR_MATRIX  // linked with tests/emulator/matrix.cc
  compare_products<Kind::kBf16>("bf16 products as in the emulator");
  compare_products<Kind::kF16>("f16 products as in the emulator");
  compare_products<Kind::kTf32>("tf32 products as in the emulator");
#endif
  return failures != 0;
}

}  // namespace
}  // namespace conformance

int main(int argc, char** argv) {
  using namespace conformance;
  const std::string option = argc > 1 ? argv[1] : "";
  if (option == "--host") return compare_with_emulator();
  if (!bench::has_gpu()) {
    bench::row("part", "conformance", "error", "no GPU");
    return bench::kNoGpu;
  }
  bench::watch(60);
  if (option == "--watchdog") return give_up();
  check_who_am_i();
  check_barrier<false>("bar_sync, shared");
  check_barrier<true>("bar_warp_sync");
  check_shuffle();
  check_vote();
  check_product<Kind::kBf16>("mma_m16n8k16_bf16");
  check_product<Kind::kF16>("mma_m16n8k16_f16");
  check_product<Kind::kTf32>("mma_m16n8k8_tf32");
  note_products();
#ifdef PRNN_EMULATOR_MATRIX
  compare_sums<Kind::kBf16>("mma_m16n8k16_bf16 adds as the emulator does");
  compare_sums<Kind::kF16>("mma_m16n8k16_f16 adds as the emulator does");
  compare_sums<Kind::kTf32>("mma_m16n8k8_tf32 adds as the emulator does");
#endif
  check_conversion<Conversion::kBf16Low>("cvt_rn_bf16x2 low");
  check_conversion<Conversion::kBf16High>("cvt_rn_bf16x2 high");
  check_conversion<Conversion::kF16Low>("cvt_rn_f16x2 low");
  check_conversion<Conversion::kF16High>("cvt_rn_f16x2 high");
  check_conversion<Conversion::kTf32>("cvt_rna_tf32");
  check_conversion<Conversion::kTf32Nan>("cvt_rna_tf32 cuts low bits of NaN off", false);
  check_widen();
  check_exchange();
  check_tear();
  check_prefetch();
  check_clusters();
  check_watchdog(argv[0]);  // last: it starts a second process
  return failures != 0;
}
