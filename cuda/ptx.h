// The device abstraction: every operation by which the kernels' threads affect each other, each a
// function named after its PTX instruction. Kernels use these and plain loads and stores, nothing
// else, so that one source has two back ends: nvcc, here, and the host emulator of the tests.
//
// Sections cited are those of the PTX ISA manual, chapter 9.7 "Instructions" unless said.
#pragma once
#include <cstdint>

namespace prnn::ptx {

struct alignas(8) Word2 {  // one 8-byte access
  std::uint32_t x, y;
};
struct alignas(16) Word4 {  // two of them, or one fragment of a matrix
  std::uint32_t x, y, z, w;
};

}  // namespace prnn::ptx

#ifndef __CUDACC__
#include "emulator/ptx.h"  // in tests/: the same functions on the host
#else

namespace prnn::ptx {

#define PRNN_PTX __device__ __forceinline__

// ---- who am I (special registers, chapter 10) ----
PRNN_PTX int tid() { return static_cast<int>(threadIdx.x); }
PRNN_PTX int ctaid() { return static_cast<int>(blockIdx.x); }
PRNN_PTX int nctaid() { return static_cast<int>(gridDim.x); }

// Start of the block's dynamic shared memory.
PRNN_PTX char* shared() {
  extern __shared__ __align__(128) char prnn_shared[];
  return prnn_shared;
}

// v, as if nothing were known of it: what depends on it is computed anew in each turn of a loop,
// and not kept in registers across all; and v itself is computed here, and not later. No
// instruction.
PRNN_PTX int opaque(int v) {
  asm volatile("" : "+r"(v));
  return v;
}
PRNN_PTX float opaque(float v) {
  asm volatile("" : "+f"(v));
  return v;
}

// ---- within a block ----
PRNN_PTX void bar_sync() { __syncthreads(); }
// A second barrier of the block, for `threads` of its threads: some wait there for those that go
// on.
PRNN_PTX void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
}
PRNN_PTX void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" : : "r"(id), "r"(threads) : "memory");
}
PRNN_PTX void bar_warp_sync() { __syncwarp(); }
// shfl.sync.bfly: the value of the lane whose number differs by `mask`.
PRNN_PTX std::uint32_t shfl_bfly(std::uint32_t v, int mask) {
  return __shfl_xor_sync(0xffffffffu, v, mask);
}
// vote.sync.all
PRNN_PTX bool vote_all(bool v) { return __all_sync(0xffffffffu, v); }

// ---- matrix products: d += a b, d [16, 8] float, a row by row, b column by column ----
PRNN_PTX void mma_m16n8k16_bf16(float (&d)[4], const Word4& a, std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
PRNN_PTX void mma_m16n8k16_f16(float (&d)[4], const Word4& a, std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
PRNN_PTX void mma_m16n8k8_tf32(float (&d)[4], const Word4& a, std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// ---- conversions; none of them yields a NaN of all ones ----
// cvt.rn.bf16x2.f32, cvt.rn.f16x2.f32: `low` in the low half.
PRNN_PTX std::uint32_t cvt_rn_bf16x2(float low, float high) {
  std::uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
PRNN_PTX std::uint32_t cvt_rn_f16x2(float low, float high) {
  std::uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
PRNN_PTX float cvt_f32_f16(std::uint16_t bits) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(bits));
  return r;
}
// cvt.rna.tf32.f32: the nearest TF32 number, as the bits of a float. Volatile: else the compiler
// would convert resident weights ahead of the time loop, and spill what it gets.
PRNN_PTX std::uint32_t cvt_rna_tf32(float v) {
  std::uint32_t r;
  asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
  return r;
}

// ---- global memory, visible to other blocks: chapter 8, memory consistency model ----
// Each 8-byte half is single-copy atomic; nothing is assumed of their order.
PRNN_PTX Word4 ld_relaxed_gpu_v2_b64(const void* p) {
  Word4 v;
  asm volatile(
      "{ .reg .b64 a, b; ld.relaxed.gpu.global.v2.b64 {a, b}, [%4];"
      "  mov.b64 {%0, %1}, a; mov.b64 {%2, %3}, b; }"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p)
      : "memory");
  return v;
}
PRNN_PTX void st_relaxed_gpu_b64(void* p, Word2 v) {
  asm volatile("{ .reg .b64 a; mov.b64 a, {%1, %2}; st.relaxed.gpu.global.b64 [%0], a; }" ::"l"(p),
               "r"(v.x), "r"(v.y)
               : "memory");
}
PRNN_PTX void prefetch_global_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// ---- waiting ----
// One more turn of a loop that waits for another block. No instruction.
PRNN_PTX void spin() {}
// How many turns there are to a look at the clock: some 10 us, on a grid's exchange.
inline constexpr std::uint32_t kTurnsPerLook = 64;
// %clock: cycles of this multiprocessor.
PRNN_PTX std::uint32_t clock() {
  std::uint32_t cycles;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles) : : "memory");
  return cycles;
}
// %globaltimer in units of 2^20 ns (1.05 ms), of the whole device.
PRNN_PTX std::uint32_t globaltimer() {
  std::uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return static_cast<std::uint32_t>(ns >> 20);
}
// atom.relaxed.gpu.cas: what was there. Only the device takes part, wherever the word lies.
PRNN_PTX std::uint32_t atom_cas(std::uint32_t* p, std::uint32_t expected, std::uint32_t v) {
  std::uint32_t before;
  asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(before)
               : "l"(p), "r"(expected), "r"(v)
               : "memory");
  return before;
}
// What this thread has written before, the host sees before what it writes after.
PRNN_PTX void fence_acq_rel_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
PRNN_PTX void nanosleep() { asm volatile("nanosleep.u32 1000;"); }
// Ends the kernel with an error; the process has lost its CUDA context. nvcc is not told that it
// does not return: a kernel then spills registers.
PRNN_PTX void trap() { asm volatile("trap;"); }

// ---- clusters: distributed shared memory, sm_90 and later ----
using RemoteAddress = std::uint32_t;  // in the shared::cluster window
using MBarrier = std::uint64_t;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
PRNN_PTX std::uint32_t cvta_shared(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}
PRNN_PTX int cluster_ctarank() {
  std::uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return static_cast<int>(r);
}
// mapa: where p, of this block's shared memory, lies in that of the cluster's block `rank`.
PRNN_PTX RemoteAddress mapa(const void* p, int rank) {
  std::uint32_t r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(cvta_shared(p)), "r"(rank));
  return r;
}
// st.async: stores 8 bytes and then counts them off at the mbarrier, both of the same block.
PRNN_PTX void st_async_v2_b32(RemoteAddress to, Word2 v, RemoteAddress mbarrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
          to),
      "r"(v.x), "r"(v.y), "r"(mbarrier)
      : "memory");
}
PRNN_PTX void mbarrier_init(MBarrier* b, std::uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(cvta_shared(b)), "r"(count)
               : "memory");
}
PRNN_PTX void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
PRNN_PTX void mbarrier_arrive_expect_tx(MBarrier* b, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(cvta_shared(b)),
               "r"(bytes)
               : "memory");
}
// Whether the phase of the given parity is complete; what its st.async wrote is then visible.
PRNN_PTX bool mbarrier_try_wait_parity(MBarrier* b, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;"
      "  selp.u32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(cvta_shared(b)), "r"(parity)
      : "memory");
  return done != 0;
}
PRNN_PTX void barrier_cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
PRNN_PTX void barrier_cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#endif

#undef PRNN_PTX

}  // namespace prnn::ptx
#endif
