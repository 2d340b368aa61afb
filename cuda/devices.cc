#include "cuda/devices.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace prnn {
namespace {

// Sources:
//   [micro]    measured on an H100 by benchmarks/gpu/micro.cu (benchmarks/results/gpu/h100.json)
//   [guide]    CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", and
//              the tuning guides: shared memory that a block can opt in to
//   [sheet]    the vendor's data sheet or white paper
//   [study]    numbers others measured, collected in the design study this engine follows
//   [recalled] from memory, not looked up; [assumed] a guess that fits what is known
constexpr std::int64_t kShared80 = 163 * 1024, kShared89 = 99 * 1024, kShared90 = 227 * 1024;

// Fitted to 100 plans of 28 calls in bfloat16 of 256 units (benchmarks/results/gpu/h200-paced.json)
// by python -m benchmarks.gpu.calibrate, but for l2_latency, conversions and launch_us (micro.cu on
// an H100), and stage_latency (segments.cu there), l2_port_bytes [study] and shared_bytes [guide].
// What is fitted describes the whole: none by itself is a fact of the device. Nothing better is
// known of the others.
const ModelConstants kModel = {
    .fitted_on = "NVIDIA H200",
    .block_exchange = 1150,
    .cluster_exchange = 250,
    .cluster_bytes = 17.3,
    .grid_exchange = 1320,
    .l2_latency = 296,
    .l2_port_bytes = 64,
    .polled_again = 1,
    .shared_bytes = 128,
    .conversions = 28.9,
    .reduce = 73.6,
    .pointwise = 548,
    .per_value = 41.1,
    .further_unit = 0.898,
    .issue = 101,
    .issue_per_product = 0.392,
    .overlapped = 0.314,
    .stage_latency = 400,
    .launch_us = 3.0,
};
// 132 SMs. [study]: 15 clusters of 8 run at once, so that one GPC has fewer than 16 SMs. How the
// others share the rest is [assumed].
constexpr int kGpcsHopper[] = {18, 18, 18, 16, 16, 16, 16, 14};
constexpr int kGpcsB200[] = {20, 20, 18, 18, 18, 18, 18, 18};                 // [assumed]
constexpr int kGpcsRtx5090[] = {16, 16, 16, 16, 16, 16, 16, 16, 14, 14, 14};  // [assumed]
constexpr int kGpcsSlice[] = {16};                                            // [assumed]

// mma.sync per SM and cycle: 1024 on A100 [sheet: 312 TFLOP/s at 1.41 GHz on 108 SMs], 1363 on
// Hopper [micro]; 1024 on Blackwell [study: 8.5 cycles on a
// B300]. GeForce sums in float at half rate: 256 [sheet: 165 and 209 TFLOP/s].
const std::vector<Device>& devices() {
  static const std::vector<Device> all = {
      {.name = "NVIDIA A100-SXM4-80GB",
       .compute_capability = 80,
       .sms = 108,
       .shared_bytes = kShared80,
       .clusters = {},
       .cooperative = true,
       .fma_per_clock = 1024,
       .clock_ghz = 1.41,           // [sheet] boost
       .l2_bytes_per_s = 4.0e12,    // [recalled], of a theoretical 7.2
       .dram_bytes_per_s = 2.0e12,  // [sheet]
       .l2_bytes = 40 << 20,        // [sheet]
       .model = kModel},
      {.name = "NVIDIA GeForce RTX 4090",
       .compute_capability = 89,
       .sms = 128,
       .shared_bytes = kShared89,
       .clusters = {},
       .cooperative = true,
       .fma_per_clock = 256,
       .clock_ghz = 2.52,            // [sheet] boost
       .l2_bytes_per_s = 5.0e12,     // [recalled]
       .dram_bytes_per_s = 1.01e12,  // [sheet]
       .l2_bytes = 72 << 20,         // [sheet]
       .model = kModel},
      {.name = "NVIDIA H100 80GB HBM3",
       .compute_capability = 90,
       .sms = 132,
       .shared_bytes = kShared90,
       .clusters = clusters_in(kGpcsHopper, 16),
       .cooperative = true,
       .fma_per_clock = 1363,       // [micro]
       .clock_ghz = 1.98,           // [micro]
       .l2_bytes_per_s = 12e12,     // [micro]
       .dram_bytes_per_s = 3.0e12,  // [micro], of 3.35 [sheet]
       .l2_bytes = 50 << 20,        // [sheet]
       .model = kModel},
      {.name = "NVIDIA H200",
       .compute_capability = 90,
       .sms = 132,
       .shared_bytes = kShared90,
       .clusters = clusters_in(kGpcsHopper, 16),
       .cooperative = true,
       .fma_per_clock = 1363,       // [micro]
       .clock_ghz = 1.98,           // [micro]
       .l2_bytes_per_s = 12e12,     // [micro]
       .dram_bytes_per_s = 4.3e12,  // [study]
       .l2_bytes = 50 << 20,        // [sheet]
       .model = kModel},
      // An eighth of the memory and its cache. Whether cooperative launches are to be had depends
      // on the driver; a machine's own answer is asked for there.
      {.name = "NVIDIA H200 MIG 1g.18gb",
       .compute_capability = 90,
       .sms = 16,
       .shared_bytes = kShared90,
       .clusters = clusters_in(kGpcsSlice, 16),
       .cooperative = true,          // [assumed]
       .fma_per_clock = 1363,        // [micro]
       .clock_ghz = 1.98,            // [micro]
       .l2_bytes_per_s = 12e12 / 8,  // [micro]
       .dram_bytes_per_s = 4.3e12 / 8,
       .l2_bytes = (50 << 20) / 8,
       .model = kModel},
      {.name = "NVIDIA B200",
       .compute_capability = 100,
       .sms = 148,
       .shared_bytes = kShared90,
       .clusters = clusters_in(kGpcsB200, 16),
       .cooperative = true,
       .fma_per_clock = 1024,
       .clock_ghz = 1.85,           // [recalled]
       .l2_bytes_per_s = 5.5e12,    // [assumed]: as an H200
       .dram_bytes_per_s = 7.0e12,  // [recalled], of 8 [sheet]
       .l2_bytes = 126 << 20,       // [recalled]
       .model = kModel},
      {.name = "NVIDIA GeForce RTX 5090",
       .compute_capability = 120,
       .sms = 170,
       .shared_bytes = kShared89,
       .clusters = clusters_in(kGpcsRtx5090, 8),  // 8 blocks at most [study]
       .cooperative = true,
       .fma_per_clock = 256,
       .clock_ghz = 2.41,            // [sheet] boost
       .l2_bytes_per_s = 5.0e12,     // [assumed]: as an RTX 4090
       .dram_bytes_per_s = 1.79e12,  // [sheet]
       .l2_bytes = 96 << 20,         // [sheet]
       .model = kModel},
  };
  return all;
}

}  // namespace

ClusterCounts clusters_in(std::span<const int> gpc_sms, int largest) {
  ClusterCounts counts{};
  for (int size = 2; size <= largest; ++size)
    for (const int sms : gpc_sms) counts[size] += sms / size;
  return counts;
}

std::span<const Device> recorded_devices() { return devices(); }

const Device* find_device(std::string_view name) {
  for (const Device& device : devices())
    if (device.name == name) return &device;
  return nullptr;
}

Device estimated(Device known) {
  const auto distance = [&](const Device& device) {
    return device.name == known.name
               ? -1
               : std::abs(device.compute_capability - known.compute_capability);
  };
  const std::vector<Device>& all = devices();
  const Device& like = *std::min_element(
      all.begin(), all.end(),
      [&](const Device& a, const Device& b) { return distance(a) < distance(b); });
  if (known.shared_bytes == 0) known.shared_bytes = like.shared_bytes;
  if (known.clock_ghz == 0) known.clock_ghz = like.clock_ghz;
  for (std::size_t size = 0; size < known.clusters.size(); ++size)
    known.clusters[size] = like.clusters[size] * known.sms / like.sms;
  known.model = like.model;
  known.fma_per_clock = like.fma_per_clock;
  const double share = static_cast<double>(known.sms) / like.sms;
  known.l2_bytes_per_s = like.l2_bytes_per_s * share;
  known.dram_bytes_per_s = like.dram_bytes_per_s * share;
  known.l2_bytes = static_cast<std::int64_t>(static_cast<double>(like.l2_bytes) * share);
  return known;
}

}  // namespace prnn
