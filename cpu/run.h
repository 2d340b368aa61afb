// The CPU engine: a plan for a problem, and running it.
#pragma once
#include <cstdint>

#include "cpu/problem.h"
#include "cpu/threads.h"

namespace prnn {

// The best instruction set of this processor, or the one that the environment variable PRNN_CPU_ISA
// names (cpu/environment.h).
const Isa& best_isa();
// Null where this processor or this build lacks it.
const Isa* find_isa(const char* name);

// Whether this processor multiplies vectors of 512 bits at the rate of narrower ones: in halves.
bool halves_wide_vectors();

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
  bool weights_stay;          // those and the projection's, in a thread's cache
  bool weights_come;          // or, by rows, each step anew from the cache that threads share
  std::int64_t cache_bytes;   // of the cache a thread has for itself
  // Of a forward pass that makes its own a_x: how, and so many steps at a time; else 0.
  Blocking projection;
  std::int64_t projection_steps;
};

CpuPlan plan(const Isa& isa, const Problem& problem, int threads);

// The most steps that are projected at a time: what there is room for.
std::int64_t most_projection_steps(const Problem& problem);

// Whether a problem is a forward pass that makes its own a_x.
bool projects(const Problem& problem);

// Its projection, as a problem of its own.
Problem projection_of(const Problem& problem);

// The floats that its packed weights may take, and whether they are enough for all.
std::int64_t projection_room(const Problem& problem);
bool keeps_projection(const Problem& problem);

// Floats of workspace a problem needs on any instruction set.
std::int64_t workspace_floats(const Problem& problem);

// `workspace` has workspace_floats(problem) floats.
void run(const Isa& isa, Problem problem, ThreadPool& pool, float* workspace);

}  // namespace prnn
