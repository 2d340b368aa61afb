// The kernels of elementwise recurrences as nvcc compiles them, their PTX interpreted on the
// emulator, against the same sources compiled for the host: y must have the same bits.
//
//   check_elementwise_ptx KERNELS MATH     PTX of cuda/elementwise.cu and ptx_interpreter/math.cu
//
// Prints how many kernels the file has and how many of them have run.
#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/elementwise.cuh"
#include "emulator/emulator.h"
#include "native/device_math.h"

namespace prnn {
namespace {

using enum ElementwisePart;
using interpreter::Entry;
using interpreter::Program;

struct Linear {
  float operator()(float v) const { return v; }
};

// Of a kernel's template parameters, as its mangled name has them.
template <class T>
const char* name_of_value() {
  if constexpr (std::is_same_v<T, Bfloat16>) return "NS_8Bfloat16E";
  if constexpr (std::is_same_v<T, Float16>) return "NS_7Float16E";
  return "f";
}

struct Kernels {
  const Program& program;
  std::set<std::string> ran = {};

  // `elementwise<part, value, wide, numbers, f>`.
  Entry find(ElementwisePart part, const std::string& value, int wide, bool is_complex,
             bool is_linear) {
    const std::string first = "ElementwisePartE" + std::to_string(static_cast<int>(part)) + "E" +
                              value + "Li" + std::to_string(wide) + "E";
    const std::string numbers = is_complex ? "13ComplexNumber" : "5Reals";
    const std::string f = is_linear ? "6Linear" : "13AnyActivation";
    std::string_view found;
    for (const std::string_view name : program.names()) {
      const std::size_t at = name.find(first);
      if (at == name.npos || name.find(numbers, at) == name.npos || name.find(f, at) == name.npos)
        continue;
      if (!found.empty()) throw interpreter::PtxError("two kernels are " + first + numbers + f);
      found = name;
    }
    if (found.empty()) throw interpreter::PtxError("no kernel is " + first + numbers + f);
    ran.insert(std::string(found));
    return program.decode(found);
  }
};

// A call's arrays, and what it makes of them.
template <class T>
struct Call {
  std::vector<T> a, b, y_0, y;
  std::vector<float> workspace;
  ElementwiseTask task{};

  Call(const ElementwiseRecurrence& of, int chunks) {
    const std::int64_t all = of.elements() * of.steps;
    fill(a, of.is_constant ? of.elements() : all, 1);
    fill(b, all, 2);
    fill(y_0, of.elements(), 3);
    fill(y, all, 4);
    workspace.assign(2 * chunks * of.elements(), -7.0f);
    task.of = of;
    task.of.a = a.data();
    task.of.b = b.data();
    task.of.y_0 = y_0.data();
    task.of.y = y.data();
    const ElementwisePlan plan = in_chunks(of.steps, chunks);
    task.chunk = plan.chunk;
    task.chunks = plan.chunks;
    task.factor = workspace.data();
    task.sum = workspace.data() + plan.chunks * of.elements();
  }

  // Numbers from -1 to 1; some of them 0.
  static void fill(std::vector<T>& array, std::int64_t size, std::uint32_t seed) {
    array.resize(static_cast<std::size_t>(size));
    std::uint32_t state = 2654435769u * seed;
    for (T& value : array) {
      state = state * 1664525u + 1013904223u;
      const float number = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
      elementwise_store(state >> 27 == 0 ? 0.0f : number, value);
    }
  }
};

// A kernel on both.
template <ElementwisePart kPart, class T, int kWide, class Numbers, class F>
void run(Kernels& kernels, Call<T>& sources, Call<T>& compiled, const F& f) {
  const ElementwiseRecurrence& of = sources.task.of;
  const std::int64_t threads = of.elements() / kWide;
  emulator::Launch shape;
  shape.block = kElementwiseThreads;
  shape.grid = static_cast<int>((threads + kElementwiseThreads - 1) / kElementwiseThreads) *
               sources.task.chunks;
  emulator::launch(shape,
                   [&] { ElementwiseThread<kPart, T, kWide, Numbers, F>(sources.task, f).run(); });
  const Entry entry =
      kernels.find(kPart, name_of_value<T>(), kWide, std::is_same_v<Numbers, ComplexNumber>,
                   std::is_same_v<F, Linear>);
  const struct {
    ElementwiseTask task;
    F f;
  } parameters{compiled.task, f};
  emulator::launch(shape, [&] { interpreter::run(entry, &parameters, interpreter::Fma::kFused); });
}

template <class T, int kWide, class Numbers = Reals<kWide>>
void run_case(Kernels& kernels, ElementwiseRecurrence of, int chunks, int& failed) {
  of.is_complex = std::is_same_v<Numbers, ComplexNumber>;
  Call<T> sources(of, chunks), compiled(of, chunks);
  if constexpr (!std::is_same_v<Numbers, ComplexNumber>) {
    if (!of.is_linear) run<kAll, T, kWide, Numbers>(kernels, sources, compiled, of.f);
  }
  if (of.is_linear && sources.task.chunks == 1)
    run<kAll, T, kWide, Numbers>(kernels, sources, compiled, Linear{});
  if (of.is_linear && sources.task.chunks > 1) {
    run<kCarries, T, kWide, Numbers>(kernels, sources, compiled, Linear{});
    run<kFromThem, T, kWide, Numbers>(kernels, sources, compiled, Linear{});
  }
  if (std::memcmp(sources.y.data(), compiled.y.data(), sizeof(T) * sources.y.size()) == 0) return;
  ++failed;
  std::printf("%s, %d wide, %ld rows of %ld in %d chunks%s%s%s%s: results differ\n",
              name_of_value<T>(), kWide, static_cast<long>(of.rows), static_cast<long>(of.width),
              chunks, of.is_complex ? ", complex" : "", of.is_constant ? ", constant" : "",
              of.reverse ? ", reverse" : "", of.is_shifted ? ", shifted" : "");
}

int run_cases(Kernels& kernels) {
  int failed = 0;
  for (int options = 0; options < 16; ++options)
    for (const int chunks : {1, 3}) {
      ElementwiseRecurrence of{};
      of.rows = 2;
      of.steps = 45;
      of.reverse = options & 1;
      of.is_constant = options & 2;
      of.is_shifted = options & 4;
      of.is_linear = options & 8;
      of.f = kTanh;
      of.width = 5;
      run_case<float, 1>(kernels, of, chunks, failed);
      run_case<Bfloat16, 1>(kernels, of, chunks, failed);
      run_case<Float16, 1>(kernels, of, chunks, failed);
      of.width = 140;  // more than a block's
      run_case<Bfloat16, 2>(kernels, of, chunks, failed);
      run_case<Float16, 2>(kernels, of, chunks, failed);
      if (of.is_linear) run_case<float, 2, ComplexNumber>(kernels, of, chunks, failed);
    }
  return failed;
}

}  // namespace
}  // namespace prnn

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const prnn::interpreter::Program program(argv[1]);
  prnn::DeviceMath math(argv[2]);
  math.fma = prnn::interpreter::Fma::kFused;  // as the sources' own fmaf is
  prnn::math = &math;
  prnn::Kernels kernels{program};
  try {
    const int failed = prnn::run_cases(kernels);
    std::printf("%zu of %zu kernels\n", kernels.ran.size(), program.names().size());
    return failed != 0;
  } catch (const std::runtime_error& e) {  // the emulator's and the interpreter's
    std::printf("%s\n", e.what());
    return 1;
  }
}
