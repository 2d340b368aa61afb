// What is known of processors.
#pragma once
#include <span>
#include <string_view>

#include "cpu/plan/rates.h"

namespace prnn {

struct Entry {
  const char* name;  // of the microarchitecture
  int width;         // floats of a vector that the rates are for
  const char* source;
  Rates rates;
};
std::span<const Entry> known_machines();

// The processor's, or what is taken of one that is not known.
const Entry& entry_of(std::string_view name, int width);

}  // namespace prnn
