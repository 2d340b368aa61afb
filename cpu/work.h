// A call's work as its threads share it: what a member packs, and what it advances in a turn.
#pragma once
#include <algorithm>

#include "cpu/run.h"
#include "cpu/shares.h"

namespace prnn {

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Whether what a projection multiplies is made of x first: its numbers are floats.
inline bool widens(const Problem& p) { return p.dtype != Dtype::kFloat32; }

// Something to run, and how.
struct Work {
  const Isa& isa;
  Problem problem;
  Blocking blocking;
  float* packed;

  std::int64_t first_panel(int phase, std::int64_t member, std::int64_t members) const {
    return blocking.panels[phase] * member / members;
  }
  // In how many lots each member packs the panels of a phase and group that it advances: so it has
  // them in its cache. Those of a lot are packed together, and there are some lots at least, for a
  // member who comes late.
  std::int64_t lots_each(int phase, std::int64_t members) const {
    constexpr std::int64_t kEnoughLots = 4;
    const std::int64_t panels = ceil_div(blocking.panels[phase], members);
    return std::min(panels, std::max(kEnoughLots, ceil_div(panels, kPackedTogether)));
  }
  std::int64_t packed_each(std::int64_t members) const {
    if (blocking.source != WeightSource::kPacked) return 0;
    return problem.shape.groups * (lots_each(0, members) + lots_each(1, members));
  }
  // Packs the n-th of a member's lots.
  void pack(std::int64_t n, std::int64_t member, std::int64_t members) const {
    const std::int64_t of_phase_0 = problem.shape.groups * lots_each(0, members);
    const int phase = n < of_phase_0 ? 0 : 1;
    if (phase == 1) n -= of_phase_0;
    const std::int64_t lots = lots_each(phase, members), group = n / lots, lot = n % lots;
    const std::int64_t first = first_panel(phase, member, members);
    const std::int64_t count = first_panel(phase, member + 1, members) - first;
    const Part part{
        group, group + 1, 0, 0, first + count * lot / lots, first + count * (lot + 1) / lots};
    isa.pack(problem, blocking, part, phase, packed);
  }
  // Of a projection: what rows multiply in a piece, if they cannot as it is.
  void widen(const Part& part, std::int64_t piece) const {
    if (widens(problem)) isa.widen(problem, part, piece);
  }
  // The share of one of those who divide the columns of a phase's products among them.
  void multiply_columns(std::int64_t step, int phase, std::int64_t rows, std::int64_t member,
                        std::int64_t members) const {
    const std::int64_t all = blocking.columns[phase];
    const Part part{0,    problem.shape.groups,   0,
                    rows, all * member / members, all * (member + 1) / members};
    isa.multiply_columns(problem, blocking, packed, part, step, phase);
  }
  // Or the units, in lots that other members may take.
  void advance(std::int64_t step, int phase, std::int64_t rows, std::int64_t member,
               std::int64_t members, Shares& shares, std::int64_t turn) const {
    float* place = packed;
    if (blocking.source == WeightSource::kPackedPerPanel) {
      if (member >= blocking.places) return;
      members = std::min(members, blocking.places);
      place += member * blocking.panel_words;
    }
    const std::int64_t lots = lots_of_turn(phase, rows, members);
    const auto advance_lot = [&](std::int64_t owner, std::int64_t lot) {
      if (step % 2 != 0) lot = lots - 1 - lot;
      const std::int64_t first = first_panel(phase, owner, members);
      const std::int64_t count = first_panel(phase, owner + 1, members) - first;
      advance_panels(step, phase, rows, first + count * lot / lots,
                     first + count * (lot + 1) / lots, place);
    };
    if (lots == 1) return advance_lot(member, 0);
    shares.take(turn, member, members, lots, advance_lot);
  }
  // So many that one is worth the trouble.
  std::int64_t lots_of_turn(int phase, std::int64_t rows, std::int64_t members) const {
    constexpr std::int64_t kMostLots = 8, kWorthTaking = 1 << 20;
    if (blocking.source == WeightSource::kUnpacked) return 1;
    const std::int64_t weights = blocking.group_words * blocking.weights_per_word;
    const std::int64_t work = weights * problem.shape.groups * rows / members / blocking.phases;
    const std::int64_t most = std::min(kMostLots, blocking.panels[phase] / members);
    return std::clamp<std::int64_t>(work / kWorthTaking, 1, std::max<std::int64_t>(most, 1));
  }
  void advance_panels(std::int64_t step, int phase, std::int64_t rows, std::int64_t first,
                      std::int64_t last, float* weights) const {
    const Part part{0, problem.shape.groups, 0, rows, first, last};
    isa.advance(problem, blocking, weights, part, step, phase);
  }
};

// Packs what a number of members will use, and each what it will use itself.
class Packing {
 public:
  Packing(const Work& steps, const Work* projection, std::int64_t members)
      : steps_(steps), projection_(projection), members_(members) {
    of_steps_ = steps.packed_each(members);
    each_ = of_steps_ + (projection ? projection->packed_each(members) : 0);
  }
  std::int64_t each() const { return each_; }
  // The n-th of a member's lots.
  void pack(std::int64_t n, std::int64_t member) const {
    n < of_steps_ ? steps_.pack(n, member, members_)
                  : projection_->pack(n - of_steps_, member, members_);
  }
  void pack_all(ThreadPool& pool) const {
    parallel_for(pool, static_cast<int>(members_), each_ * members_,
                 [&](std::int64_t i) { pack(i % each_, i / each_); });
  }

 private:
  const Work& steps_;
  const Work* projection_;
  std::int64_t members_, of_steps_, each_;
};

}  // namespace prnn
