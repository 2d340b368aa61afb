// Every way that the CPU engine's planner considers, timed here beside what its model expects: what
// cpu/plan/machines.cc is calibrated with.
//
//   plans ISA THREADS SECONDS [TRIALS] < calls
//
// A call is a line: pass cell dtype hidden batch time groups input_size. A row of JSON for each way
// of it: the least µs of calls of the ways in turns, for so many seconds a call. With a number of
// trials, the rates that fit best are sought by so many, and are the last row; with what fits
// before and after: the root mean square of the logarithm of the model's error, and the mean of
// that of what its choices take longer than the best.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "cpu/plan/describe.h"
#include "cpu/run.h"
#include "cpu/workers.h"

namespace prnn {
namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point began) {
  return std::chrono::duration<double, std::micro>(Clock::now() - began).count();
}

CellSpec cell_named(const std::string& name) {
  if (name == "lstm") return {CellKind::kLstm, 0, 0};
  if (name == "slstm") return {CellKind::kSlstm, 0, 0};
  if (name == "gru") return {CellKind::kGru, 0, 0};
  if (name == "gru_reset_before") return {CellKind::kGruResetBefore, 0, 0};
  return {CellKind::kRnnTanh, 0, 0};
}
Dtype dtype_named(const std::string& name) {
  return name == "bfloat16"  ? Dtype::kBfloat16
         : name == "float16" ? Dtype::kFloat16
                             : Dtype::kFloat32;
}
// Arrays of the number that is 0.0078 in float and bfloat16, and 1 in float16.
class Arrays {
 public:
  // Of so many values in any format.
  float* make(std::int64_t count) {
    constexpr std::int64_t kAlignment = 32;
    auto& made = all_.emplace_back(static_cast<std::size_t>(count + kAlignment));
    std::fill(made.begin(), made.end(), std::bit_cast<float>(0x3c003c00));
    const auto at = reinterpret_cast<std::uintptr_t>(made.data()) / sizeof(float);
    return made.data() + (kAlignment - at % kAlignment);
  }

 private:
  std::vector<std::vector<float>> all_;
};

// What the problem's call reads and writes, the reserve too.
void fill(Problem& p, Arrays& arrays) {
  const CellNumbers n = numbers(p.cell);
  const Shape& s = p.shape;
  const std::int64_t state = s.batch * s.groups * s.hidden, sequence = state * s.time;
  const std::int64_t columns = s.groups * s.hidden * n.gates, inputs = p.projection.input_size;
  const float* const w_hh = arrays.make(columns * s.hidden);
  float* const y = arrays.make(sequence);
  float* const saved = arrays.make(sequence * n.kept(false));
  ForwardArrays<void>& forward = p.forward;
  BackwardArrays<void>& backward = p.backward;
  forward.a_x = inputs > 0 ? nullptr : arrays.make(sequence * n.gates);
  forward.w_hh = backward.w_hh = w_hh;
  forward.b_hh = arrays.make(columns);
  forward.y = y;
  backward.y = y;
  forward.saved = saved;
  backward.saved = saved;
  forward.saves_reserve = true;
  backward.dy = arrays.make(sequence);
  backward.da_x = arrays.make(sequence * n.gates);
  backward.da_h = n.same_gradient ? backward.da_x : arrays.make(sequence * n.gates);
  forward.state_0.h = backward.dstate_n.h = arrays.make(state);
  forward.state_n.h = backward.dstate_0.h = arrays.make(state);
  for (int i = 0; i < n.states; ++i) backward.state_0[i] = arrays.make(state);
  for (int i = 0; i < n.states - 1; ++i) {
    forward.state_0.others[i] = backward.dstate_n.others[i] = arrays.make(state);
    forward.state_n.others[i] = backward.dstate_0.others[i] = arrays.make(state);
  }
  if (inputs == 0) return;
  p.projection.x = arrays.make(s.time * s.batch * inputs);
  p.projection.w = arrays.make(inputs * columns);
  p.projection.b = arrays.make(columns);
}

// A call, in all ways.
struct Measured {
  std::string call;
  Amounts amounts;
  std::vector<CpuPlan> plans;
  std::vector<double> us;  // of each, the least
};

Measured measure(const Isa& isa, const Problem& problem, ThreadPool& pool, double seconds,
                 const std::string& call) {
  Measured out{call, amounts(isa, problem, pool.threads()), {}, {}};
  for (const Choice& choice : choices(isa, problem, pool.threads()))
    out.plans.push_back(plan_of(this_machine(isa.width), isa, problem, choice));
  std::vector<float> workspace(static_cast<std::size_t>(workspace_floats(problem)));
  out.us.assign(out.plans.size(), 1e30);
  const auto began = Clock::now();
  for (int round = 0; round < 3 || us_since(began) < 1e6 * seconds; ++round)
    for (std::size_t n = 0; n < out.plans.size(); ++n)
      for (int repeat = 0; repeat < 2; ++repeat) {  // the first finds what another way has left
        const auto start = Clock::now();
        run(isa, problem, out.plans[n], pool, workspace.data());
        if (repeat > 0) out.us[n] = std::min(out.us[n], us_since(start));
      }
  return out;
}

void print(const Measured& measured) {
  for (std::size_t n = 0; n < measured.plans.size(); ++n) {
    const CpuPlan& p = measured.plans[n];
    std::printf(
        "{\"call\": \"%s\", \"weights\": \"%s\", \"partition\": \"%s\", \"threads\": %d, "
        "\"us\": %.2f, \"modelled_us\": %.2f}\n",
        measured.call.c_str(), name(p.choice.source), name(p.choice.partition), p.choice.threads,
        measured.us[n], p.cost.call_us());
  }
  std::fflush(stdout);
}

// How well a model fits: its error, and what its choices take longer than the best, logarithms;
// and the mean square of those, for one choice that is far off is worse than some that are little.
struct Fit {
  double error = 0, regret = 0, square = 0;
  double loss() const { return 0.5 * error + 5 * regret + 20 * square; }
};
Fit fit_of(const Machine& machine, const std::vector<Measured>& all) {
  Fit out;
  double ways = 0;
  for (const Measured& m : all) {
    std::size_t chosen = 0;
    double least = 1e300;
    for (std::size_t n = 0; n < m.plans.size(); ++n) {
      const double us = cost_of(machine, m.amounts, m.plans[n].choice).call_us();
      out.error += std::pow(std::log(us / m.us[n]), 2);
      ways += 1;
      if (us < least) {
        least = us;
        chosen = n;
      }
    }
    const double more = std::log(m.us[chosen] / *std::min_element(m.us.begin(), m.us.end()));
    out.regret += more;
    out.square += more * more;
  }
  out.error = std::sqrt(out.error / ways);
  out.regret /= static_cast<double>(all.size());
  out.square /= static_cast<double>(all.size());
  return out;
}

// How far rates are from others: what measurements do not tell of stays as it was.
double distance(Rates a, Rates& b) {
  std::vector<double> from;
  double out = 0;
  std::size_t n = 0;
  visit_rates(a, [&](const char*, double value) { from.push_back(value); });
  visit_rates(b,
              [&](const char*, double value) { out += std::pow(std::log(value / from[n++]), 2); });
  return out;
}

// Moves a few rates at a time, and keeps what fits better. Parts are at most 1.
Rates fitted(Machine machine, const std::vector<Measured>& all, int trials) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  const Rates first = machine.rates;
  const auto loss_of = [&] {
    return fit_of(machine, all).loss() + 2e-3 * distance(first, machine.rates);
  };
  double best = loss_of();
  for (int n = 0; n < trials; ++n) {
    const Rates before = machine.rates;
    const double width = n % 3 == 0 ? 0.3 : 0.08, chance = 2.0 / 24;
    visit_rates(machine.rates, [&](const std::string& name, double& value) {
      if (std::uniform_real_distribution<double>()(random) < chance)
        value *= std::exp(width * normal(random));
      if (name == "own_part" || name == "shared_part" || name == "together")
        value = std::min(value, 1.0);
    });
    Rates& r = machine.rates;
    for (Reading* at : {&r.packed, &r.unpacked}) {
      at->shared = std::min(at->shared, at->own);
      at->memory = std::min(at->memory, at->shared);
    }
    r.parts_of_lines = std::max(r.parts_of_lines, 1.0);
    if (const double loss = loss_of(); loss < best)
      best = loss;
    else
      machine.rates = before;
  }
  return machine.rates;
}

int main_of(int argc, char** argv) {
  const Isa* const isa = argc >= 4 ? find_isa(argv[1]) : nullptr;
  if (isa == nullptr) {
    std::fprintf(stderr, "plans ISA THREADS SECONDS [TRIALS] < calls\n");
    return 2;
  }
  std::vector<Measured> all;
  Workers pool(std::atoi(argv[2]));
  std::string pass, cell, dtype;
  Shape s{};
  std::int64_t inputs;
  while (std::cin >> pass >> cell >> dtype >> s.hidden >> s.batch >> s.time >> s.groups >> inputs) {
    Problem p{};
    p.kind = pass == "backward" ? Kind::kBackward : Kind::kForward;
    p.cell = cell_named(cell);
    p.dtype = dtype_named(dtype);
    p.shape = s;
    p.projection.input_size = inputs;
    Arrays arrays;
    fill(p, arrays);
    std::string call = pass + " " + cell + " " + dtype;
    for (const std::int64_t n : {s.hidden, s.batch, s.time, s.groups, inputs})
      call += " " + std::to_string(n);
    all.push_back(measure(*isa, p, pool, std::atof(argv[3]), call));
    print(all.back());
  }
  if (argc == 4) return 0;
  Machine machine = this_machine(isa->width);
  const Fit before = fit_of(machine, all);
  machine.rates = fitted(machine, all, std::atoi(argv[4]));
  const Fit after = fit_of(machine, all);
  std::printf("{\"error\": [%.4f, %.4f], \"regret\": [%.4f, %.4f]", before.error, after.error,
              before.regret, after.regret);
  visit_rates(machine.rates,
              [](const char* name, double value) { std::printf(", \"%s\": %.4g", name, value); });
  std::printf("}\n");
  return 0;
}

}  // namespace
}  // namespace prnn

int main(int argc, char** argv) { return prnn::main_of(argc, argv); }
