// L2 and memory: latency and bandwidth.
#pragma once
#include "benchmarks/gpu/micro/measurement.cuh"

namespace micro {

__global__ void chase(const uint32_t* next, int count, Clocks* clocks, uint32_t* out) {
  uint32_t at = 0;
  for (int n = 0; n < 1024; ++n)
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(at) : "l"(next + at) : "memory");
  const Clocks first = clock64();
  for (int n = 0; n < count; ++n)
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(at) : "l"(next + at) : "memory");
  *clocks = clock64() - first;
  *out = at;
}
inline void latency() {
  constexpr uint32_t kLines = 1024, kWords = 32, kStep = 389;  // coprime: every line in turn
  std::vector<uint32_t> next(kLines * kWords);
  for (uint32_t n = 0; n < kLines; ++n) next[n * kWords] = (n + kStep) % kLines * kWords;
  Array<uint32_t> array(next), out(1);
  Array<Clocks> clocks(1);
  constexpr int kCount = 8192;
  for (int n = 0; n < 2; ++n)
    bench::launch(chase, {.threads = 1}, array.get(), kCount, clocks.get(), out.get());
  report("load from L2", "l2_latency", median(clocks) / kCount, "cycles", {290, 230, 330});
}

// Every block reads the same bytes, again and again, past its L1; a multiple of 64 per thread.
__global__ void __launch_bounds__(512, 1)
    broadcast(const char* from, int bytes, int rounds, Clocks* clocks, uint32_t* out) {
  const int stride = static_cast<int>(blockDim.x) * 16;
  uint32_t sum = 0;
  const Clocks first = clock64();
  for (int n = 0; n < rounds; ++n)
    for (int at = ptx::tid() * 16; at < bytes; at += 4 * stride) {
      ptx::Word4 v[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) v[k] = ptx::ld_relaxed_gpu_v2_b64(from + at + k * stride);
#pragma unroll
      for (int k = 0; k < 4; ++k) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
  out[ptx::ctaid() * static_cast<int>(blockDim.x) + ptx::tid()] = sum;
  ptx::bar_sync();
  if (ptx::tid() == 0) clocks[ptx::ctaid()] = clock64() - first;
}
inline void bandwidth() {
  const int all = bench::sms();
  Array<Clocks> clocks(static_cast<std::size_t>(all));
  Array<uint32_t> out(static_cast<std::size_t>(all) * 512);
  constexpr int kTotal = 32 << 20;
  Array<char> values(1 << 17);
  values.fill(7);
  for (const int threads : {256, 512}) {
    const int bytes = 32 << 10;
    Array<Clocks> one(1);
    for (int n = 0; n < 2; ++n)
      bench::launch(broadcast, {.threads = threads, .shared_bytes = kWholeSm}, values.get(), bytes,
                    kTotal / bytes, one.get(), out.get());
    report("L2 to one SM", "l2_port_bytes", kTotal / median(one), "bytes/cycle", {64, 40, 70},
           "threads", threads);
  }
  for (const int bytes : {4 << 10, 32 << 10, 128 << 10})
    for (const int threads : {256, 512}) {
      if (bytes < 64 * threads) continue;
      const double us = bench::time_us([&] {
        bench::launch(broadcast, {.blocks = all, .threads = threads, .shared_bytes = kWholeSm},
                      values.get(), bytes, kTotal / bytes, clocks.get(), out.get());
      });
      report("L2 to all SMs", "l2_bytes_per_s", 1e6 * all * double{kTotal} / us, "bytes/s",
             {5.5e12, 4.4e12, 7e12}, "bytes", bytes, "threads", threads);
    }
  const std::size_t size = 2ull << 30;
  Array<char> source(size), target(size);
  source.fill(1);
  const double us = bench::time_us(
      [&] { CHECK(cudaMemcpyAsync(target.get(), source.get(), size, cudaMemcpyDeviceToDevice)); });
  report("memory, copied", "dram_bytes_per_s", 2e6 * static_cast<double>(size) / us, "bytes/s",
         {4.3e12, 4.0e12, 4.8e12});
}

}  // namespace micro
