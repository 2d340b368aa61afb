// A turn's work in lots: each member has its own, and helps the others when it has done them. One
// core may be slower than the other for a moment, because of what else runs on it.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

namespace prnn {

class Shares {
 public:
  explicit Shares(int members) : begun_(members) {}

  // Calls f(owner, lot) for lots 0 to lots - 1 of each member that nobody has begun, a member's own
  // first. Turns are numbered in the order in which they are taken.
  template <class F>
  void take(std::int64_t turn, std::int64_t member, std::int64_t members, std::int64_t lots,
            F&& f) {
    const std::int64_t none = (turn + 1) * kMostLots;
    for (std::int64_t n = 0; n < members; ++n) {
      const std::int64_t owner = (member + n) % members;
      std::atomic<std::int64_t>& begun = begun_[owner].lots;
      for (std::int64_t seen = begun.load(std::memory_order_relaxed);;) {
        const std::int64_t lot = seen < none ? 0 : seen - none;
        if (lot >= lots) break;
        if (!begun.compare_exchange_weak(seen, none + lot + 1, std::memory_order_relaxed)) continue;
        f(owner, lot);
        seen = begun.load(std::memory_order_relaxed);
      }
    }
  }

 private:
  static constexpr std::int64_t kMostLots = 1 << 20;
  struct alignas(128) Begun {
    std::atomic<std::int64_t> lots{0};  // of the turn, and the turn's number
  };
  std::vector<Begun> begun_;
};

}  // namespace prnn
