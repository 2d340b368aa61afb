// Runs a kernel's PTX, as nvcc has made it, in the emulator.
#pragma once
#include "ptx_interpreter/program.h"

namespace prnn::interpreter {

// What fma.rn does. nvcc contracts products and sums of the sources to it: rounded twice, they give
// the bits of sources that a host has compiled. Its mathematical functions are written with it, and
// as exact as they are documented if it is fused.
enum class Fma { kRoundsTwice, kFused };

// The kernel, by the thread of the emulator that calls (or by none, where it needs no other
// threads). `parameters` are entry.parameter_bytes bytes.
void run(const Entry& entry, const void* parameters, Fma fma = Fma::kRoundsTwice);

}  // namespace prnn::interpreter
