// The processor that a plan is made for: its caches, and how fast its threads are.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "cpu/plan/rates.h"
#include "cpu/problem.h"

namespace prnn {

struct Machine {
  std::string name;    // of the microarchitecture, as machines.cc has it
  std::string source;  // of its rates: measured how, or assumed
  // The cache that a thread has for itself: the second-level one, on every processor we know; and
  // the one that cores share, the third-level one; 0: none.
  std::int64_t cache_bytes, shared_cache_bytes;
  Rates rates;
  // Ways that are to be taken where there are such, whatever they cost: for tests and measurements.
  std::optional<WeightSource> wanted_source = {};
  std::optional<Partition> wanted_partition = {};
};

// This one, as the system describes it, or the environment where that says otherwise
// (cpu/environment.h); with the rates of vectors of so many floats.
const Machine& this_machine(int width);

// One by its name in machines.cc, with the caches of this one.
std::optional<Machine> machine_named(const std::string& name);

}  // namespace prnn
