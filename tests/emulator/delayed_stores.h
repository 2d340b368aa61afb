// Stores that a thread has made and other blocks do not see yet. Any of them may arrive next, save
// that a block's stores to one address arrive in order.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "emulator/random.h"

namespace prnn::emulator {

struct Block;

struct DelayedStore {
  int source = 0;  // the block that made it
  char* to = nullptr;
  std::uint64_t value = 0;
  // Of an st.async: whose memory, and its mbarrier there.
  Block* target = nullptr;
  char* mbarrier = nullptr;
  bool half_arrived = false;  // Fault::kTornGranule
  std::uint64_t sequence = 0;
};

class DelayedStores {
 public:
  // `blocks`: of the grid. Stores are kept by the block that makes them.
  explicit DelayedStores(int blocks) : of_block_(blocks) {}

  bool empty() const { return count_ == 0; }
  std::size_t count() const { return count_; }
  void add(DelayedStore store);
  // Whether a store to this address is on its way from this block.
  bool holds(int block, const void* p) const;
  // What a thread of this block sees there before others do. (It may: a block's own stores are
  // visible within it from its next barrier on, and nothing forbids sooner.)
  std::optional<std::uint64_t> seen_by(int block, const void* p) const;

  // Takes out any store; one of this block to global memory, if it has one.
  DelayedStore take_any(Random& random);
  std::optional<DelayedStore> take_global(int block);
  // Whether one of these blocks has a store under way into `target`.
  bool any_to(const Block* target, int first_block, int blocks) const;

 private:
  // How many stores there are to addresses of equal hash: nearly always none, and no search.
  static constexpr int kFilter = 256;
  static int hash(const void* p) {
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(p) / 8 % kFilter);
  }
  struct OfBlock {
    std::vector<DelayedStore> stores;
    std::vector<std::uint16_t> filter;  // empty until the first store
    int listed = -1;                    // position in blocks_
  };
  DelayedStore take(int block, std::size_t index);

  std::vector<OfBlock> of_block_;
  std::vector<int> blocks_;  // those that have stores
  std::size_t count_ = 0;
  std::uint64_t sequence_ = 0;
};

}  // namespace prnn::emulator
