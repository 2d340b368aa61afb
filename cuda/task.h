// What a kernel is told: one struct by value. Written by the host (cuda/launch.h).
#pragma once
#include "core/passes.h"
#include "cuda/number.h"
#include "cuda/watchdog.h"

namespace prnn {

// A team of `blocks` blocks holds the weights of one group and takes jobs, each the whole sequence
// of one group and one slice of the batch; teams work side by side and never wait for each other.
// But those of a stack's layers, each of which waits for the one that has the same rows of its
// neighbour (core/stack_passes.h): all run, and each has jobs of one group.
// Grid: [teams][blocks].
template <class Pass>
struct Task {
  using Value = typename Pass::Value;
  Pass pass;
  int blocks, teams;
  std::int64_t padded;  // units per row of exchanged values

  // Of a streamed tile; the weights as mma.sync takes them, of one team (cuda/streamed.cuh).
  Panels panels;
  void* streamed;

  // Exchange through global memory only (Exchange::kGrid); both filled with kUnwritten before.
  Value* mailbox;  // sequence [kPublished·padded]: the pass's own output, or one beside it
  bool output_is_mailbox;
  Value* initial;  // [batch, groups, padded]: what the first step multiplies
  // Of cells with layer norm (cuda/row_norms.cuh): pairs of a number and the count of its step,
  // [2][teams][columns][norms][blocks]; filled as the mailbox is.
  ptx::Word4* norms;
  Watchdog watchdog;
};

// Published values that a unit's products run over.
template <class Pass>
PRNN_HD constexpr std::int64_t depth_of(std::int64_t padded) {
  return std::int64_t{Pass::kSources} * Pass::kPublished * padded;
}

// Whether a pass is for calls without lengths, resets, mask and zoneout alone.
template <class Pass>
inline constexpr bool kIsPlain = std::remove_cvref_t<decltype(Pass::shape)>::kIsPlain;

}  // namespace prnn
