// Runs the CUDA kernels' own sources on the host: each thread of the grid is a fiber, and the
// operations of cuda/ptx.h are carried out by a scheduler that takes the threads in an order drawn
// from a seed, delays what the memory model lets it delay, and checks what the GPU would only
// punish with a hang. README.md says what it cannot show.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace prnn::emulator {

struct Launch {
  int grid = 1;     // blocks
  int cluster = 1;  // blocks per cluster
  int block = 32;   // threads per block, whole warps
  std::size_t shared_bytes = 0;
  bool cooperative = false;  // an error unless all blocks are resident at the same time
};

struct Options {
  std::uint64_t seed = 1;
  bool random_order = true;  // else round robin
  bool weak_stores = true;   // stores to other blocks arrive late and in any order
  int resident_blocks = 0;   // how many run at a time, in whole clusters; 0: all
  // Where every thread waits and nothing is under way, time passes: kernels' watchdogs then end
  // them. Else that is an error at once.
  bool time_passes = false;
  std::string fault;  // one of fault_names(): a mistake made on purpose
};

struct Statistics {
  std::uint64_t switches = 0, matrix_products = 0, barriers = 0, loads = 0, stores = 0;
};

// What the device would have answered with an error, a hang or wrong numbers.
class EmulatorError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Runs `kernel` in each thread of the grid and returns when all have ended. Throws EmulatorError,
// or what the kernel itself threw. May be called from several threads of the host at once.
Statistics launch(const Launch& shape, const std::function<void()>& kernel,
                  const Options& options = {});

std::vector<std::string_view> fault_names();

}  // namespace prnn::emulator
