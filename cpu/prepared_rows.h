// What products multiply in place of rows, as Products::prepare puts it.
#pragma once
#include "cpu/int8.h"
#include "cpu/steps.h"

namespace prnn::PRNN_ISA {

// Of a phase's blocks as many as there is room for are put there once, for all panels; others for
// some panels at a time.
class PreparedRows {
 public:
  explicit PreparedRows(const Products& products) : products_(products) {}

  // Before the blocks are visited once more, and before new ones are.
  PRNN_HD void start_over() { at_ = 0; }
  PRNN_HD void forget() { kept_blocks_ = kept_floats_ = 0; }
  // Before others may take the place of blocks that are not kept.
  PRNN_HD void release() { floats_ = 0; }

  PRNN_HD void put(RowBlock& block, std::int64_t depth) {
    if (!block.multiplies || block.products != &products_.of_floats) return;
    const int n = at_++;
    if (n < kept_blocks_) {
      for (int r = 0; r < block.count; ++r) block.inputs[r] = inputs_[n][r];
      block.products = &products_.of_prepared;
      return;
    }
    if (n == kept_blocks_ && n < kMostBlocks)
      if (const std::int64_t taken =
              put(block, depth, kept_ + kept_floats_, kMostKept - kept_floats_);
          taken > 0) {
        for (int r = 0; r < block.count; ++r) inputs_[n][r] = block.inputs[r];
        ++kept_blocks_;
        kept_floats_ += taken;
        return;
      }
    floats_ += put(block, depth, others_ + floats_, kMostOthers - floats_);
  }

 private:
  // How many floats that takes; 0: there is no room.
  PRNN_HD std::int64_t put(RowBlock& block, std::int64_t depth, float* place,
                           std::int64_t room) const {
    const std::int64_t taken = products_.prepare(block.inputs, block.count, depth, place, room);
    if (taken > 0) block.products = &products_.of_prepared;
    return taken;
  }

  static constexpr int kMostBlocks = 16;
  static constexpr std::int64_t kMostOthers = Int8::row_floats(kMostQuantised);
  static constexpr std::int64_t kMostKept = 32 << 10;  // on the stack
  const Products& products_;
  int at_ = 0, kept_blocks_ = 0;
  std::int64_t kept_floats_ = 0, floats_ = 0;
  const float* inputs_[kMostBlocks][kMaxRows];
  alignas(64) float kept_[kMostKept], others_[kMostOthers];
};

}  // namespace prnn::PRNN_ISA
