// Weights that are packed before the call, once for many: of a forward pass that makes its own a_x.
//
// They are an array that begins with a description of itself. A call that is given one that is not
// for it, such as one made by another instruction set, packs its weights as if it had none. So it
// does where the description is damaged: any word of it must be what it was, which a checksum
// tells. So does a call whose weights are others than those that were packed, as far as a few of
// them show: such as those of an average or an optimiser's. Even one that was forged leads to no
// access beyond the array, whose size is checked before; what follows it are numbers, and any bits
// are numbers.
#pragma once
#include "cpu/run.h"

namespace prnn {

// What the array begins with.
struct Prepacked {
  char isa[16];  // by which it is read, and a mark that it is such an array
  std::int64_t dtype, gates, phases, groups, hidden, input_size;
  Layout steps, projection;
  WeightFormat weights;
  std::int64_t projected;  // Shape::projected
  std::uint64_t sample;    // of the weights it was made of
  std::uint64_t checksum;  // of all that
};

// Words of 4 bytes that the array has on any instruction set, of weights in the problem's format.
std::int64_t prepacked_words(const Problem& problem);

// Whether the format can hold its weights: deeper products than kMostQuantised have no room.
bool can_prepare(const Problem& problem);

// Writes it, cut for calls of the problem's sizes: the weights of both products, packed.
void prepare(const Isa& isa, const Problem& problem, ThreadPool& pool, void* out);

// What `checksum` is to be. No two descriptions that differ in one of its words have the same.
std::uint64_t checksum_of(const Prepacked& header);

// The problem's, if it has one that is for it; else null.
const Prepacked* prepacked_for(const Isa& isa, const Problem& problem);

// The problem, its weights in the format of those it is given.
Problem in_its_format(const Isa& isa, const Problem& problem);

// Where its weights are. The engine does not write them.
float* prepacked_steps(const Problem& problem);
float* prepacked_projection(const Problem& problem);

}  // namespace prnn
