// The CUDA engine on the emulator against the same passes run naively, one unit after the other:
// every cell, pass, exchange and number format, in buffers of the exact size. Results must be equal
// bit by bit whatever the schedule.
//
//   check_cuda_engine [option=value ...]
//
//   cases=GLOB ...   which; `*` and `?` in names are those of a shell. All, if not given
//   schedules=N      orders of threads and of arriving stores, drawn from seeds 1 to N
//   resident=N       only N teams run at a time; 0: all of them
//   input=nan        some inputs are NaN, of the bits that also mean "unwritten"
//   fill=zero        the host's mistake: the mailbox is filled with zeros
//   fault=NAME       a mistake of emulator/faults.h
//
// What is compiled: cuda_cases.h.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "native/cuda_cases.h"
#include "native/cuda_compare.h"
#include "native/cuda_data.h"
#include "native/cuda_naive.h"
#include "native/cuda_naive_phases.h"
#include "native/options.h"

namespace prnn {
namespace {

using emulator::Options;
using emulator::Statistics;

// ---- runs ----

struct Asked {
  std::string cases = "*", input, fill, fault;
  int schedules = 2, resident = 0;
};

template <Number kNumber, Exchange kExchange, Tile kTile, class Pass>
Statistics launch(const Task<Pass>& task, const Plan& plan, const Asked& asked, int schedule) {
  emulator::fill_mailbox(kExchange, task, asked.fill == "zero" ? 0 : 0xff);
  Options options;
  options.seed = static_cast<std::uint64_t>(schedule);
  options.fault = asked.fault;
  options.resident_blocks = std::min(asked.resident * plan.blocks, plan.grid());
  using E = Engine<Pass, kNumber, kExchange, kTile>;
  const auto kernel = [&] {
    // Registers that nothing has written to contain NaN.
    alignas(E) char registers[sizeof(E)];
    std::memset(registers, 0xff, sizeof registers);
    asm volatile("" ::"r"(registers) : "memory");
    (new (registers) E(task))->run();
  };
  return emulator::launch(emulator::launch_of(plan), kernel, options);
}

// Steps of all jobs in which something is multiplied.
std::int64_t steps_of_jobs(const Shape& shape, int columns) {
  std::int64_t steps = 0;
  for (std::int64_t g = 0; g < shape.groups; ++g)
    for (std::int64_t first = 0; first < shape.batch; first += columns) {
      std::int64_t longest = 0;
      for (std::int64_t b = first; b < std::min(first + columns, shape.batch); ++b)
        longest = std::max(longest, shape.length(b, g));
      steps += longest;
    }
  return steps;
}

// Where rows end early, there are as many products less as there are steps less.
template <Number kNumber, Exchange kExchange, Tile kTile, class Pass>
std::string wrong_work(const Statistics& statistics, Task<Pass> task, const CudaCall& call,
                       const Plan& plan, const Asked& asked) {
  const std::int64_t steps = steps_of_jobs(call.shape, kTile.columns());
  task.pass.shape.lengths = nullptr;
  const auto all = launch<kNumber, kExchange, kTile>(task, plan, asked, 1).matrix_products;
  Shape whole = call.shape;
  whole.lengths = nullptr;
  const std::int64_t all_steps = steps_of_jobs(whole, kTile.columns());
  const auto want = all / static_cast<std::uint64_t>(all_steps) * static_cast<std::uint64_t>(steps);
  if (statistics.matrix_products == want) return "";
  return "does " + std::to_string(statistics.matrix_products) + " products, " +
         std::to_string(want) + " are needed";
}

// What is wrong with a case; empty if nothing is, nothing where it is not compiled.
template <Number kNumber>
std::optional<std::string> run_case(const Case& c, const Plan& plan, const Asked& asked) {
  using Value = typename UnitIo<kNumber>::Value;
  // The arrays come once it is known that the instance is compiled.
  const CudaCall sizes{c.pass, cell_spec(c.cell), c.number, c.shape,         {},
                       {},     nullptr,           {},       is_stack(c.cell)};
  bool compiled = false;
  visit_instance<kNumber>(sizes, plan,
                          [&]<Exchange kExchange, Tile kTile, class Pass>(const Task<Pass>&) {
                            compiled = is_selected<Pass, kNumber, kExchange, kTile>();
                          });
  if (!compiled) return {};

  Data<Value> data(c, cell_spec(c.cell), asked.input == "nan" ? Values::kWithNan : Values::kRandom);
  const auto inputs = copies(data.inputs);
  struct Results {
    std::vector<std::vector<Value>> arrays;
    std::vector<std::vector<float>> sums;
  } first;
  std::string work;
  const auto run = [&](int schedule) {  // schedule 0: naively
    Results results;
    data.forget();
    visit_instance<kNumber>(
        data.call, plan, [&]<Exchange kExchange, Tile kTile, class Pass>(const Task<Pass>& task) {
          if constexpr (is_selected<Pass, kNumber, kExchange, kTile>()) {
            Statistics did;
            if (schedule == 0)
              NaiveRun<kNumber, Pass>(task.pass).run();
            else
              did = launch<kNumber, kExchange, kTile>(task, plan, asked, schedule);
            results = {copies(data.results), copies(data.sums)};
            if (data.call.shape.lengths != nullptr && schedule == asked.schedules)
              work = wrong_work<kNumber, kExchange, kTile>(did, task, data.call, plan, asked);
          }
        });
    return results;
  };
  const Results want = run(0);
  for (int schedule = 1; schedule <= asked.schedules; ++schedule) {
    const std::string of_schedule = " (schedule " + std::to_string(schedule) + ")";
    Results got;
    try {
      got = run(schedule);
    } catch (const emulator::EmulatorError& e) {
      return e.what() + of_schedule;
    }
    const bool is_first = schedule == 1;
    const int layers = is_stack(c.cell) ? static_cast<int>(c.shape.groups) : 1;
    std::string error = wrong<kNumber>("result ", got.arrays, want.arrays,
                                       is_first ? got.arrays : first.arrays, Scale::kSmall, layers);
    if (error.empty())
      error = wrong<kNumber>("sum ", got.sums, want.sums, is_first ? got.sums : first.sums);
    if (error.empty()) error = work;
    if (!error.empty()) return error + of_schedule;
    for (std::size_t n = 0; n < inputs.size(); ++n)
      if (!same_bits(data.inputs[n].copy(), inputs[n]))
        return "input " + std::to_string(n) + " is written to" + of_schedule;
    if (is_first) first = std::move(got);
  }
  return "";
}

template <Number kNumber>
std::optional<std::string> run_if_selected(const Case& c, const Plan& plan, const Asked& asked) {
  if constexpr (is_any_selected<kNumber>()) return run_case<kNumber>(c, plan, asked);
  return {};
}

std::optional<std::string> run_case(const Case& c, const Plan& plan, const Asked& asked) {
  switch (c.number) {
    case Number::kBfloat16:
      return run_if_selected<Number::kBfloat16>(c, plan, asked);
    case Number::kFloat16:
      return run_if_selected<Number::kFloat16>(c, plan, asked);
    case Number::kTf32:
      return run_if_selected<Number::kTf32>(c, plan, asked);
    case Number::kFloat32:
      return run_if_selected<Number::kFloat32>(c, plan, asked);
  }
  return {};
}

}  // namespace
}  // namespace prnn

int main(int argc, char** argv) {
  prnn::Asked asked;
  const auto text = [](std::string& to) { return [&to](const std::string& v) { to = v; }; };
  const auto number = [](int& to) {
    return [&to](const std::string& v) { to = std::atoi(v.c_str()); };
  };
  if (!prnn::read_options(argc, argv,
                          {{"cases", text(asked.cases)},
                           {"input", text(asked.input)},
                           {"fill", text(asked.fill)},
                           {"fault", text(asked.fault)},
                           {"schedules", number(asked.schedules)},
                           {"resident", number(asked.resident)}}))
    return 2;
  int failed = 0, ran = 0;
  for (const prnn::Case& c : prnn::cases()) {
    const prnn::Plan plan = prnn::plan_of(c);
    const std::string name = prnn::name_of(c, plan);
    if (!prnn::matches(asked.cases, name)) continue;
    const auto error = prnn::run_case(c, plan, asked);
    if (!error) continue;
    ++ran;
    if (error->empty()) continue;
    ++failed;
    std::printf("%s: %s\n", name.c_str(), error->c_str());
  }
  if (ran == 0) std::printf("no case of that name\n");
  if (failed == 0 && ran > 0) std::printf("ok %d\n", ran);
  return failed != 0 || ran == 0;
}
