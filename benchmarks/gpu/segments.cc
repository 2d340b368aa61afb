// Where a step's time goes on this GPU, part by part: what calibrates the planner's model beside
// micro.cu, and says which part of the hot loop is worth mending.
//
//   segments [smoke]
//
// A row of JSON for the fastest plan of each exchange: cycles of a step, medians over the blocks.
#include "benchmarks/gpu/segments.h"

#include <algorithm>
#include <string_view>

#include "native/cuda_data.h"
#include "native/gpu.h"

namespace prnn {
namespace {

double median_of(const std::vector<std::uint32_t>& cycles, int segment) {
  std::vector<std::uint32_t> all;
  for (auto n = static_cast<std::size_t>(segment); n < cycles.size(); n += kSegmentCount)
    all.push_back(cycles[n]);
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

void report(PassKind pass, const Shape& shape, const Plan& plan, double clock_ghz,
            const std::vector<std::uint32_t>& cycles) {
  std::printf(
      "{\"part\": \"segments\", \"pass\": \"%s\", \"hidden\": %d, \"batch\": %d, "
      "\"exchange\": \"%s\", \"rows\": %d, \"columns\": %d, \"k_blocks\": %d, "
      "\"shared_k_blocks\": %d, \"blocks\": %d, \"modelled\": %.0f",
      pass == PassKind::kForward ? "forward" : "backward", static_cast<int>(shape.hidden),
      static_cast<int>(shape.batch), name(plan.exchange), plan.tile.rows(), plan.tile.columns(),
      plan.k_blocks, plan.shared_k_blocks, plan.blocks, plan.step.total * clock_ghz * 1e3);
  for (int n = 0; n < kSegmentCount; ++n) {
    const std::int64_t count = n == 0 ? 1 : shape.time * plan.rounds;
    std::printf(", \"%s\": %.1f", kSegments[n], median_of(cycles, n) / static_cast<double>(count));
  }
  std::printf("}\n");
  std::fflush(stdout);
}

int run(std::int64_t time, const std::vector<std::int64_t>& sizes,
        const std::vector<std::int64_t>& batches) {
  const Gpu gpu;
  const Device& device = gpu.device();
  for (const std::int64_t hidden : sizes)
    for (const std::int64_t batch : batches)
      for (const PassKind pass : {PassKind::kForward, PassKind::kBackward}) {
        const Shape shape{time, batch, 1, hidden, false, false, false};
        const Request request{CellKind::kLstm, pass, Number::kBfloat16, shape, 0};
        for (const Exchange exchange : {Exchange::kBlock, Exchange::kCluster, Exchange::kGrid}) {
          const Planning planning = plan(request, device);
          const Plan* best = nullptr;
          for (const Candidate& candidate : planning.candidates)
            if (candidate.plan && candidate.plan->exchange == exchange &&
                (best == nullptr || candidate.plan->call_us < best->call_us))
              best = &*candidate.plan;
          if (best == nullptr) continue;
          const Case c{"lstm", pass, Number::kBfloat16, kPlanned, shape, best->teams};
          const Data<Bfloat16, DeviceMemory> data(c, cell_spec("lstm"), Values::kZero);
          const Array<std::uint32_t, DeviceMemory> cycles(best->grid() * kSegmentCount);
          require(launch_stamped(gpu.watched(data.call), *best, device, gpu.stream(), cycles.get()),
                  "a stamped kernel");
          gpu.wait();
          report(pass, shape, *best, device.clock_ghz, cycles.copy());
        }
      }
  return 0;
}

}  // namespace
}  // namespace prnn

int main(int argc, char** argv) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 77;
  const bool is_smoke = argc > 1 && std::string_view(argv[1]) == "smoke";
  return is_smoke ? prnn::run(4, {40}, {3}) : prnn::run(512, {128, 256, 1024}, {1, 16, 64});
}
