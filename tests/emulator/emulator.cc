#include "emulator/emulator.h"

#include <algorithm>

#include "emulator/faults.h"
#include "emulator/machine.h"
#include "emulator/sanitizers.h"

namespace prnn::emulator {
namespace {

// Of its 8128, a few are for threads of the host.
constexpr int kMostSanitizedThreads = 8000;

// What the driver would refuse.
void check(const Launch& shape, const Options& options) {
  const auto require = [](bool ok, const std::string& what) {
    if (!ok) throw EmulatorError("launch: " + what);
  };
  const std::string grid = "a grid of " + std::to_string(shape.grid) + " blocks";
  require(running() == nullptr, "from within a kernel");
  require(shape.grid > 0 && shape.cluster > 0 && shape.grid % shape.cluster == 0,
          grid + " is not a number of clusters of " + std::to_string(shape.cluster));
  require(shape.block > 0 && shape.block <= 1024 && shape.block % kLanes == 0,
          std::to_string(shape.block) + " threads per block are not 1 to 32 warps");
  const int resident = options.resident_blocks == 0 ? shape.grid : options.resident_blocks;
  require(resident >= shape.cluster, "no cluster can be resident");
  require(!shape.cooperative || resident / shape.cluster >= shape.grid / shape.cluster,
          "cooperative, but of " + grid + " only " + std::to_string(resident) + " can be resident");
  const int threads = std::min(resident, shape.grid) * shape.block;
  require(!sanitizers::kThread || threads <= kMostSanitizedThreads,
          std::to_string(threads) + " threads at a time, but ThreadSanitizer knows at most " +
              std::to_string(kMostSanitizedThreads));
}

}  // namespace

Statistics launch(const Launch& shape, const std::function<void()>& kernel,
                  const Options& options) {
  const sanitizers::Ignore ignore;
  check(shape, options);
  Machine machine(shape, kernel, options);
  return machine.run();
}

std::vector<std::string_view> fault_names() {
  std::vector<std::string_view> out;
  for (const auto& [name, fault] : kFaults) {
    if (fault != Fault::kNone) out.push_back(name);
  }
  return out;
}

}  // namespace prnn::emulator
