// What the planner must know of a device, the constants of its model of time among it, and the
// devices it knows without asking one.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cuda/tile.h"

namespace prnn {

// Of clusters of n blocks, each block with an SM to itself, how many run at once: [n]. Zero where
// the device runs none; n = 1 is not asked for.
using ClusterCounts = std::array<int, kMaxCluster + 1>;

// Of the model of a step (cost.h). Cycles of an SM unless said otherwise.
struct ModelConstants {
  std::string fitted_on;     // the device
  double block_exchange;     // __syncthreads
  double cluster_exchange;   // st.async until the mbarrier's waiter goes on
  double cluster_bytes;      // that arrive at an SM per cycle
  double grid_exchange;      // a store to L2 until another SM's poll has seen it
  double l2_latency;         // of a load, for those that wait for the one before
  double l2_port_bytes;      // from L2 into one SM per cycle
  double polled_again;       // bytes read per byte needed
  double shared_bytes;       // of shared memory per cycle
  double conversions;        // cvt.rna.tf32 per cycle
  double reduce;             // the barrier and latencies of the sum over warps
  double pointwise;          // one unit's step: transcendental functions in series
  double per_value;          // and each value that it reads from memory or writes there
  double further_unit;       // part of both that each further unit of the same thread takes
  double issue;              // instructions around the products
  double issue_per_product;  // and per cycle of matrix product
  double overlapped;         // part that still shows of work that another's time covers
  double stage_latency;      // a warp's 32 weights from global memory, one load in flight
  double launch_us;          // of a kernel, and again of the fill before a grid's
};

// Registers are no part of it: each SM since compute capability 8.0 has the 65536 that a block of
// kThreads threads with 255 each takes.
struct Device {
  std::string name;           // as CUDA and JAX's device_kind have it
  int compute_capability;     // 10·major + minor
  int sms;                    // that a kernel of this process may use
  std::int64_t shared_bytes;  // the most that a block can opt in to
  ClusterCounts clusters;
  bool cooperative;   // launches whose blocks are all resident, or which fail
  int fma_per_clock;  // of an SM: mma.sync on 16-bit numbers, float sums; TF32 does half as many
  double clock_ghz;
  double l2_bytes_per_s, dram_bytes_per_s;  // read by all SMs at once
  std::int64_t l2_bytes;
  ModelConstants model;
};

// Clusters within each of a device's GPCs, which have these numbers of SMs.
ClusterCounts clusters_in(std::span<const int> gpc_sms, int largest);

std::span<const Device> recorded_devices();
// Null where there is no record of that name.
const Device* find_device(std::string_view name);

// A device of which name, compute_capability, sms and cooperative are known, and may be
// shared_bytes and clock_ghz: what is zero is taken from the record of that name, or from the one
// nearest in compute capability. What a device has more of with more SMs, in proportion.
Device estimated(Device known);

}  // namespace prnn
