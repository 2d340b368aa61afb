// What a plan takes, modelled: what a step asks for, and how long that is with a device's constants
// (devices.h). Products, conversions and reading overlap; the exchange before them, the sum over
// warps and the cell's math after them do not.
#pragma once
#include <algorithm>

#include "cuda/call.h"
#include "cuda/planner.h"

namespace prnn {

inline int values_of(const Request& request) {
  const CellNumbers n = numbers({.kind = request.cell, .skip = 0, .cap = 0, .norm = request.norm});
  return request.pass == PassKind::kForward ? n.gates + n.kept(false) + 1
                                            : n.kept(false) + n.states + 1 + 2 * n.gates;
}

// What a step asks for.
struct StepWork {
  int products, published;  // rows of the matrix per unit, and values that a unit publishes
  int sources;              // groups whose published values a group multiplies
  std::int64_t padded;      // units
  int phases;               // of a step, each with an exchange
  std::int64_t steps;
  int values;  // that a unit's step reads from memory or writes there
  int norms;   // of a step, for each of which the team adds up (cuda/row_norms.cuh)

  explicit StepWork(const Request& request)
      : products(pass_sizes(request.cell, request.pass, request.is_stack).products),
        published(pass_sizes(request.cell, request.pass, request.is_stack).published),
        sources(request.is_stack ? 2 : 1),
        padded(padded_hidden(request.shape.hidden, request.number)),
        phases(prnn::phases(request.cell)),
        steps(request.shape.time + (request.pass == PassKind::kForward ? 0 : 1)),
        values(values_of(request)),
        norms(!request.norm.is_there                   ? 0
              : request.norm.inner == InnerNorm::kNone ? 1
                                                       : 2) {}

  std::int64_t depth() const { return sources * published * padded; }
};

inline double weight_bytes(const Request& request, std::int64_t hidden) {
  const StepWork work(request);
  const double size = static_cast<double>(hidden);
  return size * size * work.products * work.published * work.sources * value_bytes(request.number);
}

// Of the weights, what a step of a block with so many panels reads from global memory, and of all
// blocks: some have a panel less than others.
inline double streamed_bytes(const Plan& plan, int panels) {
  if (!plan.tile.is_streamed()) return 0;
  const int streamed = plan.k_blocks / plan.panels.count * panels - plan.shared_k_blocks;
  return static_cast<double>(kWarps * std::max(0, streamed) *
                             SharedLayout::k_block_bytes(plan.tile));
}
inline double streamed_bytes(const Request& request, const Plan& plan) {
  const StepWork work(request);
  const int most = plan.panels.count;
  const std::int64_t panels = panels_of(plan.tile, work.products, work.padded, request.number);
  const auto with_most = static_cast<double>(panels - std::int64_t{plan.blocks} * (most - 1));
  return with_most * streamed_bytes(plan, most) +
         (plan.blocks - with_most) * streamed_bytes(plan, most - 1);
}
// Half of the cache, so that what else a step reads and writes does not drive them out. [assumed]
inline bool from_l2(const Request& request, const Device& device, const Plan& plan) {
  return streamed_bytes(request, plan) <= 0.5 * static_cast<double>(device.l2_bytes);
}

// Sets the times of a plan that has its teams.
inline void set_times(const Request& request, const Device& device, Plan& plan) {
  const ModelConstants& c = device.model;
  const StepWork work(request);
  const Tile& tile = plan.tile;
  const double bytes = value_bytes(request.number), rows = tile.rows(), columns = tile.columns();
  const double depth = static_cast<double>(work.depth());
  const double padded_depth =  // of all panels
      plan.k_blocks * tile.warps_k() * kKBlockBytes / bytes;
  const double batch_rows = std::min(columns, static_cast<double>(request.shape.batch));
  const double cycles_per_us = device.clock_ghz * 1e3, us = 1e-6;

  // Products: full float32 is three of TF32, whose operands are converted each time.
  const double panels = plan.panels.count;
  const double multiplied = rows * columns * padded_depth;
  const bool is_two_bytes = value_bytes(request.number) == 2;
  const double per_product = request.number == Number::kFloat32 ? 3 : 1;
  const double converted = request.number == Number::kTf32      ? 1.0 / 16  // the values
                           : request.number == Number::kFloat32 ? 3.0 / 8   // weights too, twice
                                                                : 0.0;
  const double products =
      multiplied * per_product / (device.fma_per_clock * (is_two_bytes ? 1.0 : 0.5));
  const double conversions = multiplied * converted / c.conversions;

  // Reading: weights in shared memory, and the published values, from there or from L2.
  const double l2_bytes = device.l2_bytes_per_s * us / cycles_per_us;
  const double memory_bytes = device.dram_bytes_per_s * us / cycles_per_us;
  const double shared_weights = static_cast<double>(kWarps * plan.shared_k_blocks) *
                                SharedLayout::k_block_bytes(tile) / c.shared_bytes;
  const double streamed_weights = std::max(
      streamed_bytes(request, plan) / (from_l2(request, device, plan) ? l2_bytes : memory_bytes),
      streamed_bytes(plan, plan.panels.count) / c.l2_port_bytes);
  const double weights = std::max(shared_weights, streamed_weights);
  double exchange, values;
  if (plan.exchange == Exchange::kGrid) {
    exchange = c.grid_exchange * (1 + work.norms);
    // Panels after the first find them there.
    const double read = tile.warps_m * batch_rows * depth * bytes * (c.polled_again + panels - 1);
    // One after the other: k blocks in registers, then those in shared memory, some at a time. As
    // in the kernels that the constants are of. A streamed tile always has some on their way.
    const std::int64_t in_registers = plan.k_blocks - plan.shared_k_blocks;
    const int ahead = blocks_ahead(tile, request.number, false);
    const std::int64_t trips =
        tile.is_streamed() ? plan.panels.count
                           : ceil_div(in_registers, ahead) + ceil_div(plan.shared_k_blocks, ahead);
    values = std::max({plan.grid() * read / l2_bytes, read / c.l2_port_bytes,
                       static_cast<double>(trips - 1) * c.l2_latency});
  } else {
    exchange = plan.exchange == Exchange::kBlock
                   ? c.block_exchange
                   : c.cluster_exchange + columns * depth * bytes / c.cluster_bytes;
    values = tile.warps_m * columns * padded_depth * bytes / c.shared_bytes;
  }

  const double longest = std::max({products, conversions, weights, values});
  const double others = products + conversions + weights + values - longest;
  const auto overlapping = [&](double a, double b) {
    return std::max(a, b) + c.overlapped * std::min(a, b);
  };
  const double issue = c.issue + c.issue_per_product * products;
  const double reduce =
      panels * (c.reduce + 2 * tile.warps_k() * rows * columns * 4 / c.shared_bytes);
  const double per_thread = std::max(1.0, panels * plan.units * batch_rows / kThreads);
  const double pointwise =
      (c.pointwise + c.per_value * work.values) * (1 + c.further_unit * (per_thread - 1));
  const double total = exchange + longest + c.overlapped * others + issue + reduce + pointwise;
  const double us_per_cycle = work.phases / cycles_per_us;  // of a phase
  plan.step = {.exchange = exchange * us_per_cycle,
               .product = (overlapping(products, conversions) + issue) * us_per_cycle,
               .load = overlapping(weights, values) * us_per_cycle,
               .reduce = reduce * us_per_cycle,
               .pointwise = pointwise * us_per_cycle,
               .total = total * us_per_cycle};

  const double staged = plan.k_blocks * 16.0 * tile.m_tiles * kKBlockBytes / bytes / 32;
  const double moved =  // what is streamed is written first
      plan.teams * weight_bytes(request, request.shape.hidden) + streamed_bytes(request, plan);
  const double read_us = moved / (device.dram_bytes_per_s * us);
  plan.load_us = std::max(staged * c.stage_latency / cycles_per_us, read_us);
  // A team's jobs are all teams' apart: it meets every group, or a new one each time.
  const std::int64_t loads = std::min(plan.rounds, request.shape.groups);
  plan.call_us = c.launch_us + static_cast<double>(loads) * plan.load_us +
                 static_cast<double>(work.steps) * plan.step_us();
  // Each layer of a stack begins a step after its neighbour.
  if (request.is_stack)
    plan.call_us += static_cast<double>(request.shape.groups - 1) * plan.step.total;
  if (plan.exchange == Exchange::kGrid) {  // the fill
    const Shape& shape = request.shape;
    const double sequences = static_cast<double>(shape.batch) * static_cast<double>(shape.groups);
    const double row_bytes = static_cast<double>(work.published * work.padded) * bytes;
    const double steps = static_cast<double>(shape.time * work.phases);
    const double filled = sequences * steps * row_bytes;
    plan.call_us += c.launch_us + filled / (device.dram_bytes_per_s * us);
  }
}

}  // namespace prnn
