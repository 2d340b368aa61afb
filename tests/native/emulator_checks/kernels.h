// What the checks of the emulator share: what they expect, and parts of kernels.
#pragma once
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/ptx.h"
#include "emulator/emulator.h"

namespace prnn::checks {

using emulator::EmulatorError;
using emulator::Launch;
using emulator::Options;
using ptx::Word2;
using ptx::Word4;
using Kernel = std::function<void()>;

inline constexpr std::uint32_t kUnwritten = ~0u;

inline void expect(bool ok, const std::string& what) {
  if (ok) return;
  std::printf("FAILED: %s\n", what.c_str());
  std::exit(1);
}

inline std::uint32_t bits(float v) { return std::bit_cast<std::uint32_t>(v); }
inline float value(std::uint32_t v) { return std::bit_cast<float>(v); }

inline Options seeded(std::uint64_t seed) {
  Options options;
  options.seed = seed;
  return options;
}

// Granules that no block has written yet.
class Mailbox {
 public:
  explicit Mailbox(std::size_t granules)
      : size_(granules), granules_(new (std::align_val_t{16}) std::uint64_t[granules]) {
    for (std::size_t i = 0; i < size_; ++i) granules_[i] = ~std::uint64_t{0};
  }
  ~Mailbox() { ::operator delete[](granules_, std::align_val_t{16}); }
  Mailbox(const Mailbox&) = delete;
  std::uint64_t* operator[](std::size_t i) { return granules_ + i; }
  std::vector<std::uint64_t> contents() const { return {granules_, granules_ + size_}; }

 private:
  std::size_t size_;
  std::uint64_t* granules_;
};

inline Word4 poll(const void* p) {
  for (;;) {
    const Word4 v = ptx::ld_relaxed_gpu_v2_b64(p);
    if (v.x != kUnwritten && v.z != kUnwritten) return v;
    ptx::spin();
  }
}
inline void wait(ptx::MBarrier* b, std::uint32_t parity) {
  while (!ptx::mbarrier_try_wait_parity(b, parity)) ptx::spin();
}
inline void cluster_sync() {
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
}

inline ptx::MBarrier* first_mbarrier() { return reinterpret_cast<ptx::MBarrier*>(ptx::shared()); }
inline void init_mbarrier(bool fence = true) {
  if (ptx::tid() == 0) {
    ptx::mbarrier_init(first_mbarrier(), 1);
    if (fence) ptx::fence_mbarrier_init();
  }
  cluster_sync();
}
inline void send(int offset, int rank) {
  if (ptx::tid() == 0 && ptx::cluster_ctarank() == 0)
    ptx::st_async_v2_b32(ptx::mapa(ptx::shared() + offset, rank), {1, 2},
                         ptx::mapa(ptx::shared(), rank));
}

// Every thread writes a word and reads that of another, `rounds` times.
inline void exchange(int threads, void (*barrier)(), int rounds, bool single_buffer = false) {
  auto* words = reinterpret_cast<std::uint32_t*>(ptx::shared());
  const int base = ptx::tid() / threads * threads;
  for (int r = 0; r < rounds; ++r) {
    std::uint32_t* buffer = words + (single_buffer ? 0 : r % 2 * 64);
    buffer[ptx::tid()] = static_cast<std::uint32_t>(1000 * r + ptx::tid());
    barrier();
    const int other = base + (ptx::tid() - base + 5) % threads;
    const volatile std::uint32_t found = buffer[other];  // read even where it may be anything
    if (found != static_cast<std::uint32_t>(1000 * r + other) && !single_buffer)
      throw std::runtime_error("a word of another thread is not there");
  }
}

}  // namespace prnn::checks
