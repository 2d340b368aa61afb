// How a call is to run: which ways there are, what each would take, and which is the best.
#pragma once
#include "cpu/plan/cost.h"
#include "cpu/problem.h"

namespace prnn {

struct CpuPlan {
  Choice choice;              // for the steps
  Cost cost;                  // of those, as modelled
  std::int64_t weight_bytes;  // of a group, packed
  Blocking blocking;
  // Of a forward pass that makes its own a_x: how, and so many steps at a time; else 0.
  Blocking projection;
  std::int64_t projection_steps;
};

// All that are possible, by up to so many threads.
struct Choices {
  static constexpr int kMost = 7;
  Choice all[kMost];
  int count;
  const Choice* begin() const { return all; }
  const Choice* end() const { return all + count; }
};
Choices choices(const Isa& isa, const Problem& problem, int threads);

// What the model sees of a call.
Amounts amounts(const Isa& isa, const Problem& problem, int threads);

// The call in this way; the projection as is best for it.
CpuPlan plan_of(const Machine& machine, const Isa& isa, const Problem& problem,
                const Choice& choice);

// The best.
CpuPlan plan(const Machine& machine, const Isa& isa, const Problem& problem, int threads);

// The most steps that are projected at a time: what there is room for.
std::int64_t most_projection_steps(const Problem& problem);

// Whether a problem is a forward pass that makes its own a_x.
bool projects(const Problem& problem);

// Its projection, as a problem of its own.
Problem projection_of(const Problem& problem);

// The floats that its packed weights may take, and whether they are enough for all.
std::int64_t projection_room(const Problem& problem);
bool keeps_projection(const Problem& problem);

}  // namespace prnn
