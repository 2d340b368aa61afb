// Waits of blocks for each other end: what a kernel is told of how long, and what it leaves behind
// when it gives one up. Read by both sides; no CUDA header.
#pragma once
#include <cstdint>

namespace prnn {

// In the host's memory, written by the device: by the first thread that gives up, before it ends
// the kernel with an error.
struct WaitReport {
  enum State : std::uint32_t { kNone, kBeingWritten, kWritten };
  std::uint32_t state;
  std::int32_t exchange;          // an Exchange
  std::int32_t block;             // of the grid, which waited
  std::int32_t group, first_row;  // its job
  std::int32_t step;              // in the order of the pass
};

struct Watchdog {
  // Of ptx::globaltimer, which counts 2^20 ns; 0: waits last as long as they last.
  std::uint32_t patience = 0;
  WaitReport* report = nullptr;  // by the device's address
};

// Of any time at all, one at least: 0 would be no limit.
inline constexpr std::uint32_t timer_ticks(double seconds) {
  const auto ticks = static_cast<std::uint32_t>(seconds * 1e9 / (1 << 20));
  return ticks == 0 && seconds > 0.0 ? 1 : ticks;
}

}  // namespace prnn
