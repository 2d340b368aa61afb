// The CUDA engine on the emulator: the kernels' own sources, planned or with a plan by hand.
#pragma once
#include "cuda/instances.h"
#include "emulator/emulator.h"

namespace prnn::emulator {

// A plan with the given instance, whatever the planner would say. Teams beyond the jobs idle.
inline Plan plan_by_hand(const CudaCall& call, const Instance& instance, int teams) {
  const PassSizes sizes = pass_sizes(call.cell.kind, call.pass);
  const std::int64_t padded = padded_hidden(call.shape.hidden, call.number);
  const std::int64_t depth = padded * sizes.published;
  Plan plan{};
  plan.exchange = instance.exchange;
  plan.tile = instance.tile;
  plan.units = units_per_block(instance.tile, sizes.products, call.number);
  plan.blocks = static_cast<int>(ceil_div(padded, plan.units));
  plan.teams = teams;
  plan.shared_bytes = SharedLayout::of(instance.tile, instance.exchange, depth, call.number).bytes;
  return plan;
}

// What cuda/instances.cu does on a device: fills the mailbox, then launches.
template <Number kNumber>
Statistics run(const CudaCall& call, const Plan& plan, const Options& options) {
  Statistics statistics;
  const bool found = visit_instance<kNumber>(
      call, plan, [&]<Exchange kExchange, Tile kTile, class Pass>(const Task<Pass>& task) {
        const std::size_t bytes =
            static_cast<std::size_t>(call.shape.time * call.shape.batch * call.shape.groups *
                                     task.padded * Pass::kPublished * value_bytes(kNumber));
        if (kExchange == Exchange::kGrid) {
          if (const Mailbox mailbox = mailbox_of(call); mailbox.initial != nullptr)
            __builtin_memset(
                mailbox.initial, 0xff,
                call.shape.batch * call.shape.groups * task.padded * value_bytes(kNumber));
          __builtin_memset(static_cast<void*>(task.mailbox), 0xff, bytes);
        }
        const Launch launch{plan.grid(), kExchange == Exchange::kCluster ? plan.blocks : 1,
                            kThreads, static_cast<std::size_t>(plan.shared_bytes),
                            kExchange == Exchange::kGrid};
        statistics = emulator::launch(
            launch, [&] { Engine<Pass, kNumber, kExchange, kTile>(task).run(); }, options);
      });
  if (!found) throw EmulatorError("no such instance is compiled");
  return statistics;
}

}  // namespace prnn::emulator
