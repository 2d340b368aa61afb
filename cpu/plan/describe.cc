#include "cpu/plan/describe.h"

#include <cstdio>

namespace prnn {
namespace {

template <class... Args>
std::string text(const char* format, Args... args) {
  std::string out(static_cast<std::size_t>(std::snprintf(nullptr, 0, format, args...)), '\0');
  std::snprintf(out.data(), out.size() + 1, format, args...);
  return out;
}

// What most of a step is spent on.
std::string limited_by(const Cost& cost) {
  const double most = std::max({cost.read, cost.multiply, cost.pointwise, cost.barrier});
  const char* what = most == cost.read        ? "reading weights"
                     : most == cost.multiply  ? "multiplying"
                     : most == cost.pointwise ? "the cell's math"
                                              : "waiting at the barrier";
  return text("%s is %.0f %% of it", what, 100 * most / cost.step_us());
}

}  // namespace

const char* name(WeightSource source) {
  switch (source) {
    case WeightSource::kPacked:
      return "packed";
    case WeightSource::kPrepacked:
      return "prepacked";
    case WeightSource::kPackedPerPanel:
      return "packed per panel";
    case WeightSource::kUnpacked:
      return "unpacked";
  }
  __builtin_unreachable();
}

const char* name(Partition partition) {
  switch (partition) {
    case Partition::kBatch:
      return "batch";
    case Partition::kHidden:
      return "hidden";
    case Partition::kColumns:
      return "columns";
  }
  __builtin_unreachable();
}

std::string reason(const Machine& machine, const CpuPlan& plan) {
  const Choice& choice = plan.choice;
  const std::string how = choice.threads == 1 ? "one thread"
                                              : text("%d threads, each %s", choice.threads,
                                                     choice.partition == Partition::kBatch
                                                         ? "rows, or groups, through all steps"
                                                         : "units of every step");
  return text("%s, weights %s: %.2f us a step, modelled for %s; %s", how.c_str(),
              name(choice.source), plan.cost.step_us(), machine.name.c_str(),
              limited_by(plan.cost).c_str());
}

std::vector<std::string> table(const Machine& machine, const Isa& isa, const Problem& problem,
                               const Choices& choices, const CpuPlan& best) {
  std::vector<std::string> out{"  weights    partition  threads    us/step    us/call"};
  for (const Choice& choice : choices) {
    const Cost cost = plan_of(machine, isa, problem, choice).cost;
    out.push_back(text("%c %-10s %-9s %8d %10.2f %10.1f", choice == best.choice ? '*' : ' ',
                       name(choice.source), name(choice.partition), choice.threads, cost.step_us(),
                       cost.call_us()));
  }
  return out;
}

}  // namespace prnn
