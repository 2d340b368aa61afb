// Of one SM: barriers, matrix products, shared memory, conversions.
#pragma once
#include "benchmarks/gpu/micro/measurement.cuh"

namespace micro {

__global__ void __launch_bounds__(kThreads, 1) barriers(int count, Clocks* clocks) {
  const Clocks first = clock64();
  for (int n = 0; n < count; ++n) ptx::bar_sync();
  if (ptx::tid() == 0) *clocks = clock64() - first;
}
inline void block() {
  constexpr int kCount = 10000;
  Array<Clocks> clocks(1);
  for (int n = 0; n < 2; ++n) bench::launch(barriers, {.threads = kThreads}, kCount, clocks.get());
  report("__syncthreads", "block_exchange", median(clocks) / kCount, "cycles", {60, 15, 80});
}

enum class Kind { kBf16, kTf32 };

// kChains independent sums in every warp.
template <Kind kKind, int kChains>
__global__ void __launch_bounds__(kThreads, 1) products(int count, Clocks* clocks, float* out) {
  uint32_t random = static_cast<uint32_t>(ptx::tid()) * 2654435761u + 1;
  const auto next = [&] {  // numbers of size 1/2 to 1
    random = random * 1664525u + 1013904223u;
    return kKind == Kind::kBf16 ? (random & 0x807f807fu) | 0x3f003f00u
                                : (random & 0x807fe000u) | 0x3f000000u;
  };
  const ptx::Word4 a{next(), next(), next(), next()};
  uint32_t b[kChains][2];
  float d[kChains][4] = {};
  for (auto& pair : b) pair[0] = next(), pair[1] = next();
  ptx::bar_sync();
  const Clocks first = clock64();
  for (int n = 0; n < count; ++n)
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      if constexpr (kKind == Kind::kBf16) ptx::mma_m16n8k16_bf16(d[c], a, b[c][0], b[c][1]);
      if constexpr (kKind == Kind::kTf32) ptx::mma_m16n8k8_tf32(d[c], a, b[c][0], b[c][1]);
    }
  float sum = 0;
  for (const auto& part : d) sum += part[0] + part[1] + part[2] + part[3];
  out[ptx::ctaid() * kThreads + ptx::tid()] = sum;  // so that all have ended
  ptx::bar_sync();
  if (ptx::tid() == 0) clocks[ptx::ctaid()] = clock64() - first;
}
template <Kind kKind, int kChains>
double cycles_per_product(int warps) {
  constexpr int kCount = 20000 / kChains;
  const int blocks = bench::sms();
  Array<Clocks> clocks(static_cast<std::size_t>(blocks));
  Array<float> out(static_cast<std::size_t>(blocks) * kThreads);
  for (int n = 0; n < 2; ++n)
    bench::launch(products<kKind, kChains>, {.blocks = blocks, .threads = 32 * warps}, kCount,
                  clocks.get(), out.get());
  return median(clocks) / (1.0 * kCount * kChains);
}
inline void matrix() {
  const double bf16 = cycles_per_product<Kind::kBf16, 4>(8) / 8;  // of an SM
  report("mma.m16n8k16 bf16", "fma_per_clock", 16 * 8 * 16 / bf16, "FMA/cycle/SM",
         {1024, 950, 1280}, "cycles_per_sub_core", 4 * bf16);
  const double tf32 = cycles_per_product<Kind::kTf32, 4>(8) / 8;
  report("mma.m16n8k8 tf32", "", 16 * 8 * 8 / tf32, "FMA/cycle/SM", {512, 480, 640},
         "cycles_per_sub_core", 4 * tf32);
  report("mma.m16n8k16 bf16, one after the other", "", cycles_per_product<Kind::kBf16, 1>(1),
         "cycles", {32, 16, 40});
  report("mma.m16n8k8 tf32, one after the other", "", cycles_per_product<Kind::kTf32, 1>(1),
         "cycles", {32, 14, 40});
}

__global__ void __launch_bounds__(kThreads, 1)
    read_shared(int count, Clocks* clocks, uint32_t* out) {
  const auto from =
      static_cast<uint32_t>(__cvta_generic_to_shared(ptx::shared() + 16 * ptx::tid()));
  uint32_t sum = 0;
  ptx::bar_sync();
  const Clocks first = clock64();
  for (int n = 0; n < count; ++n)
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      uint32_t x, y, z, w;
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
                   : "r"(from + static_cast<uint32_t>(k * kThreads * 16)));
      sum += x ^ y ^ z ^ w;
    }
  out[ptx::tid()] = sum;
  ptx::bar_sync();
  if (ptx::tid() == 0) *clocks = clock64() - first;
}
__global__ void __launch_bounds__(kThreads, 1) convert(int count, Clocks* clocks, uint32_t* out) {
  uint32_t v[8];
  for (int k = 0; k < 8; ++k) v[k] = 0x3f800000u + static_cast<uint32_t>(ptx::tid() + k);
  ptx::bar_sync();
  const Clocks first = clock64();
  for (int n = 0; n < count; ++n)
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = ptx::cvt_rna_tf32(__uint_as_float(v[k] + 1));
  uint32_t sum = 0;
  for (const uint32_t part : v) sum += part;
  out[ptx::tid()] = sum;
  ptx::bar_sync();
  if (ptx::tid() == 0) *clocks = clock64() - first;
}
inline void units() {
  constexpr int kCount = 2000;
  Array<Clocks> clocks(1);
  Array<uint32_t> out(kThreads);
  const Launch how{.threads = kThreads, .shared_bytes = 8 * kThreads * 16};
  for (int n = 0; n < 2; ++n) bench::launch(read_shared, how, kCount, clocks.get(), out.get());
  report("ld.shared of 16 bytes", "shared_bytes", 8.0 * kCount * kThreads * 16 / median(clocks),
         "bytes/cycle", {128, 110, 130});
  for (int n = 0; n < 2; ++n) bench::launch(convert, how, kCount, clocks.get(), out.get());
  report("cvt.rna.tf32", "conversions", 8.0 * kCount * kThreads / median(clocks), "per cycle",
         {64, 12, 68});
}

}  // namespace micro
