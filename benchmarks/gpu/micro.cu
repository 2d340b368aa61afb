// What do the operations cost that a step is made of? The constants of the planner's model
// (cuda/devices.h), measured, each beside what the model has for it.
//
//   micro [what...]      one row of JSON for each measurement; all where none is named
//   micro --list
//
// Build: nvcc -std=c++20 -O2 -I<repository> -gencode=arch=compute_90a,code=sm_90a
#include "benchmarks/gpu/micro/cluster.cuh"
#include "benchmarks/gpu/micro/device.cuh"
#include "benchmarks/gpu/micro/grid.cuh"
#include "benchmarks/gpu/micro/launches.cuh"
#include "benchmarks/gpu/micro/memory.cuh"
#include "benchmarks/gpu/micro/sm.cuh"

int main(int argc, char** argv) {
  // What settles most comes first.
  const std::vector<std::pair<std::string, void (*)()>> all = {
      {"device", micro::device},    {"grid", micro::grid},           {"cluster", micro::cluster},
      {"matrix", micro::matrix},    {"bandwidth", micro::bandwidth}, {"latency", micro::latency},
      {"block", micro::block},      {"units", micro::units},         {"sync", micro::sync_grid},
      {"launches", micro::launches}};
  const std::vector<std::string> wanted(argv + 1, argv + argc);
  for (const std::string& name : wanted) {
    const bool known =
        std::any_of(all.begin(), all.end(), [&](auto& m) { return m.first == name; });
    if (!known && name != "--list") {
      std::fprintf(stderr, "micro: no measurement is named %s\n", name.c_str());
      return 2;
    }
  }
  if (wanted == std::vector<std::string>{"--list"}) {
    for (const auto& m : all) std::printf("%s\n", m.first.c_str());
    return 0;
  }
  if (!bench::has_gpu()) {
    bench::row("part", "micro", "error", "no GPU");
    return bench::kNoGpu;
  }
  bench::watch(120);
  for (const auto& [name, measure] : all)
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end()) {
      measure();
      CHECK(cudaDeviceSynchronize());
    }
  return micro::wrong_in_all != 0;
}
