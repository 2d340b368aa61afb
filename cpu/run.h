// The CPU engine: a plan for a problem, and running it.
#pragma once
#include <cstdint>

#include "cpu/problem.h"
#include "cpu/threads.h"

namespace prnn {

// The best instruction set of this processor, or, where the environment variable PRNN_CPU_ISA
// names one that it has, that one.
const Isa& best_isa();
// Null where this processor or this build lacks it.
const Isa* find_isa(const char* name);

// How a call is spread over threads.
enum class Split {
  kRows,   // each thread takes rows of the batch (or groups) through all steps
  kUnits,  // in each step, each thread takes some of the units; they meet after every phase
};

struct CpuPlan {
  Split split;
  int threads;
  std::int64_t rows_per_part;  // kRows: rows of the batch in a part
  Blocking blocking;
  std::int64_t weight_bytes;  // of a group
  std::int64_t cache_bytes;   // of the cache a thread has for itself
};

CpuPlan plan(const Isa& isa, const Problem& problem, int threads);

// Floats of workspace a problem needs on any instruction set.
std::int64_t workspace_floats(const Problem& problem);

// `workspace` has workspace_floats(problem) floats.
void run(const Isa& isa, Problem problem, ThreadPool& pool, float* workspace);

}  // namespace prnn
