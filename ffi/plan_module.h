// The CUDA engine's planner, as Python sees it.
#pragma once
#include <nanobind/nanobind.h>

namespace prnn {

// Adds cuda_plan, cuda_largest_hidden, and the devices known to the module.
void bind_planner(nanobind::module_& m);

}  // namespace prnn
