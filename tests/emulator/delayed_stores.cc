#include "emulator/delayed_stores.h"

namespace prnn::emulator {

void DelayedStores::add(DelayedStore store) {
  OfBlock& of = of_block_[store.source];
  if (of.filter.empty()) of.filter.resize(kFilter);
  if (of.listed < 0) {
    of.listed = static_cast<int>(blocks_.size());
    blocks_.push_back(store.source);
  }
  store.sequence = ++sequence_;
  of.stores.push_back(store);
  ++of.filter[hash(store.to)];
  ++count_;
}

bool DelayedStores::holds(int block, const void* p) const {
  const OfBlock& of = of_block_[block];
  if (of.stores.empty() || of.filter[hash(p)] == 0) return false;
  for (const DelayedStore& s : of.stores) {
    if (s.to == p) return true;
  }
  return false;
}

std::optional<std::uint64_t> DelayedStores::seen_by(int block, const void* p) const {
  const OfBlock& of = of_block_[block];
  if (of.stores.empty() || of.filter[hash(p)] == 0) return {};
  const DelayedStore* last = nullptr;
  for (const DelayedStore& s : of.stores) {
    if (s.to == p && (last == nullptr || s.sequence > last->sequence)) last = &s;
  }
  if (last == nullptr) return {};
  return last->value;
}

DelayedStore DelayedStores::take(int block, std::size_t index) {
  OfBlock& of = of_block_[block];
  // An earlier store to the same address goes first.
  if (of.filter[hash(of.stores[index].to)] > 1) {
    for (std::size_t i = 0; i < of.stores.size(); ++i) {
      const bool earlier = of.stores[i].sequence < of.stores[index].sequence;
      if (of.stores[i].to == of.stores[index].to && earlier) index = i;
    }
  }
  const DelayedStore store = of.stores[index];
  of.stores[index] = of.stores.back();
  of.stores.pop_back();
  --of.filter[hash(store.to)];
  --count_;
  if (of.stores.empty()) {
    of_block_[blocks_.back()].listed = of.listed;
    blocks_[of.listed] = blocks_.back();
    blocks_.pop_back();
    of.listed = -1;
  }
  return store;
}

DelayedStore DelayedStores::take_any(Random& random) {
  const int block = blocks_[random.below(blocks_.size())];
  return take(block, random.below(of_block_[block].stores.size()));
}

std::optional<DelayedStore> DelayedStores::take_global(int block) {
  const std::vector<DelayedStore>& stores = of_block_[block].stores;
  for (std::size_t i = 0; i < stores.size(); ++i) {
    if (stores[i].target == nullptr) return take(block, i);
  }
  return {};
}

bool DelayedStores::any_to(const Block* target, int first_block, int blocks) const {
  for (int b = first_block; b < first_block + blocks; ++b) {
    for (const DelayedStore& s : of_block_[b].stores) {
      if (s.target == target) return true;
    }
  }
  return false;
}

}  // namespace prnn::emulator
