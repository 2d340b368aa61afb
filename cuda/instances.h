// From the numbers of a call and a plan to the types of an instance.
#pragma once
#include <bit>
#include <type_traits>
#include <utility>

#include "core/half_step_passes.h"
#include "core/normed_unit_passes.h"
#include "core/stack_passes.h"
#include "cuda/call.h"
#include "cuda/engine.cuh"
#include "cuda/planner.h"

namespace prnn {

// Calls f(cell) for the call's cell. Tanh and ReLU of the RNN are one instance; so are the general
// cells with bounds inside of their steps and without, which are bounds that nothing reaches.
template <class F>
bool visit_cuda_cell(const CellSpec& cell, F&& f) {
  const ClippedActivations general(cell.f, cell.clip);
  switch (cell.kind) {
    case CellKind::kRnnTanh:
    case CellKind::kRnnRelu:
      return f(Rnn<TanhOrRelu>{{cell.kind == CellKind::kRnnTanh, cell.cap}, cell.skip});
    case CellKind::kGeneralRnn:
      return f(ClippedRnn{general.candidate, cell.skip});
    case CellKind::kLstm:
      return cell.norm.is_there ? f(NormedLstm{cell.norm}) : f(Lstm{});
    case CellKind::kGeneralLstm:
      return f(ClippedLstm{general, cell.has_peepholes});
    case CellKind::kSlstm:
      return f(Slstm{});
    case CellKind::kGru:
      return cell.norm.is_there ? f(NormedGru{cell.norm}) : f(Gru{});
    case CellKind::kGeneralGru:
      return f(ClippedGru{general});
    case CellKind::kGruResetBefore:
      return f(ClippedGruResetBefore{general});
    case CellKind::kProjectedLstm:
    case CellKind::kGeneralProjectedLstm:
      return false;  // two products in series of different sizes: no kernel
  }
  return false;
}

template <class Pass>
constexpr std::span<const Instance> instances_of() {
  if (Pass::kSources > 1) return instances_of_stack(Pass::kProducts);
  using Cell = std::remove_cvref_t<decltype(Pass::cell)>;
  if (NormedCell<Cell>) return instances_of_norms(Pass::kProducts);
  if (TwoPhaseCell<Cell>) return instances_of_phases(Pass::kProducts);
  return instances(Pass::kProducts, has_few_users<Cell>);
}

// Calls f.operator()<kExchange, kTile>(task) if that instance is the one wanted.
template <Number kNumber, std::size_t kIndex, class Pass, class F>
bool visit_if(const Instance& wanted, const Task<Pass>& task, F&& f) {
  constexpr Instance kInstance = instances_of<Pass>()[kIndex];
  if constexpr (is_compiled(kInstance, kNumber) &&
                !(kIsPlain<Pass> && !has_plain_kernels(kInstance))) {
    if (kInstance == wanted) {
      f.template operator()<kInstance.exchange, kInstance.tile>(task);
      return true;
    }
  }
  return false;
}

// Calls f.operator()<kExchange, kTile>(task) for the instance that the plan names; false where none
// is compiled.
template <Number kNumber, class F>
bool visit_instance(const CudaCall& call, const Plan& plan, F&& f) {
  using Io = UnitIo<kNumber>;
  using Value = typename Io::Value;
  return visit_cuda_cell(call.cell, [&](auto cell) {
    using C = decltype(cell);
    const auto with_pass = [&]<class Pass>(const Pass& pass, const void* output) {
      const Mailbox mailbox = mailbox_of(call);
      const bool is_output = mailbox.separate == nullptr;
      const Task<Pass> task{
          .pass = pass,
          .blocks = plan.blocks,
          .teams = plan.teams,
          .padded = padded_hidden(call.shape.hidden, kNumber),
          .panels = plan.panels,
          .streamed = streamed_of(call),
          .mailbox = static_cast<Value*>(is_output ? const_cast<void*>(output) : mailbox.separate),
          .output_is_mailbox = is_output,
          .initial = static_cast<Value*>(mailbox.initial),
          .norms = static_cast<ptx::Word4*>(mailbox.norms),
          .watchdog = call.watchdog};
      return [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
        return (visit_if<kNumber, kIndex>({plan.exchange, plan.tile}, task, f) || ...);
      }(std::make_index_sequence<instances_of<Pass>().size()>{});
    };
    const auto with_shape = [&]<class S>(const S& shape) {
      if (call.pass == PassKind::kForward) {
        const auto at = std::bit_cast<ForwardArrays<Value>>(call.forward);
        return with_pass(ForwardPass<C, Io, Value, S>{{cell, shape}, at}, at.y);
      }
      const auto at = std::bit_cast<BackwardArrays<Value>>(call.backward);
      return with_pass(BackwardPass<C, Io, Value, S>{{cell, shape}, at}, at.da_h);
    };
    const auto with_stack = [&]<class S>(const S& shape) {  // of a cell that has such
      if (call.pass == PassKind::kForward) {
        const auto at = std::bit_cast<ForwardArrays<Value>>(call.forward);
        return with_pass(StackForwardPass<C, Io, Value, S>{{{cell, shape}, at}}, at.y);
      }
      const auto at = std::bit_cast<BackwardArrays<Value>>(call.backward);
      return with_pass(StackBackwardPass<C, Io, Value, S>{{{cell, shape}, at}}, at.da_h);
    };
    if (call.is_stack) {
      if constexpr (kHasStackKernels<C>)
        if (is_plain(call)) return with_stack(plain(call.shape));
      return false;
    }
    if constexpr (NormedCell<C>) {
      if (call.pass == PassKind::kForward) {
        const auto at = std::bit_cast<ForwardArrays<Value>>(call.forward);
        return with_pass(NormedUnitForwardPass<C, Io, Value>{{{{cell, call.shape}}, at}}, at.y);
      }
      const auto at = std::bit_cast<BackwardArrays<Value>>(call.backward);
      return with_pass(NormedUnitBackwardPass<C, Io, Value>{{{{cell, call.shape}}, at}}, at.da_h);
    } else if constexpr (TwoPhaseCell<C>) {
      const Shape shape = in_half_steps(call.shape);
      if (call.pass == PassKind::kForward) {
        const auto at = std::bit_cast<ForwardArrays<Value>>(call.forward);
        return with_pass(HalfStepForwardPass<C, Io, Value>{{cell, call.shape}, shape, at}, at.y);
      }
      const auto at = std::bit_cast<BackwardArrays<Value>>(call.backward);
      return with_pass(HalfStepBackwardPass<C, Io, Value>{{cell, call.shape}, shape, at}, at.da_h);
    } else {
      if constexpr (cell_has_plain_kernels<C>)
        if (has_plain_kernels({plan.exchange, plan.tile}) && is_plain(call))
          return with_shape(plain(call.shape));
      return with_shape(call.shape);
    }
  });
}

}  // namespace prnn
