// How fast a processor does what a step consists of. A row of these for each: machines.cc.
#pragma once
#include <string>

namespace prnn {

// GB/s at which a thread reads weights again and again that lie in its own cache, in the one that
// cores share, and in memory.
struct Reading {
  double own, shared, memory;
};

struct Rates {
  double own_part, shared_part;  // of a cache: what weights have of it
  double together;               // a thread where several work, as a part of one alone
  Reading packed, unpacked;
  double parts_of_lines;  // times as long: parts of each line of unpacked weights, from afar
  double multiply_packed, multiply_unpacked;  // weights that are there: G multiply-adds/s
  double multiply_bfloat16;                   // packed, where there are instructions for it
  double bfloat16, float16;  // packing, pointwise and unpacked products in these, of float's rate
  double pack, pack_backward, pack_uncached;  // GB/s; uncached: more than the shared cache holds
  double pointwise, pointwise_backward;       // gates of a step: G/s
  double step_us, barrier_us;                 // of each step; of each barrier
  double uneven;  // waiting at barriers, as a part of the step: threads are not equally fast
  double call_us, join_us;  // of each call; until other threads are there
};

// f(name, value) for each.
template <class R, class F>
void visit_rates(R& r, F&& f) {
  f("own_part", r.own_part);
  f("shared_part", r.shared_part);
  f("together", r.together);
  f("packed_own", r.packed.own);
  f("packed_shared", r.packed.shared);
  f("packed_memory", r.packed.memory);
  f("unpacked_own", r.unpacked.own);
  f("unpacked_shared", r.unpacked.shared);
  f("unpacked_memory", r.unpacked.memory);
  f("parts_of_lines", r.parts_of_lines);
  f("multiply_packed", r.multiply_packed);
  f("multiply_unpacked", r.multiply_unpacked);
  f("multiply_bfloat16", r.multiply_bfloat16);
  f("bfloat16", r.bfloat16);
  f("float16", r.float16);
  f("pack", r.pack);
  f("pack_backward", r.pack_backward);
  f("pack_uncached", r.pack_uncached);
  f("pointwise", r.pointwise);
  f("pointwise_backward", r.pointwise_backward);
  f("step_us", r.step_us);
  f("barrier_us", r.barrier_us);
  f("uneven", r.uneven);
  f("call_us", r.call_us);
  f("join_us", r.join_us);
}

// Of lines of a name and a number each, as benchmarks/calibrate.py writes them. An empty error, or
// what is wrong: a name that is none or is missing, a number that is not above 0.
struct RatesFile {
  Rates rates;
  std::string error;
};
RatesFile read_rates(const std::string& path);

}  // namespace prnn
