#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>

#include "cpu/plan/describe.h"
#include "cpu/plan/machines.h"
#include "cpu/quota.h"
#include "cpu/run.h"
#include "cpu/workers.h"
#include "ffi/attributes.h"
#include "ffi/plan_module.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace prnn {
namespace {

// How the CPU engine would run a call with `threads` threads on this processor, or one named.
nb::dict cpu_plan(const std::string& cell, std::int64_t time, std::int64_t batch,
                  std::int64_t groups, std::int64_t hidden, std::int64_t output, bool backward,
                  int threads, const std::string& dtype, std::int64_t input_size,
                  const std::string& processor, std::int64_t cache_bytes,
                  std::int64_t shared_cache_bytes) {
  Problem p{};
  p.cell = cell_named(cell).value();
  p.dtype = dtype_named(dtype).value();
  p.shape = {time, batch, groups, hidden, false, false, false};
  p.shape.projected = output;
  p.kind = backward ? Kind::kBackward : Kind::kForward;
  p.projection.input_size = input_size;
  const Isa& isa = best_isa();
  Machine machine = this_machine(isa.width);
  if (!processor.empty()) {
    const auto named = machine_named(processor);
    if (!named) throw nb::value_error(("no record of a processor " + processor).c_str());
    machine = *named;
  }
  if (cache_bytes >= 0) machine.cache_bytes = cache_bytes;
  if (shared_cache_bytes >= 0) machine.shared_cache_bytes = shared_cache_bytes;
  const CpuPlan plan = prnn::plan(machine, isa, p, threads);
  const Cost& cost = plan.cost;
  nb::dict out, parts;
  out["instruction_set"] = isa.name;
  out["vector_width"] = isa.width;
  out["processor"] = machine.name;
  out["rates"] = machine.source;
  out["weights"] = name(plan.choice.source);
  out["partition"] = name(plan.choice.partition);
  out["threads"] = plan.choice.threads;
  out["rows_per_block"] = plan.blocking.rows;
  out["units_per_panel"] = plan.blocking.vectors[0] * isa.width;
  out["weight_bytes"] = plan.weight_bytes;
  out["weight_bits"] = 32 / plan.blocking.weights_per_word;
  out["cache_bytes"] = machine.cache_bytes;
  out["projected_steps"] = plan.projection_steps;
  out["projection_weights"] = nb::none();
  if (projects(p)) out["projection_weights"] = name(plan.projection.source);
  parts["reading"] = cost.read;
  parts["multiplying"] = cost.multiply;
  parts["pointwise"] = cost.pointwise;
  parts["barrier"] = cost.barrier;
  out["parts_us"] = parts;
  out["step_us"] = cost.step_us();
  out["call_us"] = cost.call_us();
  out["reason"] = reason(machine, plan);
  out["table"] = table(machine, isa, p, choices(isa, p, threads), plan);
  return out;
}

std::map<std::string, double> to_map(const Rates& rates) {
  std::map<std::string, double> out;
  visit_rates(rates, [&](const char* name, double value) { out[name] = value; });
  return out;
}

}  // namespace

void bind_cpu_planner(nb::module_& m) {
  m.def("cpu_plan", cpu_plan, "cell"_a, "time"_a, "batch"_a, "groups"_a, "hidden"_a, "output"_a,
        "backward"_a, "threads"_a, "dtype"_a = "float32", "input_size"_a = 0, "processor"_a = "",
        "cache_bytes"_a = -1, "shared_cache_bytes"_a = -1);
  m.def("instruction_set", [] { return best_isa().name; });
  m.def("sums_pairs", [] { return best_isa().sums_pairs; });
  m.def("cpu_workers", most_workers);
  m.def("has_own_threads", has_own_threads);
  m.def("cpu_quota", cpu_quota, "root"_a = "");
  m.def("cpu_rates", [] { return to_map(this_machine(best_isa().width).rates); });
  m.def("known_processors", [] {
    nb::list out;
    for (const Entry& entry : known_machines())
      out.append(nb::make_tuple(entry.name, entry.width, entry.source));
    return out;
  });
}

}  // namespace prnn
