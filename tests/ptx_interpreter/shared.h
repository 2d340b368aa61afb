// Addresses of shared memory: of this block, in the window from kSharedWindow on; of a block of the
// cluster, with its rank plus 1 in the bits above.
#pragma once
#include "ptx_interpreter/frame.h"

namespace prnn::interpreter {

inline constexpr int kRankShift = 24;

// The host's address of `bytes` bytes of this block's shared memory.
inline char* in_shared(const Frame& frame, std::uint64_t address, std::size_t bytes) {
  const std::uint64_t at = address - kSharedWindow;
  if (address < kSharedWindow || at + bytes > emulator::shared_bytes())
    frame.fail("not in the block's shared memory (address " + std::to_string(address) + ")");
  return emulator::shared_memory() + at;
}

}  // namespace prnn::interpreter
