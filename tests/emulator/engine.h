// The CUDA engine on the emulator: the kernels' own sources, planned or with a plan by hand.
#pragma once
#include <cstring>

#include "cuda/instances.h"
#include "emulator/emulator.h"

namespace prnn::emulator {

// A plan with the given instance, whatever the planner would say. Teams beyond the jobs idle; a
// streamed tile has one.
inline Plan plan_by_hand(const CudaCall& call, const Instance& instance, int teams) {
  const PassSizes sizes = pass_sizes(call.cell.kind, call.pass, call.is_stack);
  const std::int64_t padded = padded_hidden(call.shape.hidden, call.number);
  const std::int64_t depth = padded * sizes.published * (call.is_stack ? 2 : 1);
  Plan plan{};
  plan.exchange = instance.exchange;
  plan.tile = instance.tile;
  plan.units = units_per_block(instance.tile, sizes.products, call.number);
  plan.blocks = static_cast<int>(ceil_div(padded, plan.units));
  plan.teams = teams;
  if (instance.tile
          .is_streamed()) {  // two panels to a block, of the first one more in shared memory
    plan.panels = panels_in(call.cell.kind, instance.tile, plan.units, 2);
    plan.panels.held = k_blocks(instance.tile, depth, call.number) / 2 * 2 + 1;
    plan.blocks = static_cast<int>(ceil_div(plan.blocks, plan.panels.count));
    plan.teams = 1;
  }
  plan.shared_bytes =
      SharedLayout::of(instance.tile, instance.exchange, depth, call.number, plan.panels).bytes;
  return plan;
}

// As cuda/instances.cu launches it on a device, after it has filled the mailbox.
inline Launch launch_of(const Plan& plan) {
  return {plan.grid(), plan.exchange == Exchange::kCluster ? plan.blocks : 1, kThreads,
          static_cast<std::size_t>(plan.shared_bytes), plan.exchange == Exchange::kGrid};
}
// With bytes that mean "unwritten", or others, for a test.
template <class Pass>
void fill_mailbox(Exchange exchange, const Task<Pass>& task, int unwritten = 0xff) {
  if (exchange != Exchange::kGrid) return;
  if constexpr (kNormsRows<Pass>) {
    const int columns = instances_of_norms(Pass::kProducts)[0].tile.columns();
    const int pairs = 2 * task.teams * columns * Pass::kNorms * task.blocks;
    std::memset(static_cast<void*>(task.norms), unwritten,
                static_cast<std::size_t>(pairs) * sizeof(ptx::Word4));
  }
  const Shape& shape = task.pass.shape;
  const auto row_bytes = static_cast<std::size_t>(shape.batch * shape.groups * task.padded) *
                         sizeof(typename Pass::Value);
  if (task.initial != nullptr) std::memset(static_cast<void*>(task.initial), unwritten, row_bytes);
  std::memset(static_cast<void*>(task.mailbox), unwritten,
              row_bytes * static_cast<std::size_t>(shape.time * Pass::kPublished));
}

}  // namespace prnn::emulator
