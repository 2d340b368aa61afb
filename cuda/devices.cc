#include "cuda/devices.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace prnn {
namespace {

// Nothing here was measured by us. Sources:
//   [guide]    CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", and
//              the tuning guides: shared memory that a block can opt in to
//   [sheet]    the vendor's data sheet or white paper
//   [compiled] counted in the machine code of nvcc 13.0 for sm_90a:
//              python cuda/step_time.py MODULE --constants --only "sm_90a.*bfloat16"
//   [study]    numbers others measured, collected in the design study this engine follows
//   [recalled] from memory, not looked up; [assumed] a guess that fits what is known
constexpr std::int64_t kShared80 = 163 * 1024, kShared89 = 99 * 1024, kShared90 = 227 * 1024;

// 132 SMs. [study]: 15 clusters of 8 run at once, so that one GPC has fewer than 16 SMs. How the
// others share the rest is [assumed].
constexpr int kGpcsHopper[] = {18, 18, 18, 16, 16, 16, 16, 14};
constexpr int kGpcsB200[] = {20, 20, 18, 18, 18, 18, 18, 18};                 // [assumed]
constexpr int kGpcsRtx5090[] = {16, 16, 16, 16, 16, 16, 16, 16, 14, 14, 14};  // [assumed]
constexpr int kGpcsSlice[] = {16};                                            // [assumed]

// mma.sync per SM and cycle: 1024 on A100 [sheet: 312 TFLOP/s at 1.41 GHz on 108 SMs], and on
// Hopper [study: 62 % of wgmma's 2048 and more]; Blackwell's like Hopper's [study: 8.5 cycles on a
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
       .clock_ghz = 1.41,            // [sheet] boost
       .l2_bytes_per_s = 4.0e12,     // [recalled], of a theoretical 7.2
       .dram_bytes_per_s = 2.0e12},  // [sheet]
      {.name = "NVIDIA GeForce RTX 4090",
       .compute_capability = 89,
       .sms = 128,
       .shared_bytes = kShared89,
       .clusters = {},
       .cooperative = true,
       .fma_per_clock = 256,
       .clock_ghz = 2.52,             // [sheet] boost
       .l2_bytes_per_s = 5.0e12,      // [recalled]
       .dram_bytes_per_s = 1.01e12},  // [sheet]
      {.name = "NVIDIA H100 80GB HBM3",
       .compute_capability = 90,
       .sms = 132,
       .shared_bytes = kShared90,
       .clusters = clusters_in(kGpcsHopper, 16),
       .cooperative = true,
       .fma_per_clock = 1024,
       .clock_ghz = 1.9,             // [study]: between 1.755 and 1.98
       .l2_bytes_per_s = 5.5e12,     // [study], assumed there: 3.5 to 7
       .dram_bytes_per_s = 3.0e12},  // [recalled], of 3.35 [sheet]
      {.name = "NVIDIA H200",
       .compute_capability = 90,
       .sms = 132,
       .shared_bytes = kShared90,
       .clusters = clusters_in(kGpcsHopper, 16),
       .cooperative = true,
       .fma_per_clock = 1024,
       .clock_ghz = 1.9,             // [study]
       .l2_bytes_per_s = 5.5e12,     // [study], assumed there
       .dram_bytes_per_s = 4.3e12},  // [study]
      // An eighth of the memory and its cache. Whether cooperative launches are to be had depends
      // on the driver; a machine's own answer is asked for there.
      {.name = "NVIDIA H200 MIG 1g.18gb",
       .compute_capability = 90,
       .sms = 16,
       .shared_bytes = kShared90,
       .clusters = clusters_in(kGpcsSlice, 16),
       .cooperative = true,  // [assumed]
       .fma_per_clock = 1024,
       .clock_ghz = 1.9,
       .l2_bytes_per_s = 5.5e12 / 8,  // [assumed]
       .dram_bytes_per_s = 4.3e12 / 8},
      {.name = "NVIDIA B200",
       .compute_capability = 100,
       .sms = 148,
       .shared_bytes = kShared90,
       .clusters = clusters_in(kGpcsB200, 16),
       .cooperative = true,
       .fma_per_clock = 1024,
       .clock_ghz = 1.85,            // [recalled]
       .l2_bytes_per_s = 5.5e12,     // [assumed]: as an H200
       .dram_bytes_per_s = 7.0e12},  // [recalled], of 8 [sheet]
      {.name = "NVIDIA GeForce RTX 5090",
       .compute_capability = 120,
       .sms = 170,
       .shared_bytes = kShared89,
       .clusters = clusters_in(kGpcsRtx5090, 8),  // 8 blocks at most [study]
       .cooperative = true,
       .fma_per_clock = 256,
       .clock_ghz = 2.41,             // [sheet] boost
       .l2_bytes_per_s = 5.0e12,      // [assumed]: as an RTX 4090
       .dram_bytes_per_s = 1.79e12},  // [sheet]
  };
  return all;
}

// Modelled, not measured: from the numbers of others for H100, H800 and B300 [study].
constexpr ModelConstants kModelled = {
    .block_exchange = 60,       // [study]
    .cluster_exchange = 320,    // [study]: half of a DSMEM round trip of 181 to 215, and the waiter
    .cluster_bytes = 16,        // [study]: 3.3 TB/s over all SMs
    .grid_exchange = 700,       // [study]: 600 to 1000; a store and a load of 270 to 310 each
    .l2_latency = 290,          // [study]
    .l2_port_bytes = 64,        // [study]
    .polled_again = 1.3,        // [assumed]
    .shared_bytes = 128,        // [guide]
    .conversions = 64,          // [recalled] for compute capability 9.0; earlier ones have 16
    .reduce = 154,              // [compiled]
    .pointwise = 868,           // [compiled]
    .pointwise_more = 864,      // [compiled]
    .issue = 282,               // [compiled]
    .issue_per_product = 0.15,  // [assumed]
    .overlapped = 0.2,          // [assumed]
    .stage_latency = 500,       // [assumed]: between L2 and memory
    .launch_us = 2.5,           // [recalled]
};

struct Measured {
  std::string_view device;
  ModelConstants constants;
};
// Calibrations go here, one a device: {"NVIDIA H200", {.block_exchange = ...}}.
constexpr std::array<Measured, 0> kMeasured{};

const Measured* find_measured(std::string_view device) {
  const auto* found = std::find_if(kMeasured.begin(), kMeasured.end(),
                                   [&](const Measured& m) { return m.device == device; });
  return found == kMeasured.end() ? nullptr : found;
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
  known.fma_per_clock = like.fma_per_clock;
  const double share = static_cast<double>(known.sms) / like.sms;
  known.l2_bytes_per_s = like.l2_bytes_per_s * share;
  known.dram_bytes_per_s = like.dram_bytes_per_s * share;
  return known;
}

const ModelConstants& model_constants(std::string_view device) {
  const Measured* measured = find_measured(device);
  return measured == nullptr ? kModelled : measured->constants;
}

bool is_measured(std::string_view device) { return find_measured(device) != nullptr; }

}  // namespace prnn
