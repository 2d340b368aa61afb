// Every plan that the planner considers, timed on this GPU beside what its model expects: what
// cuda/devices.cc is calibrated with.
//
//   plans [seconds [smoke]]
//
// A row of JSON for each plan: µs per step, which is the difference of two lengths, so that what a
// call costs is not in it; and what the call costs beside. No point begins after `seconds`.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "native/cuda_data.h"
#include "native/gpu.h"

namespace prnn {
namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point began) {
  return std::chrono::duration<double, std::micro>(Clock::now() - began).count();
}

struct Point {
  const char* cell;
  Number number;
  PassKind pass;
  std::int64_t hidden, batch;
};

struct Sizes {
  std::int64_t short_time, long_time;
  int repeats;
  std::vector<std::int64_t> hidden, batches, large;
};

// Those of most users first: a run that is cut off has them.
std::vector<Point> points(const Sizes& sizes) {
  std::vector<Point> out;
  for (const auto& of_these : {sizes.hidden, sizes.large})
    for (const Number number :
         {Number::kBfloat16, Number::kTf32, Number::kFloat16, Number::kFloat32})
      for (const std::int64_t hidden : of_these)
        for (const std::int64_t batch : sizes.batches)
          for (const char* cell : {"lstm", "gru", "rnn_tanh", "slstm"})
            for (const PassKind pass : {PassKind::kForward, PassKind::kBackward})
              out.push_back({cell, number, pass, hidden, batch});
  return out;
}

// The least time of a call of so many steps, in µs.
template <class Value>
double call_us(Gpu& gpu, const Point& p, const Plan& plan, std::int64_t time, int repeats) {
  const Shape shape{time, p.batch, 1, p.hidden, false, false, false};
  const Case c{p.cell, p.pass, p.number, kPlanned, shape, plan.teams};
  const Data<Value, DeviceMemory> data(c, cell_spec(p.cell), Values::kZero);
  gpu.prepare(data.call, plan);
  gpu.run(data.call, plan);  // the first loads the kernel
  double least = 1e30;
  for (int n = 0; n < repeats; ++n) {
    const auto began = Clock::now();
    gpu.run(data.call, plan);
    least = std::min(least, us_since(began));
  }
  return least;
}
double call_us(Gpu& gpu, const Point& p, const Plan& plan, std::int64_t time, int repeats) {
  switch (p.number) {
    case Number::kBfloat16:
      return call_us<Bfloat16>(gpu, p, plan, time, repeats);
    case Number::kFloat16:
      return call_us<Float16>(gpu, p, plan, time, repeats);
    default:
      return call_us<float>(gpu, p, plan, time, repeats);
  }
}

const char* products(Number number) { return number == Number::kTf32 ? "tf32" : name(number); }

int run(double seconds, const Sizes& sizes) {
  const auto began = Clock::now();
  Gpu gpu;
  int count = 0;
  for (const Point& p : points(sizes)) {
    if (us_since(began) > 1e6 * seconds) break;
    const Shape shape{sizes.long_time, p.batch, 1, p.hidden, false, false, false};
    const CellKind cell = cell_spec(p.cell).kind;
    const Planning planning = plan({cell, p.pass, p.number, shape, 0}, gpu.device());
    for (const Candidate& candidate : planning.candidates) {
      if (!candidate.plan) continue;
      const Plan& plan = *candidate.plan;
      const double short_us = call_us(gpu, p, plan, sizes.short_time, sizes.repeats);
      const double long_us = call_us(gpu, p, plan, sizes.long_time, sizes.repeats);
      const double steps = static_cast<double>(sizes.long_time - sizes.short_time);
      const double step_us = (long_us - short_us) / steps;
      const bool is_best =
          plan.exchange == planning.best->exchange && plan.tile == planning.best->tile;
      std::printf(
          "{\"part\": \"plans\", \"cell\": \"%s\", \"pass\": \"%s\", \"products\": \"%s\", "
          "\"hidden\": %d, \"batch\": %d, \"exchange\": \"%s\", \"rows\": %d, \"columns\": %d, "
          "\"k_blocks\": %d, \"shared_k_blocks\": %d, \"is_streamed\": %s, "
          "\"teams\": %d, \"blocks\": %d, \"rounds\": %d, \"step_us\": %.4f, \"modelled_us\": "
          "%.4f, \"call_us\": %.2f, "
          "\"modelled_call_us\": %.2f, \"is_chosen\": %s}\n",
          p.cell, p.pass == PassKind::kForward ? "forward" : "backward", products(p.number),
          static_cast<int>(p.hidden), static_cast<int>(p.batch), name(plan.exchange),
          plan.tile.rows(), plan.tile.columns(), plan.k_blocks, plan.shared_k_blocks,
          plan.tile.is_streamed() ? "true" : "false", plan.teams, plan.blocks,
          static_cast<int>(plan.rounds), step_us, plan.step_us(),
          long_us - step_us * static_cast<double>(sizes.long_time),
          plan.call_us - plan.step_us() * static_cast<double>(sizes.long_time),
          is_best ? "true" : "false");
      std::fflush(stdout);
      ++count;
    }
  }
  std::printf("{\"part\": \"plans\", \"ok\": %s, \"plans\": %d, \"device\": \"%s\"}\n",
              count > 0 ? "true" : "false", count, gpu.device().name.c_str());
  return count == 0;
}

}  // namespace
}  // namespace prnn

int main(int argc, char** argv) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 77;
  const bool is_smoke = argc > 2 && std::string_view(argv[2]) == "smoke";
  const prnn::Sizes full{
      128, 640, 5, {256, 1024, 512, 128, 768}, {16, 1, 64, 8}, {2048, 4096, 1536}};
  const prnn::Sizes tiny{2, 4, 1, {40}, {3}, {}};
  return prnn::run(argc > 1 ? std::atof(argv[1]) : 1e9, is_smoke ? tiny : full);
}
