// A native call on a GPU, as the handlers describe it. No CUDA header: host code only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/passes.h"
#include "cuda/tile.h"
#include "cuda/watchdog.h"

namespace prnn {

struct CudaCall {
  PassKind pass;
  CellSpec cell;
  Number number;
  Shape shape;
  ForwardArrays<void> forward;  // one of the two, by pass
  BackwardArrays<void> backward;
  void* workspace;
  Watchdog watchdog = {};
  bool is_stack = false;  // the groups are layers of a stack (core/stack_passes.h)
};

// Values published per unit and step, and products per unit.
struct PassSizes {
  int published, products;
};
inline PassSizes pass_sizes(CellKind cell, PassKind pass, bool is_stack) {
  const CellNumbers n = numbers({cell, 0, 0});
  const int products = is_stack && !n.same_gradient ? n.gates + 1 : n.gates;
  return pass == PassKind::kForward ? PassSizes{1, products} : PassSizes{products, 1};
}
// Steps of the engine to one of the call: products in series.
inline int phases(CellKind cell) {
  return visit({cell, 0, 0}, [](auto c) { return decltype(c)::kPhases; });
}
// Numbers that a unit carries from one of them to the next, at most.
inline int carried_values(CellKind cell) {
  const int between_phases = phases(cell) - 1;
  return numbers({cell, 0, 0}).states + between_phases;
}

// Whether few layers are of a cell, or its kernels are many instructions.
template <class C>
inline constexpr bool has_few_users =
    C::kStates > 2 || std::is_same_v<C, GeneralLstm> || TwoPhaseCell<C> || kHasFewUsers<C>;

// Whether kernels are compiled apart for plain calls: of the cells that many layers are of, and of
// the instances that are fast.
template <class C>
inline constexpr bool cell_has_plain_kernels =
    C::kPhases == 1 && !std::is_same_v<C, GeneralLstm> && !kHasFewUsers<C>;
constexpr bool has_plain_kernels(const Instance& instance) {
  return instance.exchange != Exchange::kBlock && !instance.tile.is_streamed();
}

// Whether there are kernels for stacks of a cell: of those that many have.
template <class C>
inline constexpr bool kHasStackKernels = cell_has_plain_kernels<C> && C::kStates <= 2;

// Whether no array of a call has an index beyond 31 bits.
inline bool has_small_indices(const CellSpec& cell, Number number, const Shape& shape,
                              bool is_stack) {
  const CellNumbers n = numbers(cell);
  const std::int64_t padded = padded_hidden(shape.hidden, number);
  const std::int64_t values = std::max(n.gates, n.kept(false)) * padded;
  const std::int64_t depth = is_stack ? 2 * padded : padded;
  return std::max(shape.time * shape.batch, depth) * shape.groups * values <= INT32_MAX;
}
// And without lengths, resets, mask and zoneout.
inline bool is_plain(const CudaCall& call) {
  const Shape& shape = call.shape;
  const bool has_controls =
      call.pass == PassKind::kForward ? call.forward.controls.any() : call.backward.controls.any();
  return shape.lengths == nullptr && !has_controls &&
         has_small_indices(call.cell, call.number, shape, call.is_stack);
}
inline PlainShape plain(const Shape& shape) {
  const auto narrow = [](std::int64_t v) { return static_cast<std::int32_t>(v); };
  return {narrow(shape.time),     narrow(shape.batch), narrow(shape.groups), narrow(shape.hidden),
          shape.time_major,       shape.reverse,       shape.bidirectional,  nullptr,
          narrow(shape.projected)};
}

inline std::span<const Instance> instances(CellKind cell, PassKind pass, bool normalises) {
  const int products = pass_sizes(cell, pass, false).products;
  if (normalises) return instances_of_norms(products);
  if (phases(cell) > 1) return instances_of_phases(products);
  const bool few = visit({cell, 0, 0}, [](auto c) { return has_few_users<decltype(c)>; });
  return instances(products, few);
}

// Whether the values that a grid's blocks exchange need a place of their own. Else they go through
// the output itself: its rows are whole multiples of 16 bytes, it is what the next step multiplies,
// and all rows go through it in the same order.
inline bool has_own_mailbox(const CudaCall& call) {
  const bool turns =
      call.shape.lengths != nullptr && (call.shape.reverse || call.shape.bidirectional);
  const bool changes =
      call.pass == PassKind::kForward && call.forward.controls.change_product_input();
  // Of a GRU's layers, more is exchanged than is kept.
  const bool differs =
      call.is_stack && call.pass == PassKind::kBackward && !numbers(call.cell).same_gradient;
  const bool is_padded = padded_hidden(call.shape.hidden, call.number) != call.shape.hidden;
  return is_padded || turns || changes || differs || phases(call.cell.kind) > 1;
}

// The part of the workspace through which a grid's blocks exchange values.
struct Mailbox {
  void* initial;   // forward: [batch, groups, padded]
  void* separate;  // sequence [published·padded] in the order of steps, or null
  void* norms;     // of cells with layer norm (Task::norms), or null
  std::int64_t bytes;
};
// Of any team and any number of blocks.
inline std::int64_t norms_bytes(const CellSpec& cell, PassKind pass) {
  if (!cell.norm.is_there) return 0;
  const int gates = numbers(cell).gates;
  const int norms = pass == PassKind::kForward ? 2 * gates + 1 : 4 * gates + 2;
  return std::int64_t{2} * kMostBlocksOfNorms * instances_of_norms(gates)[0].tile.columns() *
         norms * std::int64_t{16};
}
inline Mailbox mailbox_of(const CudaCall& call) {
  const Shape& shape = call.shape;
  const std::int64_t padded = padded_hidden(shape.hidden, call.number);
  const std::int64_t row_bytes = shape.groups * padded * value_bytes(call.number);
  auto* start = static_cast<char*>(call.workspace);
  Mailbox out{};
  if (call.pass == PassKind::kForward) {
    out.initial = start;
    out.bytes = shape.batch * row_bytes;
  }
  if (has_own_mailbox(call)) {
    out.separate = start + out.bytes;
    out.bytes += shape.time * phases(call.cell.kind) * shape.batch * row_bytes *
                 pass_sizes(call.cell.kind, call.pass, call.is_stack).published;
  }
  if (call.cell.norm.is_there) {
    out.bytes = round_up(out.bytes, 16);
    out.norms = start + out.bytes;
    out.bytes += norms_bytes(call.cell, call.pass);
  }
  return out;
}

// The weights of a group in the order in which mma.sync takes them, as they are streamed
// (cuda/streamed.cuh); in the workspace behind the mailbox.
inline std::int64_t streamed_bytes(const CudaCall& call) {
  const PassSizes sizes = pass_sizes(call.cell.kind, call.pass, call.is_stack);
  const Tile tile = streamed_tile(sizes.products);
  const std::int64_t padded = padded_hidden(call.shape.hidden, call.number);
  // Of no more panels than the layer has: what a block lacks of its last round is not there.
  return panels_of(tile, sizes.products, padded, call.number) * kWarps *
         k_blocks(tile, padded * sizes.published, call.number) * SharedLayout::k_block_bytes(tile);
}
inline void* streamed_of(const CudaCall& call) {
  return static_cast<char*>(call.workspace) + mailbox_of(call).bytes;
}

// So many panels to a block, of which none is in shared memory yet.
inline Panels panels_in(CellKind cell, const Tile& tile, int units, int count) {
  return {count, 0, elements_per_thread(tile, units) * kThreads * carried_values(cell)};
}

// Layers of which one multiprocessor of any device holds the weights. Larger ones some devices
// stream, and a call does not know where it will run.
inline constexpr std::int64_t kAlwaysHeld = 64;  // units

// Bytes of workspace a call needs, whatever its plan.
inline std::int64_t workspace_bytes(const CudaCall& call) {
  const bool may_stream =
      !call.is_stack && !call.cell.norm.is_there && call.shape.hidden > kAlwaysHeld;
  return mailbox_of(call).bytes + (may_stream ? streamed_bytes(call) : 0);
}

}  // namespace prnn
