// What a way of running a call takes, modelled: in each step a thread reads its weights from where
// they lie while it multiplies, and then does the cells' math; threads that share the units of a
// step meet at a barrier after each of its phases.
#pragma once
#include <algorithm>
#include <cmath>

#include "cpu/plan/machine.h"
#include "cpu/problem.h"

namespace prnn {

// A call as the model sees it.
struct Amounts {
  double groups, rows, steps, phases;
  double weight_bytes;   // of a group
  double multiply_adds;  // of a row of a group, in a step
  double gates;          // likewise; 0 for a product alone
  double published;      // values of a row that the next step multiplies; likewise
  bool is_backward;
  bool are_of_bfloat16;  // products of packed weights, by instructions for it
  double rows_of_tile;   // of theirs: that take as long as one; or 1
  Dtype dtype;
};

// A way of running it. Rows: of the batch, in a part of it.
struct Choice {
  WeightSource source;
  Partition partition;
  int threads;
  std::int64_t rows;
  bool operator==(const Choice&) const = default;
};

// What that takes, in µs.
struct Cost {
  double once = 0;  // packing, and until all threads are there
  double read = 0, multiply = 0, pointwise = 0, barrier = 0, other = 0;  // of a step
  double steps = 0;                                                      // that a thread takes

  // What can be done meanwhile is not quite free.
  static constexpr double kOverlapped = 0.2;
  double work() const {
    return std::max(read, multiply) + kOverlapped * std::min(read, multiply) + pointwise;
  }
  double step_us() const { return work() + barrier + other; }
  double call_us() const { return once + steps * step_us(); }
};

// A thread that reads so many bytes, of so many that all threads read, goes there and back: what it
// has read last is in its cache still.
inline double read_us(const Machine& machine, const Reading& at, double bytes, double all_bytes,
                      double farther) {
  const Rates& rates = machine.rates;
  const double own = std::min(bytes, static_cast<double>(machine.cache_bytes) * rates.own_part);
  const double shared = static_cast<double>(machine.shared_cache_bytes) * rates.shared_part;
  const double in_shared = (bytes - own) * std::min(1.0, shared / std::max(all_bytes, 1.0));
  const double in_memory = bytes - own - in_shared;
  return 1e-3 * (own / at.own + farther * (in_shared / at.shared + in_memory / at.memory));
}

// What is left of float's rates where numbers have to be converted.
inline double of_float(const Rates& rates, const Amounts& amounts) {
  return amounts.dtype == Dtype::kBfloat16  ? rates.bfloat16
         : amounts.dtype == Dtype::kFloat16 ? rates.float16
                                            : 1;
}

// As many rows of the batch as take as long in whole tiles. One of a half of its rows, or fewer,
// takes 10 cycles instead of 16 (cpu/tiles.h).
inline double rows_of_tiles(const Amounts& amounts, double rows) {
  const double whole = amounts.rows_of_tile;
  if (whole > 1 && rows <= whole / 2) return whole * 10 / 16;
  return std::ceil(rows / whole) * whole;
}

// Packing reads and writes all weights; of groups that take turns, to the same place.
inline double pack_us(const Machine& machine, const Amounts& amounts, bool take_turns) {
  const Rates& rates = machine.rates;
  const double bytes = amounts.groups * amounts.weight_bytes;
  const double touched = bytes + (take_turns ? amounts.weight_bytes : bytes);
  const double held = std::max(static_cast<double>(machine.cache_bytes) * rates.own_part,
                               static_cast<double>(machine.shared_cache_bytes) * rates.shared_part);
  const double cached = bytes * std::min(1.0, held / std::max(touched, 1.0));
  const double rate = amounts.is_backward ? rates.pack_backward : rates.pack;
  return 1e-3 * (cached / rate + (bytes - cached) / rates.pack_uncached) / of_float(rates, amounts);
}

inline Cost cost_of(const Machine& machine, const Amounts& amounts, const Choice& choice) {
  const Rates& rates = machine.rates;
  const bool is_unpacked = choice.source == WeightSource::kUnpacked;
  const bool by_batch = choice.partition == Partition::kBatch, is_shared = choice.threads > 1;
  const double threads = choice.threads, rows = static_cast<double>(choice.rows);
  const double all_bytes = amounts.groups * amounts.weight_bytes;
  const bool take_turns = by_batch && rows >= amounts.rows;  // groups, as a thread's
  // All threads' rates, of one's.
  const double speed = is_shared ? threads * rates.together : 1;
  Cost out;
  out.once = rates.call_us + (is_shared ? rates.join_us : 0);
  if (choice.source == WeightSource::kPacked)
    out.once += pack_us(machine, amounts, take_turns) / speed;
  // Parts of the batch follow each other, each through all steps, each for one group.
  const double parts = by_batch ? amounts.groups * std::ceil(amounts.rows / rows) : 1;
  out.steps = amounts.steps * (by_batch ? std::ceil(parts / threads) : 1);
  const double groups = by_batch ? 1 : amounts.groups;
  const double slowness = is_shared ? 1 / rates.together : 1;  // of a thread
  const double share = slowness / (by_batch ? 1 : threads);    // of a step

  const double bytes = groups * amounts.weight_bytes / (by_batch ? 1 : threads);
  const bool in_parts = is_unpacked && is_shared && choice.partition == Partition::kHidden;
  const double passes = is_unpacked ? std::ceil(rows / kUnpackedRows) : 1;
  out.read = passes * slowness *
             read_us(machine, is_unpacked ? rates.unpacked : rates.packed, bytes, all_bytes,
                     in_parts ? rates.parts_of_lines : 1);
  // Of groups that take turns, what is unpacked lies afar until it is read once.
  if (is_unpacked && by_batch && amounts.groups > 1)
    out.once +=
        std::max(0.0, passes * slowness *
                              read_us(machine, rates.unpacked, all_bytes / threads, all_bytes, 1) -
                          parts / threads * out.read);
  const double multiplied = is_unpacked ? rows : rows_of_tiles(amounts, rows);
  out.multiply = 1e-3 * share * groups * amounts.multiply_adds * multiplied /
                 (is_unpacked               ? of_float(rates, amounts) * rates.multiply_unpacked
                  : amounts.are_of_bfloat16 ? rates.multiply_bfloat16
                                            : rates.multiply_packed);
  out.pointwise = 1e-3 * share * groups * amounts.gates * rows /
                  (of_float(rates, amounts) *
                   (amounts.is_backward ? rates.pointwise_backward : rates.pointwise));
  out.other = groups * rates.step_us;
  if (choice.source == WeightSource::kPackedPerPanel)
    out.other += pack_us(machine, amounts, take_turns) / speed;
  if (is_shared && !by_batch) {
    const double barriers = amounts.phases * (choice.partition == Partition::kColumns ? 2 : 1);
    // A call of one step has none but at its end.
    if (amounts.steps * barriers > 1) out.barrier = barriers * rates.barrier_us;
    // What the others have made comes from their caches.
    const double values = amounts.groups * amounts.rows * amounts.published * (1 - 1 / threads);
    out.barrier += 1e-3 * 4 * values / rates.packed.shared + rates.uneven * out.work();
  }
  return out;
}

}  // namespace prnn
