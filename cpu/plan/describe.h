// A plan in words.
#pragma once
#include <string>
#include <vector>

#include "cpu/plan/planner.h"

namespace prnn {

const char* name(WeightSource source);
const char* name(Partition partition);

// Why this way, with the model's numbers.
std::string reason(const Machine& machine, const CpuPlan& plan);

// A table of all ways, the best of them marked.
std::vector<std::string> table(const Machine& machine, const Isa& isa, const Problem& problem,
                               const Choices& choices, const CpuPlan& best);

}  // namespace prnn
