// What the device is: its clock, its memories, the clusters that it runs at once.
#pragma once
#include <map>

#include "benchmarks/gpu/micro/measurement.cuh"

namespace micro {

inline void device() {
  cudaDeviceProp p;
  CHECK(cudaGetDeviceProperties(&p, 0));
  int driver = 0, runtime = 0;
  CHECK(cudaDriverGetVersion(&driver));
  CHECK(cudaRuntimeGetVersion(&runtime));
  bench::row("part", "micro", "what", "device", "name", p.name, "compute_capability",
             bench::compute_capability(), "sms", p.multiProcessorCount, "shared_bytes",
             p.sharedMemPerBlockOptin, "l2_bytes", p.l2CacheSize, "cooperative",
             bench::attribute(cudaDevAttrCooperativeLaunch) != 0, "driver", driver, "runtime",
             runtime);
  report("clock", "clock_ghz", clock_ghz(), "GHz", {1.9, 1.6, 2.1});
  // A block that fills an SM, in clusters of each size.
  const std::map<int, Expected> expected = {
      {2, {66, 66, 66}}, {4, {33, 30, 33}}, {8, {15, 14, 16}}, {16, {7, 6, 8}}};
  if (bench::compute_capability() < 90) return;
  for (const auto& [size, e] : expected) {
    const Launch how{
        .blocks = size, .threads = kThreads, .shared_bytes = 200 * 1024, .cluster = size};
    report("resident clusters", "clusters", bench::resident_clusters(nothing, how), "clusters", e,
           "size", size);
  }
}

}  // namespace micro
