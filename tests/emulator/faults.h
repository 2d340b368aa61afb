// Mistakes that the operations of ptx.h make on purpose, so that a suite can show it would notice.
#pragma once
#include <string_view>
#include <utility>

namespace prnn::emulator {

enum class Fault {
  kNone,
  kSkipBarSync,
  kSkipWarpSync,
  kSkipClusterBarrier,
  kExpectTxShort,
  kNoAcquire,
  kEarlyTx,
  kBlockSilent,
  kSkipStore,
  kStaleGranule,
  kTornGranule,
  kWrongRank,
  kAFragmentOrder,
  kBFragmentOrder,
  kShuffleLane,
  kVoteAny,
  kTruncate,
};

inline constexpr std::pair<std::string_view, Fault> kFaults[] = {
    {"", Fault::kNone},
    {"skip_bar_sync", Fault::kSkipBarSync},                // bar.sync does not wait
    {"skip_warp_sync", Fault::kSkipWarpSync},              // bar.warp.sync does not wait
    {"skip_cluster_barrier", Fault::kSkipClusterBarrier},  // barrier.cluster does not wait
    {"expect_tx_short", Fault::kExpectTxShort},            // 8 bytes fewer are expected
    {"no_acquire", Fault::kNoAcquire},                     // try_wait: complete, whatever came
    {"early_tx", Fault::kEarlyTx},                         // st.async counts first, then stores
    {"block_silent", Fault::kBlockSilent},                 // block 1 stores nothing to the others
    {"skip_store", Fault::kSkipStore},                     // one store of the launch is lost
    {"stale_granule", Fault::kStaleGranule},               // unwritten (all ones) reads as zeros
    {"torn_granule", Fault::kTornGranule},                 // half of a granule arrives later
    {"wrong_rank", Fault::kWrongRank},                     // mapa: the block after that asked for
    {"a_fragment_order", Fault::kAFragmentOrder},          // a.y and a.z change places
    {"b_fragment_order", Fault::kBFragmentOrder},          // b0 and b1 change places
    {"shuffle_lane", Fault::kShuffleLane},                 // shfl: from the lane next to it
    {"vote_any", Fault::kVoteAny},                         // vote: any instead of all
    {"truncate", Fault::kTruncate},                        // conversions round towards zero
};

}  // namespace prnn::emulator
