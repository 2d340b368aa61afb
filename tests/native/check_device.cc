// The CUDA engine on a GPU against the same passes run naively on the host: every instance, cell
// and control, by way of the engine's own launches and without JAX. The naive run and the
// comparison are those of check_cuda_engine.cc.
//
//   check_device [option=value ...]
//
//   cases=GLOB ...  which, as in check_cuda_engine.cc; all, if not given
//   input=nan       some inputs are NaN, of the bits that also mean "unwritten"
//   steps=N         long sequences, of N steps, too
//   runs=N          of each case; results must have the same bits. 2, if not given
//   seconds=N       no case begins later
//   patience=N      seconds that a block waits for another; 0 for ever; 2, if not given
//
// All kernels are prepared before any runs, larger plans first, so that what preparing one leaves
// behind meets the launches of others. A row of JSON for each number format and exchange; one for
// each case that fails. Ends with 0 if none does, 77 without a GPU.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "native/cuda_cases.h"
#include "native/cuda_compare.h"
#include "native/cuda_data.h"
#include "native/cuda_naive.h"
#include "native/cuda_naive_phases.h"
#include "native/gpu.h"
#include "native/options.h"

namespace prnn {
namespace {

struct Asked {
  std::string cases = "*", input;
  std::int64_t steps = 0;
  int runs = 2;
  double seconds = 1e9, patience = 2;
};

// ---- what is not among the emulator's cases ----

// Clusters of every size, also odd ones, and of some sizes above that of portable ones.
void add_clusters(std::vector<Case>& out) {
  for (int blocks = 2; blocks <= kMaxCluster; ++blocks) {
    const auto pass = blocks % 2 == 0 ? PassKind::kForward : PassKind::kBackward;
    const int index = 3;  // of a list of instances: the cluster's
    const Instance instance = instances(CellKind::kLstm, pass, false)[index];
    const auto products = pass_sizes(CellKind::kLstm, pass, false).products;
    const int units = units_per_block(instance.tile, products, Number::kBfloat16);
    const std::int64_t hidden = blocks * units - blocks % 3;
    out.push_back(
        {"lstm", pass, Number::kBfloat16, index, {2, 3, 1, hidden, false, blocks % 4 < 2, {}}, 1});
  }
}

// Backward, of the cell whose gradient vanishes: the kept values are drawn, not computed, and those
// of other cells would make it grow.
void add_long(std::vector<Case>& out, std::int64_t steps) {
  for (const int index : {0, 3, 4}) {  // a grid, a cluster, a block
    const Shape shape{steps, 2, 1, 40, false, false, false};
    out.push_back({"gru", PassKind::kForward, Number::kFloat16, index, shape, 1});
    out.push_back({"rnn_tanh", PassKind::kBackward, Number::kFloat16, index, shape, 1});
  }
}

// ---- a case ----

// The instance that a plan names, with its pass.
template <Number kNumber>
void run_naively(const CudaCall& call, const Plan& plan) {
  visit_instance<kNumber>(call, plan,
                          []<Exchange kExchange, Tile kTile, class Pass>(const Task<Pass>& task) {
                            NaiveRun<kNumber, Pass>(task.pass).run();
                          });
}

// Why it cannot run there; empty if it can.
std::string refusal(const Device& device, const Plan& plan) {
  const auto blocks = static_cast<std::size_t>(plan.blocks);
  if (plan.exchange == Exchange::kCluster && device.clusters[blocks] == 0)
    return "the device has no such clusters";
  if (plan.exchange == Exchange::kGrid && plan.grid() > device.sms) return "too many blocks";
  if (plan.shared_bytes > device.shared_bytes) return "too much shared memory";
  return "";
}

// What is wrong; empty if nothing is.
template <Number kNumber>
std::string run_case(Gpu& gpu, const Case& c, const Plan& plan, const Asked& asked) {
  using Value = typename UnitIo<kNumber>::Value;
  const CellSpec cell = cell_spec(c.cell);
  const Values values = asked.input == "nan" ? Values::kWithNan : Values::kRandom;
  Data<Value> on_host(c, cell, values);
  run_naively<kNumber>(on_host.call, plan);
  const auto arrays = copies(on_host.results);
  const auto sums = copies(on_host.sums);

  Data<Value, DeviceMemory> data(c, cell, values);
  const bool is_small = c.shape.time <= 8 && c.shape.hidden <= 128;
  const Scale scale = is_small ? Scale::kSmall : Scale::kLarge;
  const int layers = is_stack(c.cell) ? static_cast<int>(c.shape.groups) : 1;
  std::vector<std::vector<Value>> first;
  std::vector<std::vector<float>> first_sums;
  for (int n = 0; n < asked.runs; ++n) {
    data.forget();
    gpu.run(data.call, plan);
    const auto got = copies(data.results);
    const auto got_sums = copies(data.sums);
    if (n == 0) {
      first = got;
      first_sums = got_sums;
    }
    std::string error = wrong<kNumber>("result ", got, arrays, first, scale, layers);
    if (error.empty()) error = wrong<kNumber>("sum ", got_sums, sums, first_sums, scale);
    if (!error.empty()) return error + " (run " + std::to_string(n + 1) + ")";
  }
  const auto inputs = copies(data.inputs), before = copies(on_host.inputs);
  for (std::size_t n = 0; n < inputs.size(); ++n)
    if (!same_bits(inputs[n], before[n])) return "input " + std::to_string(n) + " is written to";
  return "";
}

std::string run_case(Gpu& gpu, const Case& c, const Plan& plan, const Asked& asked) {
  switch (c.number) {
    case Number::kBfloat16:
      return run_case<Number::kBfloat16>(gpu, c, plan, asked);
    case Number::kFloat16:
      return run_case<Number::kFloat16>(gpu, c, plan, asked);
    case Number::kTf32:
      return run_case<Number::kTf32>(gpu, c, plan, asked);
    case Number::kFloat32:
      return run_case<Number::kFloat32>(gpu, c, plan, asked);
  }
  return "";
}

// ---- all of them ----

struct Chosen {
  Case c;
  Plan plan;
  std::string name;
};

std::vector<Chosen> chosen_cases(const Asked& asked) {
  std::vector<Case> all = cases();
  add_clusters(all);
  if (asked.steps > 0) add_long(all, asked.steps);
  std::vector<Chosen> out;
  for (const Case& c : all) {
    const Plan plan = plan_of(c);
    const bool compiled = is_compiled({plan.exchange, plan.tile}, c.number);
    if (const std::string name = name_of(c, plan); compiled && matches(asked.cases, name))
      out.push_back({c, plan, name});
  }
  std::stable_sort(out.begin(), out.end(), [](const Chosen& a, const Chosen& b) {
    return a.plan.shared_bytes > b.plan.shared_bytes;
  });
  return out;
}

int run_all(const Asked& asked) {
  const auto began = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  Gpu gpu(asked.patience);
  std::vector<Chosen> chosen = chosen_cases(asked);
  struct Count {
    int ran = 0, failed = 0, left_out = 0;
  };
  std::map<std::string, Count> counts;  // "bf16-grid"
  const auto count_of = [&](const Chosen& of) -> Count& {
    const std::size_t number = of.name.find('-', of.name.find('-') + 1) + 1;
    const std::size_t exchange = of.name.find('-', number) + 1;
    const std::size_t end = of.name.find_first_of("0123456789", exchange);
    return counts[of.name.substr(number, end - number)];
  };
  const auto leaves = [&](const Chosen& of) { return !refusal(gpu.device(), of.plan).empty(); };
  for (const Chosen& of : chosen)
    if (leaves(of)) ++count_of(of).left_out;
  chosen.erase(std::remove_if(chosen.begin(), chosen.end(), leaves), chosen.end());

  for (const auto& [c, plan, name] : chosen) {
    CudaCall call{c.pass, cell_spec(c.cell), c.number, c.shape,         {},
                  {},     nullptr,           {},       is_stack(c.cell)};
    static constexpr std::int32_t kSome = 0;  // not read: a call that has controls is not plain
    if (*c.controls != '\0') call.shape.lengths = &kSome;
    gpu.prepare(call, plan);
  }
  int failed = 0, ran = 0;
  for (const Chosen& of : chosen) {
    if (seconds() > asked.seconds) {
      ++count_of(of).left_out;
      continue;
    }
    ++ran;
    ++count_of(of).ran;
    const std::string error = run_case(gpu, of.c, of.plan, asked);
    if (error.empty()) continue;
    ++failed;
    ++count_of(of).failed;
    std::printf("{\"part\": \"engine\", \"check\": \"%s\", \"ok\": false, \"error\": \"%s\"}\n",
                of.name.c_str(), error.c_str());
    std::fflush(stdout);
  }
  for (const auto& [name, count] : counts)
    std::printf(
        "{\"part\": \"engine\", \"check\": \"%s\", \"ok\": %s, \"cases\": %d, \"left_out\": %d}\n",
        name.c_str(), count.failed == 0 ? "true" : "false", count.ran, count.left_out);
  std::printf(
      "{\"part\": \"engine\", \"check\": \"all\", \"ok\": %s, \"cases\": %d, \"device\": \"%s\", "
      "\"seconds\": %.1f}\n",
      failed == 0 && ran > 0 ? "true" : "false", ran, gpu.device().name.c_str(), seconds());
  return failed != 0 || ran == 0;
}

}  // namespace
}  // namespace prnn

int main(int argc, char** argv) {
  prnn::Asked asked;
  const auto text = [](std::string& to) { return [&to](const std::string& v) { to = v; }; };
  const auto number = [](auto& to) {
    return [&to](const std::string& v) {
      to = static_cast<std::remove_reference_t<decltype(to)>>(std::atof(v.c_str()));
    };
  };
  if (!prnn::read_options(argc, argv,
                          {{"cases", text(asked.cases)},
                           {"input", text(asked.input)},
                           {"steps", number(asked.steps)},
                           {"runs", number(asked.runs)},
                           {"patience", number(asked.patience)},
                           {"seconds", number(asked.seconds)}}))
    return 2;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 77;
  return prnn::run_all(asked);
}
