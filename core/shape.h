// The shape of a native call and where things lie in its arrays.
#pragma once
#include <cstdint>

#include "core/portability.h"

namespace prnn {

// `groups` independent recurrences of `hidden` units over `time` steps of `batch` rows.
// Sequences are [batch, time, groups, n·hidden], or [time, batch, groups, n·hidden] where
// time_major; states are [batch, groups, hidden]. The group lies beside the features, so that two
// directions or many heads are one projection's output and one layer's y, without a copy.
template <class I, bool kPlain>
struct ShapeOf {
  using Index = I;
  static constexpr bool kIsPlain = kPlain;
  Index time, batch, groups, hidden;
  bool time_major;
  bool reverse;        // all groups run from the last step to the first
  bool bidirectional;  // the second half of the groups runs against the first
  // [batch, groups]: how many steps of a row count, from its beginning; null: all.
  const std::int32_t* lengths = nullptr;
  // Values of h and y, of a cell that projects what its units give; 0: as many as units.
  Index projected = 0;

  PRNN_HD Index output() const { return projected == 0 ? hidden : projected; }
  // As arrays of h are laid out.
  PRNN_HD ShapeOf of_output() const {
    ShapeOf out = *this;
    out.hidden = output();
    return out;
  }
  PRNN_HD Index state_at(Index b, Index g) const { return (b * groups + g) * hidden; }
  // Where a row begins in an array of the engine's own with n values per unit: in a pair of the
  // cache's lines that no other row has, for processors fetch them in pairs, and threads with other
  // rows would take them from each other.
  PRNN_HD std::int64_t padded_row(std::int64_t b, std::int64_t g, int n) const {
    constexpr std::int64_t kPair = 32;
    return (b * groups + g) * ((n * hidden + kPair - 1) / kPair * kPair);
  }
  PRNN_HD std::int64_t padded_floats(int n) const { return padded_row(batch, 0, n); }
  // A row at a time: an element of a sequence with one value per group.
  PRNN_HD Index row_at(Index b, Index t, Index g) const {
    return (time_major ? t * batch + b : b * time + t) * groups + g;
  }
  // Where row b of group g begins at time t, in a sequence with n values per unit.
  PRNN_HD Index sequence_at(Index b, Index t, Index g, int n) const {
    return row_at(b, t, g) * n * hidden;
  }
  // Within what there is, whatever the array says.
  PRNN_HD Index length(Index b, Index g) const {
    if (kPlain || lengths == nullptr) return time;
    const Index given = lengths[b * groups + g];
    return given < 0 ? 0 : given < time ? given : time;
  }
  // The time at which the step-th step of a row takes place. One that runs backwards begins at the
  // last that counts; what does not count comes after all that does, whichever way a row runs.
  PRNN_HD Index time_at(Index g, Index step, Index b) const {
    const Index count = length(b, g);
    return runs_backwards(g) && step < count ? count - 1 - step : step;
  }
  PRNN_HD bool runs_backwards(Index g) const {
    return reverse != (bidirectional && g >= groups / 2);
  }
  // Whether a step that counts is another because of lengths: a row's last, or one of a row that
  // begins there.
  PRNN_HD bool lengths_change(Index g, Index step, Index b) const {
    return !kPlain && lengths != nullptr && (runs_backwards(g) || step + 1 >= length(b, g));
  }
  // For what takes calls of any kind.
  template <class To>
    requires(kIsPlain && !To::kIsPlain)
  PRNN_HD operator To() const {
    return {time, batch, groups, hidden, time_major, reverse, bidirectional, nullptr, projected};
  }
};
using Shape = ShapeOf<std::int64_t, false>;

// Of a plain call: without lengths, and its arrays have fewer than 2^31 values each; for engines to
// which arithmetic with indices is a part of a step's time.
using PlainShape = ShapeOf<std::int32_t, true>;

}  // namespace prnn
