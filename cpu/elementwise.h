// Elementwise recurrences (core/elementwise.h) on the CPU: they take what memory takes to read a
// and b and to write y. Results do not depend on the number of threads.
#pragma once
#include <cstdint>

#include "core/elementwise.h"
#include "cpu/problem.h"
#include "cpu/threads.h"

namespace prnn {

// Elements of a piece of a row at most: their states stay in the first-level cache, and what is
// read lies in long pieces.
inline constexpr std::int64_t kMostElements = 2048;

void run(const Isa& isa, const ElementwiseRecurrence& recurrence, ThreadPool& pool);

}  // namespace prnn
