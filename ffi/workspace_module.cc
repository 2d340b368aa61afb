#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "cpu/matrix_product.h"
#include "cpu/prepacked.h"
#include "cuda/call.h"
#include "ffi/attributes.h"
#include "ffi/plan_module.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace prnn {
namespace {

// Stands for an array that is there, of which the size of a workspace does not ask more.
template <class T>
const T* some() {
  static const T array[1] = {};
  return array;
}

CellSpec cell_of(const std::string& name) {
  const auto cell = cell_named(name);
  if (!cell) throw nb::value_error(("no cell named " + name).c_str());
  return *cell;
}
Dtype dtype_of(const std::string& name) {
  const auto dtype = dtype_named(name);
  if (!dtype) throw nb::value_error(("the engines take no " + name).c_str());
  return *dtype;
}

std::int64_t cpu_workspace_floats(const std::string& cell, const std::string& dtype,
                                  std::int64_t time, std::int64_t batch, std::int64_t groups,
                                  std::int64_t hidden, std::int64_t output, bool backward,
                                  bool has_mask, std::int64_t input_size) {
  Problem p{};
  p.kind = backward ? Kind::kBackward : Kind::kForward;
  p.cell = cell_of(cell);
  p.dtype = dtype_of(dtype);
  p.shape = {time, batch, groups, hidden, false, false, false};
  p.shape.projected = output;
  if (has_mask) p.forward.controls.mask = some<float>();
  p.projection.input_size = input_size;
  return workspace_floats(p);
}

std::int64_t cpu_prepacked_words(const std::string& cell, const std::string& dtype,
                                 std::int64_t groups, std::int64_t hidden, std::int64_t output,
                                 std::int64_t input_size, bool int8) {
  Problem p{};
  p.cell = cell_of(cell);
  p.dtype = dtype_of(dtype);
  p.shape = {1, 1, groups, hidden, false, false, false};
  p.shape.projected = output;
  p.projection.input_size = input_size;
  p.weights = int8 ? WeightFormat::kInt8 : WeightFormat::kAsGiven;
  return prepacked_words(p);
}

// Of products (over rows?, groups, rows, columns, depth), as in MatrixProduct.
using ProductSizes = std::tuple<bool, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
std::int64_t products_workspace_floats(const std::string& dtype,
                                       const std::vector<ProductSizes>& sizes) {
  std::vector<MatrixProduct> products;
  for (const auto& [over_rows, groups, rows, columns, depth] : sizes)
    products.push_back({dtype_of(dtype), over_rows, groups, rows, columns, depth, nullptr, nullptr,
                        nullptr, nullptr});
  return workspace_floats(products.data(), static_cast<int>(products.size()));
}

std::int64_t cuda_workspace_bytes(const std::string& cell, const std::string& dtype,
                                  std::int64_t time, std::int64_t batch, std::int64_t groups,
                                  std::int64_t hidden, bool backward, bool has_lengths,
                                  bool is_reversed, bool changes_input, bool is_stack) {
  CudaCall call{};
  call.pass = backward ? PassKind::kBackward : PassKind::kForward;
  call.cell = cell_of(cell);
  call.is_stack = is_stack;
  const Dtype of = dtype_of(dtype);
  call.number = of == Dtype::kBfloat16  ? Number::kBfloat16
                : of == Dtype::kFloat16 ? Number::kFloat16
                                        : Number::kTf32;
  call.shape = {time, batch, groups, hidden, false, is_reversed, false};
  if (has_lengths) call.shape.lengths = some<std::int32_t>();
  if (changes_input) call.forward.controls.mask = some<float>();
  return workspace_bytes(call);
}

}  // namespace

void bind_workspaces(nb::module_& m) {
  m.def("cpu_workspace_floats", cpu_workspace_floats, "cell"_a, "dtype"_a, "time"_a, "batch"_a,
        "groups"_a, "hidden"_a, "output"_a, "backward"_a, "has_mask"_a, "input_size"_a);
  m.def("cpu_prepacked_words", cpu_prepacked_words, "cell"_a, "dtype"_a, "groups"_a, "hidden"_a,
        "output"_a, "input_size"_a, "int8"_a);
  m.def("products_workspace_floats", products_workspace_floats, "dtype"_a, "products"_a);
  m.def("cuda_workspace_bytes", cuda_workspace_bytes, "cell"_a, "dtype"_a, "time"_a, "batch"_a,
        "groups"_a, "hidden"_a, "backward"_a, "has_lengths"_a, "is_reversed"_a, "changes_input"_a,
        "is_stack"_a = false);
}

}  // namespace prnn
