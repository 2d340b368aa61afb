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
// PRNN_COMPILED, globs as above over names without the sizes ("lstm-forward-bf16-grid0"), limits
// what is compiled; cases of other instances do not exist then.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/devices.h"
#include "emulator/engine.h"

#ifndef PRNN_COMPILED
#define PRNN_COMPILED "*"
#endif

namespace prnn {
namespace {

using emulator::Options;

// ---- names ----

constexpr bool matches_one(std::string_view glob, std::string_view text) {
  if (glob.empty()) return text.empty();
  if (glob[0] == '*')
    return matches_one(glob.substr(1), text) ||
           (!text.empty() && matches_one(glob, text.substr(1)));
  return !text.empty() && (glob[0] == '?' || glob[0] == text[0]) &&
         matches_one(glob.substr(1), text.substr(1));
}
// Whether one of the globs, separated by spaces, matches.
constexpr bool matches(std::string_view globs, std::string_view text) {
  while (!globs.empty()) {
    const std::size_t end = globs.find(' ');
    if (matches_one(globs.substr(0, end), text)) return true;
    globs = end == std::string_view::npos ? "" : globs.substr(end + 1);
  }
  return false;
}

struct Name {  // std::string is constant to few compilers yet
  char text[64] = {};
  std::size_t length = 0;

  constexpr Name& operator+=(std::string_view s) {
    for (const char c : s) text[length++] = c;
    return *this;
  }
  constexpr operator std::string_view() const { return {text, length}; }
};
// "lstm-forward-bf16-grid0": cell, pass, number format, and the instance by its exchange and its
// place in the list.
constexpr Name name_of(std::string_view cell, PassKind pass, Number number, int products,
                       const Instance& instance) {
  constexpr const char* kNumbers[] = {"bf16", "f16", "tf32", "f32"};
  constexpr const char* kExchanges[] = {"block", "cluster", "grid"};
  char place = '0';
  for (const Instance& other : instances(products)) {
    if (other == instance) break;
    ++place;
  }
  Name name;
  name += cell;
  name += pass == PassKind::kForward ? "-forward-" : "-backward-";
  (name += kNumbers[static_cast<int>(number)]) += "-";
  name += kExchanges[static_cast<int>(instance.exchange)];
  return name += {&place, 1};
}

template <class Activation>
constexpr const char* cell_name(const Rnn<Activation>*) {
  return "rnn";
}
constexpr const char* cell_name(const Lstm*) { return "lstm"; }
constexpr const char* cell_name(const Gru*) { return "gru"; }

template <class Pass, Number kNumber, Exchange kExchange, Tile kTile>
constexpr bool is_selected() {
  using Cell = std::remove_cvref_t<decltype(Pass::cell)>;
  const PassKind pass = Pass::kStartsPublished ? PassKind::kForward : PassKind::kBackward;
  const char* cell = cell_name(static_cast<const Cell*>(nullptr));
  return matches(PRNN_COMPILED, name_of(cell, pass, kNumber, Pass::kProducts, {kExchange, kTile}));
}

// ---- cases ----

constexpr int kPlanned = -1;  // in place of an instance: what the planner takes on an H200

struct Case {
  const char* cell;
  PassKind pass;
  Number number;
  int instance;  // in instances(products)
  Shape shape;   // time, batch, groups, hidden, time_major, reverse, bidirectional
  int teams;
};

CellSpec cell_spec(const std::string& name) {
  if (name == "rnn_tanh") return {CellKind::kRnnTanh, 0.25f, 0.0f};
  if (name == "rnn_relu") return {CellKind::kRnnRelu, 0.0f, 0.9f};
  if (name == "gru") return {CellKind::kGru, 0, 0};
  return {CellKind::kLstm, 0, 0};
}

Plan plan_of(const Case& c) {
  const CellSpec cell = cell_spec(c.cell);
  const CudaCall call{c.pass, cell, c.number, c.shape, {}, {}, nullptr};
  if (c.instance != kPlanned) {
    const auto list = instances(pass_sizes(cell.kind, c.pass).products);
    return emulator::plan_by_hand(call, list[static_cast<std::size_t>(c.instance)], c.teams);
  }
  const Planning planning =
      plan({cell.kind, c.pass, c.number, c.shape, 0}, *find_device("NVIDIA H200"));
  return planning.best.value();
}

std::string name_of(const Case& c, const Plan& plan) {
  char sizes[80];
  std::snprintf(sizes, sizeof sizes, "-T%d-B%d-G%d-H%d", static_cast<int>(c.shape.time),
                static_cast<int>(c.shape.batch), static_cast<int>(c.shape.groups),
                static_cast<int>(c.shape.hidden));
  const int products = pass_sizes(cell_spec(c.cell).kind, c.pass).products;
  const Name name = name_of(c.cell, c.pass, c.number, products, {plan.exchange, plan.tile});
  return std::string(name) + sizes;
}

std::vector<Case> cases() {
  constexpr Number kNumbers[] = {Number::kBfloat16, Number::kFloat16, Number::kTf32,
                                 Number::kFloat32};
  std::vector<Case> out;
  for (const char* cell : {"rnn_tanh", "rnn_relu", "lstm", "gru"})
    for (const PassKind pass : {PassKind::kForward, PassKind::kBackward})
      for (const Number number : kNumbers) {
        const int products = pass_sizes(cell_spec(cell).kind, pass).products;
        const int count = static_cast<int>(instances(products).size());
        for (int i = 0; i < count; ++i) {
          const int odd = i % 2, teams = 1 + (i + static_cast<int>(pass)) % 2;
          // Rows and units that fill no tile, in rows that are multiples of 16 bytes and that are
          // none; both directions; several jobs for a team, of one group or of two; a number of
          // steps that is even or odd.
          const int hidden = odd != 0 ? 43 : 40;
          out.push_back({cell,
                         pass,
                         number,
                         i,
                         {3 + odd, 14, 2, hidden, i % 3 == 0, i % 2 == 0, true},
                         teams});
          // Small, for many schedules. Several blocks to a team where the tile allows it.
          out.push_back({cell, pass, number, i, {3, 3, 2, hidden, i % 3 == 0, false, false}, 2});
        }
      }
  // Weights that overflow into shared memory; one row, one unit, one step; many jobs for a team.
  const auto forward = PassKind::kForward, backward = PassKind::kBackward;
  for (const Number number : {Number::kBfloat16, Number::kTf32}) {
    out.push_back({"lstm", backward, number, 4, {3, 3, 1, 100, false, false, false}, 1});
    out.push_back({"gru", forward, number, 4, {3, 3, 1, 128, true, true, false}, 1});
    out.push_back({"lstm", forward, number, 1, {1, 1, 1, 1, false, false, false}, 1});
    out.push_back({"gru", backward, number, 0, {5, 1, 3, 17, false, true, false}, 1});
    out.push_back({"rnn_tanh", forward, number, 2, {3, 50, 2, 64, true, false, false}, 3});
    out.push_back({"lstm", forward, number, 3, {6, 20, 3, 72, false, false, false}, 2});
  }
  // Granules that are whole while rows of 16 bytes are not; more teams than jobs.
  out.push_back({"lstm", forward, Number::kBfloat16, 0, {3, 3, 1, 44, false, false, false}, 1});
  out.push_back({"lstm", forward, Number::kBfloat16, 3, {2, 5, 1, 40, false, false, false}, 3});
  out.push_back({"lstm", forward, Number::kTf32, 2, {3, 18, 1, 650, false, false, false}, 1});
  out.push_back({"rnn_relu", forward, Number::kFloat32, 1, {2, 9, 1, 1400, true, false, false}, 1});
  out.push_back({"gru", backward, Number::kTf32, 1, {3, 8, 1, 500, false, false, false}, 1});
  out.push_back({"gru", forward, Number::kTf32, 2, {3, 9, 1, 650, false, false, false}, 1});
  out.push_back({"rnn_relu", forward, Number::kTf32, 2, {3, 9, 1, 1030, true, false, false}, 1});
  // As large as a layer gets.
  out.push_back({"lstm", forward, Number::kBfloat16, kPlanned, {3, 8, 1, 2048, true, {}, {}}, 1});
  out.push_back({"lstm", backward, Number::kBfloat16, kPlanned, {2, 8, 1, 2048, true, {}, {}}, 1});
  return out;
}

// ---- arrays ----

// An array of the exact size, so that a sanitizer sees what lies beyond; filled with NaN first.
template <class T>
class Array {
 public:
  explicit Array(std::int64_t n)
      : n_(n), data_(new (std::align_val_t{64}) T[static_cast<std::size_t>(n)]) {
    forget();
  }
  T* get() const { return data_.get(); }
  std::int64_t size() const { return n_; }
  std::size_t bytes() const { return static_cast<std::size_t>(n_) * sizeof(T); }
  std::vector<T> copy() const { return {get(), get() + n_}; }
  void forget() { std::memset(static_cast<void*>(get()), 0xff, bytes()); }
  void fill(std::mt19937& random, float scale) {
    std::uniform_real_distribution<float> uniform(-scale, scale);
    for (std::int64_t i = 0; i < n_; ++i) get()[i] = rounded(uniform(random));
  }
  static T rounded(float v) {
    if constexpr (std::is_same_v<T, float>) return v;
    if constexpr (std::is_same_v<T, Bfloat16>) return Format<Number::kBfloat16>::from_float(v);
    if constexpr (std::is_same_v<T, Float16>) return Format<Number::kFloat16>::from_float(v);
  }

 private:
  struct Free {
    void operator()(T* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::int64_t n_;
  std::unique_ptr<T[], Free> data_;
};

// All arrays of a call; the inputs are drawn from a seed.
template <class T>
struct Data {
  std::vector<Array<T>> inputs, results;
  Array<T> workspace;
  CudaCall call;

  Data(const Case& c, const CellSpec& cell, bool with_nan)
      : workspace(workspace_bytes({c.pass, cell, c.number, c.shape, {}, {}, nullptr}) /
                  static_cast<std::int64_t>(sizeof(T))),
        call{c.pass, cell, c.number, c.shape, {}, {}, workspace.get()} {
    const CellNumbers numbers = prnn::numbers(cell);
    const Shape& s = c.shape;
    const std::int64_t state = s.batch * s.groups * s.hidden, sequence = state * s.time;
    std::mt19937 random(7);
    const auto input = [&](std::int64_t n, float scale) {
      inputs.emplace_back(n).fill(random, scale);
      return inputs.back().get();
    };
    // In one row of the batch, where there are others.
    const auto input_with_nan = [&](std::int64_t n, float scale) {
      T* values = input(n, scale);
      if (with_nan) std::memset(static_cast<void*>(values), 0xff, sizeof(T));
      return values;
    };
    const auto output = [&](std::int64_t n) { return results.emplace_back(n).get(); };
    const float weight = 1.5f / std::sqrt(static_cast<float>(s.hidden));
    const std::int64_t weights = s.groups * s.hidden * numbers.gates * s.hidden;
    if (c.pass == PassKind::kForward) {
      auto& at = call.forward;
      at.a_x = input(sequence * numbers.gates, 1.0f);
      at.w_hh = input(weights, weight);
      at.b_hh = input(s.groups * numbers.gates * s.hidden, 0.5f);
      for (int n = 0; n < numbers.states; ++n) at.state_0[n] = input_with_nan(state, 0.8f);
      at.y = output(sequence);
      for (int n = 0; n < numbers.states; ++n) at.state_n[n] = output(state);
      if (numbers.saved > 0) at.saved = output(sequence * numbers.saved);
    } else {
      auto& at = call.backward;
      at.w_hh = input(weights, weight);
      at.y = input(sequence, 0.8f);
      if (numbers.saved > 0) at.saved = input(sequence * numbers.saved, 0.9f);
      for (int n = 0; n < numbers.states; ++n) at.state_0[n] = input(state, 0.8f);
      at.dy = input(sequence, 1.0f);
      for (int n = 0; n < numbers.states; ++n) at.dstate_n[n] = input_with_nan(state, 1.0f);
      at.da_x = output(sequence * numbers.gates);
      at.da_h = numbers.same_gradient ? at.da_x : output(sequence * numbers.gates);
      for (int n = 0; n < numbers.states; ++n) at.dstate_0[n] = output(state);
    }
  }
  void forget() {
    for (Array<T>& result : results) result.forget();
    workspace.forget();
  }
  static std::vector<std::vector<T>> copies(const std::vector<Array<T>>& arrays) {
    std::vector<std::vector<T>> out;
    for (const Array<T>& array : arrays) out.push_back(array.copy());
    return out;
  }
};

// ---- the naive run ----

// What a matrix product takes of a stored number.
float operand(Number number, float v) {
  return number == Number::kTf32 ? float_of(ptx::cvt_rna_tf32(v)) : v;
}

template <Number kNumber, class Pass>
void run_naively(const Pass& pass) {
  const Shape& shape = pass.shape;
  const std::int64_t depth = pass.depth(0);
  std::vector<float> weights;  // [groups, hidden, products, depth]
  for (std::int64_t g = 0; g < shape.groups; ++g)
    for (std::int64_t unit = 0; unit < shape.hidden; ++unit)
      for (int p = 0; p < Pass::kProducts; ++p)
        for (std::int64_t k = 0; k < depth; ++k)
          weights.push_back(operand(kNumber, to_float(pass.weight(g, 0, unit, p, k))));
  std::vector<float> row(static_cast<std::size_t>(depth));
  std::vector<typename Pass::Carry> carries;  // [groups, batch, hidden], as exact as the engine's
  const UnitIo<kNumber> io;
  for (std::int64_t g = 0; g < shape.groups; ++g)
    for (std::int64_t b = 0; b < shape.batch; ++b)
      for (std::int64_t unit = 0; unit < shape.hidden; ++unit)
        carries.push_back(pass.carried(g, 0, b, unit, io));
  for (std::int64_t s = 0; s < pass.steps(); ++s)
    for (std::int64_t g = 0; g < shape.groups; ++g)
      for (std::int64_t b = 0; b < shape.batch; ++b) {
        const auto* input = pass.input(g, 0, s, b);
        for (std::size_t k = 0; k < row.size(); ++k)
          row[k] = input == nullptr ? 0.0f : operand(kNumber, to_float(input[k]));
        for (std::int64_t unit = 0; unit < shape.hidden; ++unit) {
          Vec<Pass::kProducts> products;
          for (int p = 0; p < Pass::kProducts; ++p) {
            const float* w = &weights[static_cast<std::size_t>(
                ((g * shape.hidden + unit) * Pass::kProducts + p) * depth)];
            double sum = to_float(pass.bias(g, 0, unit, p));
            for (std::size_t k = 0; k < row.size(); ++k) sum += double{row[k]} * double{w[k]};
            products[p] = static_cast<float>(sum);
          }
          auto& carry =
              carries[static_cast<std::size_t>((g * shape.batch + b) * shape.hidden + unit)];
          const auto inputs = pass.fetch(g, s, b, unit, io);
          pass.publish(g, s, b, unit, pass.advance(g, s, b, unit, products, inputs, carry, io), io);
          if (s + 1 == pass.steps()) pass.keep(g, s, b, unit, carry, io);
        }
      }
}

// ---- comparison ----

// Engine and naive run round the same numbers to the same formats, but of sums that were added in
// another order, and in float: seldom, one rounds to its neighbour, and that shows in the next
// steps. Where a derivative jumps (ReLU), both look at the same y. Seen at most, over all cases:
//
//            worst   mean
//   bf16      0.17  0.0002   one rounding is at most 1
//   f16       0.50  0.011
//   tf32      0.15  0.041    float where it is stored: only what is multiplied is rounded so
//   f32        3.3  2.4      nothing but sums; 3.3e-7 of a float near 1
struct Bound {
  double spacing;  // of numbers from 1 to 2
  double worst;    // in spacings of the array's largest number
  double mean;     // in spacings of the number itself, or of a 16th of the largest
};
constexpr Bound bound_of(Number number) {
  switch (number) {
    case Number::kBfloat16:
      return {0x1p-7, 1, 0.01};
    case Number::kFloat16:
      return {0x1p-10, 1, 0.03};
    case Number::kTf32:
      return {0x1p-10, 0.4, 0.1};
    case Number::kFloat32:
      return {0x1p-23, 8, 6};
  }
  return {};
}

// How two arrays differ; empty where they do not, but for roundings.
template <Number kNumber, class T>
std::string difference(const std::vector<T>& got, const std::vector<T>& want) {
  double largest = 0;
  for (const T& v : want)
    if (const double w = to_float(v); !std::isnan(w)) largest = std::max(largest, std::fabs(w));
  const Bound bound = bound_of(kNumber);
  double worst = 0, sum = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double g = to_float(got[i]), w = to_float(want[i]);
    if (std::isnan(g) != std::isnan(w))
      return std::string("has ") + (std::isnan(g) ? "a NaN" : "no NaN") + " at " +
             std::to_string(i) + " of " + std::to_string(want.size());
    if (std::isnan(w) || g == w) continue;
    const double error = std::fabs(g - w) / bound.spacing;
    worst = std::max(worst, error / largest);
    sum += error / std::max(std::fabs(w), largest / 16);
  }
  const double mean = sum / static_cast<double>(std::max<std::size_t>(want.size(), 1));
  if (worst <= bound.worst && mean <= bound.mean) return "";
  char text[120];
  std::snprintf(text, sizeof text, "differs by up to %.3g, on average %.3g roundings", worst, mean);
  return text;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// ---- runs ----

struct Asked {
  std::string cases = "*", input, fill, fault;
  int schedules = 2, resident = 0;
};

template <Number kNumber, Exchange kExchange, Tile kTile, class Pass>
void launch(const Task<Pass>& task, const CudaCall& call, const Plan& plan, const Asked& asked,
            int schedule) {
  const Shape& shape = call.shape;
  const int unwritten = asked.fill == "zero" ? 0 : 0xff;
  if constexpr (kExchange == Exchange::kGrid) {
    const auto row_bytes = static_cast<std::size_t>(shape.batch * shape.groups * task.padded) *
                           sizeof(typename Pass::Value);
    if (task.initial != nullptr)
      std::memset(static_cast<void*>(task.initial), unwritten, row_bytes);
    std::memset(static_cast<void*>(task.mailbox), unwritten,
                row_bytes * static_cast<std::size_t>(shape.time * Pass::kPublished));
  }
  const emulator::Launch launch{plan.grid(), kExchange == Exchange::kCluster ? plan.blocks : 1,
                                kThreads, static_cast<std::size_t>(plan.shared_bytes),
                                kExchange == Exchange::kGrid};
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
  emulator::launch(launch, kernel, options);
}

// What is wrong with a case; empty if nothing is, nothing where it is not compiled.
template <Number kNumber>
std::optional<std::string> run_case(const Case& c, const Plan& plan, const Asked& asked) {
  using Value = typename UnitIo<kNumber>::Value;
  // The arrays come once it is known that the instance is compiled.
  const CudaCall sizes{c.pass, cell_spec(c.cell), c.number, c.shape, {}, {}, nullptr};
  bool compiled = false;
  visit_instance<kNumber>(sizes, plan,
                          [&]<Exchange kExchange, Tile kTile, class Pass>(const Task<Pass>&) {
                            compiled = is_selected<Pass, kNumber, kExchange, kTile>();
                          });
  if (!compiled) return {};

  Data<Value> data(c, cell_spec(c.cell), asked.input == "nan");
  const auto inputs = Data<Value>::copies(data.inputs);
  std::vector<std::vector<Value>> want, first;
  std::string error;
  const auto run = [&](int schedule) {  // schedule 0: naively
    data.forget();
    visit_instance<kNumber>(
        data.call, plan, [&]<Exchange kExchange, Tile kTile, class Pass>(const Task<Pass>& task) {
          if constexpr (is_selected<Pass, kNumber, kExchange, kTile>()) {
            if (schedule == 0)
              run_naively<kNumber>(task.pass);
            else
              launch<kNumber, kExchange, kTile>(task, data.call, plan, asked, schedule);
          }
        });
    return Data<Value>::copies(data.results);
  };
  want = run(0);
  for (int schedule = 1; schedule <= asked.schedules; ++schedule) {
    const std::string of_schedule = " (schedule " + std::to_string(schedule) + ")";
    std::vector<std::vector<Value>> got;
    try {
      got = run(schedule);
    } catch (const emulator::EmulatorError& e) {
      return e.what() + of_schedule;
    }
    for (std::size_t r = 0; r < got.size(); ++r) {
      const std::string result = "result " + std::to_string(r) + " ";
      if (const std::string d = difference<kNumber>(got[r], want[r]); !d.empty())
        return result + d + of_schedule;
      if (schedule > 1 && !same_bits(got[r], first[r]))
        return result + "depends on the schedule" + of_schedule;
    }
    for (std::size_t n = 0; n < inputs.size(); ++n)
      if (!same_bits(data.inputs[n].copy(), inputs[n]))
        return "input " + std::to_string(n) + " is written to" + of_schedule;
    if (schedule == 1) first = std::move(got);
  }
  return "";
}

std::optional<std::string> run_case(const Case& c, const Plan& plan, const Asked& asked) {
  switch (c.number) {
    case Number::kBfloat16:
      return run_case<Number::kBfloat16>(c, plan, asked);
    case Number::kFloat16:
      return run_case<Number::kFloat16>(c, plan, asked);
    case Number::kTf32:
      return run_case<Number::kTf32>(c, plan, asked);
    case Number::kFloat32:
      return run_case<Number::kFloat32>(c, plan, asked);
  }
  return {};
}

bool read(const std::string& argument, Asked& asked) {
  const std::size_t equals = argument.find('=');
  if (equals == std::string::npos) return false;
  const std::string option = argument.substr(0, equals), value = argument.substr(equals + 1);
  if (option == "cases")
    asked.cases = value;
  else if (option == "input")
    asked.input = value;
  else if (option == "fill")
    asked.fill = value;
  else if (option == "fault")
    asked.fault = value;
  else if (option == "schedules")
    asked.schedules = std::atoi(value.c_str());
  else if (option == "resident")
    asked.resident = std::atoi(value.c_str());
  else
    return false;
  return true;
}

}  // namespace
}  // namespace prnn

int main(int argc, char** argv) {
  prnn::Asked asked;
  for (int i = 1; i < argc; ++i)
    if (!prnn::read(argv[i], asked)) {
      std::printf("no option is '%s'\n", argv[i]);
      return 2;
    }
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
