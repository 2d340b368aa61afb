// The shape of a native call and where things lie in its arrays.
#pragma once
#include <cstdint>

#include "core/portability.h"

namespace prnn {

// `groups` independent recurrences of `hidden` units over `time` steps of `batch` rows.
// Sequences are [batch, time, groups, n·hidden], or [time, batch, groups, n·hidden] where
// time_major; states are [batch, groups, hidden]. The group lies beside the features, so that two
// directions or many heads are one projection's output and one layer's y, without a copy.
struct Shape {
  std::int64_t time, batch, groups, hidden;
  bool time_major;
  bool reverse;        // all groups run from the last step to the first
  bool bidirectional;  // the second half of the groups runs against the first

  PRNN_HD std::int64_t state_at(std::int64_t b, std::int64_t g) const {
    return (b * groups + g) * hidden;
  }
  // Where row b of group g begins at time t, in a sequence with n values per unit.
  PRNN_HD std::int64_t sequence_at(std::int64_t b, std::int64_t t, std::int64_t g, int n) const {
    const std::int64_t row = time_major ? t * batch + b : b * time + t;
    return (row * groups + g) * n * hidden;
  }
  // The time at which the step-th step of group g takes place.
  PRNN_HD std::int64_t time_at(std::int64_t g, std::int64_t step) const {
    const bool backwards = reverse != (bidirectional && g >= groups / 2);
    return backwards ? time - 1 - step : step;
  }
};

}  // namespace prnn
