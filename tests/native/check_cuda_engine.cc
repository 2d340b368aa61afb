// The CUDA engine on the emulator against the same passes run naively, one unit after the other:
// every cell, pass, exchange and number format, in buffers of the exact size. Results must be
// equal bit by bit whatever the schedule.
//
//   check_cuda_engine [filter [schedules [fault]]]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "emulator/engine.h"

namespace prnn {
namespace {

using emulator::Options;

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

// An array of the exact size, so that a sanitizer sees what lies beyond; filled with NaN first.
template <class T>
class Array {
 public:
  explicit Array(std::int64_t n) : n_(n), data_(new (std::align_val_t{64}) T[n]) {
    std::memset(static_cast<void*>(data_.get()), 0xff, n * sizeof(T));
  }
  T* get() const { return data_.get(); }
  std::int64_t size() const { return n_; }
  void fill(std::mt19937& random, float scale) {
    std::uniform_real_distribution<float> uniform(-scale, scale);
    for (std::int64_t i = 0; i < n_; ++i) data_.get()[i] = rounded(uniform(random));
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
  std::vector<Array<T>> arrays;
  std::vector<int> results;  // numbers of the arrays that are written
  CudaCall call;

  Data(const Case& c, const CellSpec& cell, std::int64_t workspace) {
    call = {c.pass, cell, c.number, c.shape, {}, {}, nullptr};
    const CellNumbers numbers = prnn::numbers(cell);
    const Shape& s = c.shape;
    const std::int64_t state = s.batch * s.groups * s.hidden, sequence = state * s.time;
    std::mt19937 random(7);
    arrays.reserve(32);
    const auto input = [&](std::int64_t n, float scale) {
      arrays.emplace_back(n).fill(random, scale);
      return arrays.back().get();
    };
    const auto output = [&](std::int64_t n) {
      results.push_back(static_cast<int>(arrays.size()));
      return arrays.emplace_back(n).get();
    };
    const float weight = 1.5f / std::sqrt(static_cast<float>(s.hidden));
    const std::int64_t weights = s.groups * s.hidden * numbers.gates * s.hidden;
    if (c.pass == PassKind::kForward) {
      auto& at = call.forward;
      at.a_x = input(sequence * numbers.gates, 1.0f);
      at.w_hh = input(weights, weight);
      at.b_hh = input(s.groups * numbers.gates * s.hidden, 0.5f);
      for (int n = 0; n < numbers.states; ++n) at.state_0[n] = input(state, 0.8f);
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
      for (int n = 0; n < numbers.states; ++n) at.dstate_n[n] = input(state, 1.0f);
      at.da_x = output(sequence * numbers.gates);
      at.da_h = numbers.same_gradient ? at.da_x : output(sequence * numbers.gates);
      for (int n = 0; n < numbers.states; ++n) at.dstate_0[n] = output(state);
    }
    call.workspace = arrays.emplace_back(workspace / static_cast<int>(sizeof(T))).get();
  }
};

// What a matrix product takes of a stored number.
float operand(Number number, float v) {
  return number == Number::kTf32 ? float_of(ptx::cvt_rna_tf32(v)) : v;
}

template <class Pass, Number kNumber>
void run_naively(const Pass& pass) {
  const Shape& shape = pass.shape;
  for (std::int64_t s = 0; s < pass.steps(); ++s)
    for (std::int64_t g = 0; g < shape.groups; ++g)
      for (std::int64_t b = 0; b < shape.batch; ++b)
        for (std::int64_t unit = 0; unit < shape.hidden; ++unit) {
          Vec<Pass::kProducts> products;
          const auto* row = pass.input(g, 0, s, b);
          for (int p = 0; p < Pass::kProducts; ++p) {
            double sum = to_float(pass.bias(g, 0, unit, p));
            for (std::int64_t k = 0; row != nullptr && k < pass.depth(0); ++k)
              sum += static_cast<double>(operand(kNumber, to_float(row[k]))) *
                     operand(kNumber, to_float(pass.weight(g, 0, unit, p, k)));
            products[p] = static_cast<float>(sum);
          }
          pass.template step<0>(g, s, b, unit, products, UnitIo<kNumber>{});
        }
}

template <Number kNumber>
bool run_case(const Case& c, int schedules, const std::string& fault, const std::string& name) {
  using Value = typename UnitIo<kNumber>::Value;
  const CellSpec cell = cell_spec(c.cell);
  CudaCall sizes{c.pass, cell, c.number, c.shape, {}, {}, nullptr};
  const std::int64_t workspace = workspace_bytes(sizes);
  const Data<Value> expected(c, cell, workspace);
  const Instance instance =
      instances(pass_sizes(cell.kind, c.pass).products)[static_cast<std::size_t>(c.instance)];
  const Plan plan = emulator::plan_by_hand(sizes, instance, c.teams);
  visit_instance<kNumber>(expected.call, plan,
                          [&]<Exchange, Tile, class Pass>(const Task<Pass>& task) {
                            run_naively<Pass, kNumber>(task.pass);
                          });

  std::vector<std::vector<char>> first;
  for (int schedule = 0; schedule < schedules; ++schedule) {
    const Data<Value> data(c, cell, workspace);
    Options options;
    options.seed = static_cast<std::uint64_t>(schedule) + 1;
    options.fault = fault;
    try {
      emulator::run<kNumber>(data.call, plan, options);
    } catch (const emulator::EmulatorError& error) {
      std::printf("%s: %s\n", name.c_str(), error.what());
      return false;
    }
    for (std::size_t r = 0; r < data.results.size(); ++r) {
      const auto& got = data.arrays[static_cast<std::size_t>(data.results[r])];
      const auto& want = expected.arrays[static_cast<std::size_t>(data.results[r])];
      const auto* bytes = reinterpret_cast<const char*>(got.get());
      const std::vector<char> copy(bytes, bytes + got.size() * sizeof(Value));
      if (schedule == 0) {
        // Sums in another order, so that a value may round to its neighbour, and errors then add
        // up over a few steps.
        const double bound = value_bytes(kNumber) == 2
                                 ? (kNumber == Number::kBfloat16 ? 4e-2 : 5e-3)
                                 : (kNumber == Number::kTf32 ? 3e-3 : 2e-5);
        double worst = 0;
        for (std::int64_t i = 0; i < got.size(); ++i) {
          const double error =
              std::fabs(static_cast<double>(to_float(got.get()[i])) - to_float(want.get()[i]));
          const double scale = 1 + std::fabs(to_float(want.get()[i]));
          worst = std::isnan(error) ? INFINITY : std::max(worst, error / scale);
        }
        if (!(worst <= bound)) {
          std::printf("%s: result %zu differs by %g\n", name.c_str(), r, worst);
          return false;
        }
        first.push_back(copy);
      } else if (copy != first[r]) {
        std::printf("%s: result %zu depends on the schedule\n", name.c_str(), r);
        return false;
      }
    }
  }
  return true;
}

bool run_case(const Case& c, int schedules, const std::string& fault, const std::string& name) {
  switch (c.number) {
    case Number::kBfloat16:
      return run_case<Number::kBfloat16>(c, schedules, fault, name);
    case Number::kFloat16:
      return run_case<Number::kFloat16>(c, schedules, fault, name);
    case Number::kTf32:
      return run_case<Number::kTf32>(c, schedules, fault, name);
    case Number::kFloat32:
      return run_case<Number::kFloat32>(c, schedules, fault, name);
  }
  return false;
}

std::string name_of(const Case& c) {
  constexpr const char* kNumbers[] = {"bf16", "f16", "tf32", "f32"};
  constexpr const char* kExchanges[] = {"block", "cluster", "grid"};
  const CellSpec cell = cell_spec(c.cell);
  const Instance i =
      instances(pass_sizes(cell.kind, c.pass).products)[static_cast<std::size_t>(c.instance)];
  char text[160];
  std::snprintf(text, sizeof text, "%s-%s-%s-%s%d.%d.%d.%d-T%d-B%d-G%d-H%d", c.cell,
                c.pass == PassKind::kForward ? "forward" : "backward",
                kNumbers[static_cast<int>(c.number)], kExchanges[static_cast<int>(i.exchange)],
                i.tile.m_tiles, i.tile.register_blocks, i.tile.n_tiles, i.tile.warps_m,
                static_cast<int>(c.shape.time), static_cast<int>(c.shape.batch),
                static_cast<int>(c.shape.groups), static_cast<int>(c.shape.hidden));
  return text;
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const char* cell : {"rnn_tanh", "rnn_relu", "lstm", "gru"})
    for (const PassKind pass : {PassKind::kForward, PassKind::kBackward})
      for (const Number number :
           {Number::kBfloat16, Number::kFloat16, Number::kTf32, Number::kFloat32}) {
        const int products = pass_sizes(cell_spec(cell).kind, pass).products;
        const int count = static_cast<int>(instances(products).size());
        for (int i = 0; i < count; ++i) {
          const bool grid =
              instances(products)[static_cast<std::size_t>(i)].exchange == Exchange::kGrid;
          // Rows and units that fill no tile; both directions; two groups for one team.
          const int hidden = i % 2 ? 43 : 40;
          out.push_back({cell,
                         pass,
                         number,
                         i,
                         {4, 11, 2, hidden, i % 3 == 0, i % 2 == 0, true},
                         grid ? 2 : 1});
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
  out.push_back({"lstm", forward, Number::kTf32, 2, {3, 18, 1, 650, false, false, false}, 1});
  out.push_back({"rnn_relu", forward, Number::kFloat32, 2, {3, 9, 1, 1030, true, false, false}, 1});
  out.push_back({"gru", backward, Number::kTf32, 1, {3, 8, 1, 500, false, false, false}, 1});
  return out;
}

}  // namespace
}  // namespace prnn

int main(int argc, char** argv) {
  const std::string filter = argc > 1 ? argv[1] : "";
  const int schedules = argc > 2 ? std::atoi(argv[2]) : 2;
  const std::string fault = argc > 3 ? argv[3] : "";
  int failed = 0, ran = 0;
  for (const prnn::Case& c : prnn::cases()) {
    const std::string name = prnn::name_of(c);
    if (name.find(filter) == std::string::npos) continue;
    ++ran;
    failed += !prnn::run_case(c, schedules, fault, name);
  }
  if (failed == 0 && ran > 0) std::printf("ok %d\n", ran);
  return failed != 0 || ran == 0;
}
