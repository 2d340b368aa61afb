// The engine as nvcc compiles it, its PTX interpreted on the emulator, against the same sources
// compiled for the host: every result must have the same bits.
//
//   check_ptx KERNELS MATH [cases=GLOB ...] [seed=N]
//
//   KERNELS  PTX of cuda/instances.cu, of one number format
//   MATH     PTX of ptx_interpreter/math.cu: the sources, too, take these functions
//
// What is compiled: cuda_cases.h. Prints the kernels that have run and of how many cases each, and
// the largest errors of MATH's exp, tanh and log1p, in units of float's spacing.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <typeinfo>

#include "native/cuda_cases.h"
#include "native/cuda_data.h"
#include "native/device_math.h"
#include "ptx_interpreter/interpreter.h"

namespace prnn {
namespace {

using interpreter::Entry;
using interpreter::Fma;
using interpreter::Program;

// The largest error of a function, in units of float's spacing at the result.
double worst_error(const Entry& function, double (*exact)(double), double from, double to) {
  double worst = 0;
  constexpr int kPoints = 4001;
  for (int n = 0; n < kPoints; ++n) {
    const auto x = static_cast<float>(from + (to - from) * n / (kPoints - 1));
    const double want = exact(static_cast<double>(x)), got = call(function, x, Fma::kFused);
    const int exponent = want == 0 ? -126 : std::max(std::ilogb(want), -126);
    worst = std::max(worst, std::fabs(got - want) / std::ldexp(1, exponent - 23));
  }
  return worst;
}

// The kernel of an instance, by its mangled name: `recurrence<Pass, number, exchange, tile...>`.
Entry find_kernel(const Program& program, const std::type_info& pass, Exchange exchange,
                  const Tile& tile) {
  const std::string_view type = pass.name();
  // "N4prnn11ForwardPass...E" is "NS_11ForwardPass...E" where the namespace has been named before.
  const std::string wanted = "recurrenceINS_" + std::string(type.substr(6));
  std::string numbers = "ExchangeE" + std::to_string(static_cast<int>(exchange)) + "E";
  for (const int n : {tile.m_tiles, tile.register_blocks, tile.n_tiles, tile.warps_m, tile.ahead})
    numbers += "Li" + std::to_string(n) + "E";
  std::string_view found;
  for (const std::string_view name : program.names())
    if (name.find(wanted) != name.npos && name.find(numbers) != name.npos) {
      if (!found.empty()) throw interpreter::PtxError("two kernels are " + wanted + numbers);
      found = name;
    }
  if (found.empty()) throw interpreter::PtxError("no kernel is " + wanted + " ..." + numbers);
  return program.decode(found);
}

// Where one has another value. All NaN are one: the host's processor hands on their bits.
template <class T>
std::string difference(const char* what, const std::vector<std::vector<T>>& got,
                       const std::vector<std::vector<T>>& want) {
  for (std::size_t r = 0; r < want.size(); ++r)
    for (std::size_t n = 0; n < want[r].size(); ++n) {
      const T a = got[r][n], b = want[r][n];
      const float x = to_float(a), y = to_float(b);
      if (std::memcmp(&a, &b, sizeof(T)) == 0 || (x != x && y != y)) continue;
      char text[120];
      std::snprintf(text, sizeof text, "%s %zu differs at %zu of %zu: %.9g, the sources' %.9g",
                    what, r, n, want[r].size(), static_cast<double>(x), static_cast<double>(y));
      return text;
    }
  return "";
}

struct Runs {
  const Program& program;
  std::uint64_t seed = 1;
  std::map<std::string, int> kernels;  // of each name, how many cases
};

// Both runs of a case: what is wrong, if anything is.
template <Number kNumber>
std::string run_case(const Case& c, const Plan& plan, Runs& runs) {
  Data<typename UnitIo<kNumber>::Value> data(c, cell_spec(c.cell), Values::kRandom);
  std::string error;
  visit_instance<kNumber>(
      data.call, plan, [&]<Exchange kExchange, Tile kTile, class Pass>(const Task<Pass>& task) {
        if constexpr (is_selected<Pass, kNumber, kExchange, kTile>()) {
          const Entry entry = find_kernel(runs.program, typeid(Pass), kExchange, kTile);
          if (entry.parameter_bytes != sizeof(task)) {
            error = "takes " + std::to_string(entry.parameter_bytes) +
                    " bytes of parameters, not " + std::to_string(sizeof(task));
            return;
          }
          const Name name =
              name_of(c.cell, c.pass, c.number, instances_of<Pass>(), {kExchange, kTile});
          ++runs.kernels[std::string(name.text) + (kIsPlain<Pass> ? "-plain" : "")];
          const emulator::Launch shape = emulator::launch_of(plan);
          emulator::Options options;
          options.seed = runs.seed;
          emulator::fill_mailbox(kExchange, task);
          emulator::launch(
              shape, [&] { Engine<Pass, kNumber, kExchange, kTile>(task).run(); }, options);
          const auto results = copies(data.results);
          const auto sums = copies(data.sums);
          data.forget();
          emulator::fill_mailbox(kExchange, task);
          emulator::launch(shape, [&] { interpreter::run(entry, &task); }, options);
          error = difference("result", copies(data.results), results);
          if (error.empty()) error = difference("sum", copies(data.sums), sums);
        }
      });
  return error;
}

template <Number kNumber>
std::string run_if_selected(const Case& c, const Plan& plan, Runs& runs) {
  if constexpr (is_any_selected<kNumber>()) return run_case<kNumber>(c, plan, runs);
  return "";
}

std::string run_case(const Case& c, const Plan& plan, Runs& runs) {
  try {
    switch (c.number) {
      case Number::kBfloat16:
        return run_if_selected<Number::kBfloat16>(c, plan, runs);
      case Number::kFloat16:
        return run_if_selected<Number::kFloat16>(c, plan, runs);
      case Number::kTf32:
        return run_if_selected<Number::kTf32>(c, plan, runs);
      case Number::kFloat32:
        return run_if_selected<Number::kFloat32>(c, plan, runs);
    }
    return "";
  } catch (const std::runtime_error& e) {  // the emulator's and the interpreter's
    return e.what();
  }
}

}  // namespace
}  // namespace prnn

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const prnn::Program kernels(argv[1]);
  const prnn::DeviceMath math(argv[2]);
  prnn::math = &math;
  prnn::Runs runs{kernels, 1, {}};
  std::string globs = "*";
  for (int i = 3; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.substr(0, 6) == "cases=")
      globs = argument.substr(6);
    else if (argument.substr(0, 5) == "seed=")
      runs.seed = std::stoull(std::string(argument.substr(5)));
    else
      return 2;
  }
  int failed = 0;
  for (const prnn::Case& c : prnn::cases()) {
    const prnn::Plan plan = prnn::plan_of(c);
    const std::string name = prnn::name_of(c, plan);
    if (!prnn::matches(globs, name)) continue;
    const std::string error = prnn::run_case(c, plan, runs);
    if (error.empty()) continue;
    ++failed;
    std::printf("%s: %s\n", name.c_str(), error.c_str());
  }
  std::printf("errors %.2f %.2f %.2f\n", prnn::worst_error(math.expf, std::exp, -87, 88),
              prnn::worst_error(math.tanhf, std::tanh, -10, 10),
              prnn::worst_error(math.log1pf, std::log1p, 0, 1));
  for (const auto& [name, count] : runs.kernels) std::printf("ran %s %d\n", name.c_str(), count);
  return failed != 0 || runs.kernels.empty();
}
