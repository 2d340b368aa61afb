// The CPU engine.
#pragma once
#include <cstdint>

#include "cpu/plan/planner.h"
#include "cpu/threads.h"

namespace prnn {

// The best instruction set of this processor, or the one that the environment variable PRNN_CPU_ISA
// names (cpu/environment.h).
const Isa& best_isa();
// Null where this processor or this build lacks it.
const Isa* find_isa(const char* name);

// Floats of workspace a problem needs on any instruction set.
std::int64_t workspace_floats(const Problem& problem);

// `workspace` has workspace_floats(problem) floats. As is best for this processor and so many
// threads, or as planned.
void run(const Isa& isa, const Problem& problem, ThreadPool& pool, float* workspace);
void run(const Isa& isa, Problem problem, const CpuPlan& plan, ThreadPool& pool, float* workspace);

}  // namespace prnn
