// Weights that are packed before the call, once for many: of a forward pass that makes its own a_x.
//
// They are an array that begins with a description of itself. A call that is given one that is not
// for it, such as one made by another instruction set, packs its weights as if it had none.
#pragma once
#include "cpu/run.h"

namespace prnn {

// What the array begins with.
struct Prepared {
  char isa[24];  // by which it is read, and a mark that it is such an array
  std::int64_t dtype, gates, phases, groups, hidden, input_size;
  Layout steps, projection;
};

// Words of 4 bytes that the array has on any instruction set.
std::int64_t prepared_words(const Problem& problem);

// Writes it, cut for calls of the problem's sizes: the weights of both products, packed.
void prepare(const Isa& isa, const Problem& problem, ThreadPool& pool, void* out);

// The problem's, if it has one that is for it; else null.
const Prepared* prepared_for(const Isa& isa, const Problem& problem);

// Where its weights are. The engine does not write them.
float* prepared_steps(const Problem& problem);
float* prepared_projection(const Problem& problem);

}  // namespace prnn
