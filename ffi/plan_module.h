// The engines' planners, as Python sees them.
#pragma once
#include <nanobind/nanobind.h>

namespace prnn {

// Adds cuda_plan, cuda_largest_hidden, and the devices known to the module.
void bind_planner(nanobind::module_& m);

// And cpu_plan, instruction_set, cpu_workers, cpu_rates and known_processors.
void bind_cpu_planner(nanobind::module_& m);

// And sizes of workspaces and of prepacked arrays.
void bind_workspaces(nanobind::module_& m);

}  // namespace prnn
