// Which kernel runs a call, on how many blocks, and how long a step would take: a pure function of
// the call's shape and of what is known of the device. Host only; needs no GPU and no CUDA.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/cell_table.h"
#include "core/shape.h"
#include "cuda/devices.h"
#include "cuda/tile.h"

namespace prnn {

struct Request {
  CellKind cell;
  PassKind pass;
  Number number;
  Shape shape;
  int max_sms;              // for this call, so that others run beside it; 0: all
  bool is_stack = false;    // the groups are layers of a stack (core/stack_passes.h)
  Normalisation norm = {};  // of an LSTM or a GRU with layer norm inside of its step
};

// Of one step of all teams, in microseconds. A block's product and the reading of what it
// multiplies overlap, so that the parts are more than their sum.
struct StepTime {
  double exchange, product, load, reduce, pointwise;
  double total;
};

// Teams of blocks take jobs (cuda/task.h): the whole sequence of one group and `columns()` rows of
// the batch. Teams run side by side; where there are more jobs than teams, in several rounds. Of a
// stack, as many teams to each layer.
struct Plan {
  Exchange exchange;
  Tile tile;
  int units;   // per block
  int blocks;  // per team
  int teams;
  std::int64_t jobs, rounds;
  // Of each warp: of all k blocks, those in shared memory. The others are in registers, or, of a
  // streamed tile, whose numbers are those of all panels of a block, streamed.
  int k_blocks, shared_k_blocks;
  Panels panels;
  std::int64_t shared_bytes;  // of each block
  StepTime step;
  double load_us;  // of a group's weights
  double call_us;

  int grid() const { return blocks * teams; }
  int streamed_k_blocks() const { return tile.is_streamed() ? k_blocks - shared_k_blocks : 0; }
  // How often a step reads what is streamed: for each slice of the batch. A scan reads it once.
  std::int64_t readings(std::int64_t batch) const {
    return streamed_k_blocks() > 0 ? ceil_div(batch, tile.columns()) : 0;
  }
  double step_us() const { return static_cast<double>(rounds) * step.total; }  // of all jobs
};

// One compiled instance and the fastest plan that it allows, or what keeps it from having one.
struct Candidate {
  Instance instance;
  std::optional<Plan> plan;
  std::string refusal;
};

struct Planning {
  std::optional<Plan> best;
  std::vector<Candidate> candidates;
  std::string reason;    // why this one, or why none, in the caller's words
  bool is_valid = true;  // false: no device could take the request; `reason` says why
};

// Takes a streamed tile only where nothing else holds the weights, and the least modelled time; but
// of two exchanges that differ by less than a tenth the one that asks less of the device: a block
// before a cluster before a grid.
Planning plan(const Request& request, const Device& device);

// The largest layer that the chip holds, everything else as in the request; 0 where it holds none.
// Larger ones take a streamed tile.
std::int64_t largest_hidden(const Request& request, const Device& device);

// All candidates, a line each, the best one marked.
std::string describe(const Planning& planning);

const char* name(Exchange exchange);
const char* name(Number number);  // the dtype of the caller's arrays

}  // namespace prnn
