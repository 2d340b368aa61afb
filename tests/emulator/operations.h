// What the functions of ptx.h ask of the emulator, for the thread that calls. Those with a `where`
// may let other threads run, or report an error: it is the place in the kernel.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>

#include "emulator/matrix.h"

namespace prnn::emulator {

// A place in a kernel: in its source, or in what a compiler has made of it.
struct Where {
  const char* file = "";
  std::uint32_t line = 0, column = 0;

  constexpr Where() = default;
  constexpr Where(const char* file, std::uint32_t line) : file(file), line(line) {}
  constexpr Where(const std::source_location& at)  // implicit: what the kernels' functions give
      : file(at.file_name()), line(at.line()), column(at.column()) {}
};

// ---- within a block ----
int thread_in_block();
int block_in_grid();
int blocks_in_grid();
char* shared_memory();
std::size_t shared_bytes();
// Ends the launch: the thread has done what no device could.
[[noreturn]] void fail(const char* operation, const std::string& what, Where where);
void block_barrier(Where where);
// The block's second barrier: of `threads` threads, some of which only arrive.
void second_barrier(int threads, bool waits, Where where);
void warp_barrier(Where where);
std::uint32_t shuffle(std::uint32_t v, int mask, Where where);
bool vote(bool v, Where where);
Products matrix_product(MatrixKind kind, const Fragments& fragments, Where where);

// ---- conversions: also outside of a launch ----
bool truncates();  // Fault::kTruncate

// ---- global memory: granules of 8 bytes ----
std::uint64_t load_granule(const void* p);
void store_granule(void* p, std::uint64_t v);
void require_aligned(const void* p, int bytes, Where where);

// ---- waiting ----
void spin(Where where);
std::uint32_t clock();
inline std::uint32_t cycles() {  // more with each look
  static std::atomic<std::uint32_t> cycles = 0;
  return cycles.fetch_add(1 << 16, std::memory_order_relaxed);
}
std::uint32_t compare_and_swap(std::uint32_t* p, std::uint32_t expected, std::uint32_t v);
void trap(Where where);

// ---- clusters ----
int rank_in_cluster();
char* remote_address(const void* p, int rank, Where where);
void store_remote(char* to, std::uint64_t v, char* mbarrier, Where where);
void mbarrier_init(void* mbarrier, std::uint32_t count, Where where);
void mbarrier_fence();
void mbarrier_arrive(void* mbarrier, std::uint32_t bytes, Where where);
bool mbarrier_complete(void* mbarrier, std::uint32_t parity, Where where);
void cluster_arrive(Where where);
void cluster_wait(Where where);

}  // namespace prnn::emulator
