// XLA's calls into the CPU engine, as in ffi/decode.h, and
//   prnn_products  a, b of each, [before]  -> c, [sums] of each, workspace
// which are matrices as in cpu/matrix_product.h, with results of float32. An attribute tells of
// each whether it sums over rows; only those have sums. `before`, any array, is not read: the call
// comes after the one that makes it, for at the same time they would take each other's threads. And
//   prnn_prepare   w_ih [input, groups·G·H], b_ih, w_hh, b_hh, [w_hr]  -> uint32
// the weights of forward calls that project (cpu/prepacked.h), of `batch` rows and `time` steps;
// as 8-bit integers, if `int8`.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "cpu/matrix_product.h"
#include "cpu/prepacked.h"
#include "cpu/run.h"
#include "ffi/cpu_call.h"
#include "ffi/decode.h"
#include "ffi/handlers.h"

namespace ffi = xla::ffi;

namespace prnn {
namespace {

ffi::Error run_call(ffi::ThreadPool pool, Problem p, const NativeCall& call) {
  if (auto error = check_environment(); error.failure()) return error;
  const auto dtype = dtype_of(call.dtype);
  if (!dtype)
    return ffi::Error::InvalidArgument(
        "prnn_jax: the CPU engine takes float32, bfloat16 and float16");
  if (is_empty(call.shape)) return ffi::Error::Success();
  p.dtype = *dtype;
  p.cell = call.cell;
  p.shape = call.shape;
  p.forward = call.forward;
  p.backward = call.backward;
  if (call.input_size > 0) {
    p.projection.input_size = call.input_size;
    p.projection.x = call.x;
    p.projection.w = call.w_ih;
    p.projection.b = call.b_ih;
  }
  const auto is_size_of = [&](WeightFormat format) {
    Problem of = p;
    of.weights = format;
    return call.prepared_words == prepacked_words(of);
  };
  if (call.prepared != nullptr && !is_size_of(WeightFormat::kAsGiven) &&
      !is_size_of(WeightFormat::kInt8))
    return ffi::Error::InvalidArgument(
        "prnn_jax: prepared weights are not of the call's size; were they made by another "
        "version?");
  p.prepacked = call.prepared;
  p.prepacked_words = call.prepared_words;
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  if (auto error = check_workspace(call.workspace_bytes, workspace_floats(p) * kFloat);
      error.failure())
    return error;
  auto* const workspace = static_cast<float*>(call.workspace);
  with_threads(pool, [&](ThreadPool& threads) { run(best_isa(), p, threads, workspace); });
  return ffi::Error::Success();
}

ffi::Error no_stack() {
  return ffi::Error(
      ffi::ErrorCode::kUnimplemented,
      "prnn_jax: the CPU engine runs the layers of a stack one after the other; was the program "
      "made for a GPU?");
}

// The steps of which nothing is kept, for what XLA gave holds anything: even a NaN, which
// jax.debug_nans would find.
void clear_steps_that_do_not_count(const NativeCall& call, int kept) {
  const Shape& shape = call.shape;
  auto* const saved = static_cast<std::byte*>(call.forward.saved);
  if (kept == 0 || shape.lengths == nullptr || is_empty(shape)) return;
  const std::size_t bytes = ffi::ByteWidth(call.dtype);
  for (Shape::Index b = 0; b < shape.batch; ++b)
    for (Shape::Index g = 0; g < shape.groups; ++g)
      for (auto t = shape.length(b, g); t < shape.time; ++t)
        std::memset(saved + shape.sequence_at(b, t, g, kept) * bytes, 0,
                    kept * shape.hidden * bytes);
}

ffi::Error forward(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                   CallAttributes attributes) {
  const auto call = decode_forward(args, rets, attributes);
  if (!call.has_value()) return call.error();
  if (call->is_stack) return no_stack();
  clear_steps_that_do_not_count(*call, saved_of_forward(attributes, numbers(call->cell)));
  Problem p{};
  p.kind = Kind::kForward;
  return run_call(pool, p, *call);
}

ffi::Error backward(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                    CallAttributes attributes) {
  const auto call = decode_backward(args, rets, attributes);
  if (!call.has_value()) return call.error();
  if (call->is_stack) return no_stack();
  Problem p{};
  p.kind = Kind::kBackward;
  return run_call(pool, p, *call);
}

// At least as many as a layer has: one for w_ih, and one for w_hh or for each gate's columns of it.
constexpr std::size_t kMostProducts = 8;

ffi::Error products(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                    ffi::Span<const std::int64_t> over_rows) {
  if (auto error = check_environment(); error.failure()) return error;
  std::array<MatrixProduct, kMostProducts> all{};
  const std::size_t count = over_rows.size();
  const auto of_first = args.get<ffi::AnyBuffer>(0);
  if (!of_first.has_value() || count == 0 || count > all.size() || args.size() / 2 != count)
    return ffi::Error::InvalidArgument("prnn_jax: a call of products has 1 to 8, of two each");
  const ffi::DataType type = of_first->element_type();
  if (type != ffi::DataType::F32 && type != ffi::DataType::BF16)
    return ffi::Error::InvalidArgument("prnn_jax: products are of float32 or bfloat16");
  const Dtype dtype = type == ffi::DataType::F32 ? Dtype::kFloat32 : Dtype::kBfloat16;
  Buffers buffers(args, rets, type);
  for (std::size_t n = 0; n < count; ++n) {
    const auto a = args.get<ffi::AnyBuffer>(2 * n), b = args.get<ffi::AnyBuffer>(2 * n + 1);
    const bool sums_rows = over_rows[n] != 0;
    const std::size_t of_sum = sums_rows ? 0 : 2, of_c = sums_rows ? 2 : 0;
    if (!a.has_value() || !b.has_value() || a->dimensions().size() != 3 ||
        b->dimensions().size() != 3 || a->dimensions()[1] != b->dimensions()[1] ||
        a->dimensions()[of_sum] != b->dimensions()[of_sum])
      return ffi::Error::InvalidArgument("prnn_jax: the matrices of a product do not fit");
    if (a->element_count() == 0 || b->element_count() == 0)
      return ffi::Error::InvalidArgument("prnn_jax: a product has matrices without elements");
    MatrixProduct& product = all[n];
    product.dtype = dtype;
    product.over_rows = sums_rows;
    product.groups = a->dimensions()[1];
    product.rows = a->dimensions()[of_c];
    product.columns = b->dimensions()[of_c];
    product.depth = a->dimensions()[of_sum];
    const auto matrix = [&](const ffi::AnyBuffer& of) {
      const auto d = of.dimensions();
      return buffers.argument({d[0], d[1], d[2]});
    };
    product.a = matrix(*a);
    product.b = matrix(*b);
    const std::int64_t first = sums_rows ? product.groups : product.rows;
    const std::int64_t second = sums_rows ? product.rows : product.groups;
    const auto result = [&](Buffers::Dimensions dimensions) {
      return static_cast<float*>(buffers.result(dimensions, ffi::DataType::F32));
    };
    product.c = result({first, second, product.columns});
    if (sums_rows) product.sums = result({product.groups, product.columns});
  }
  if (args.size() % 2 == 1) buffers.ignore_argument();
  std::int64_t bytes = 0;
  auto* const workspace = static_cast<float*>(buffers.workspace(bytes));
  if (auto error = buffers.error(); error.failure()) return error;
  const int of_call = static_cast<int>(count);
  const auto needed =
      static_cast<std::int64_t>(sizeof(float)) * workspace_floats(all.data(), of_call);
  if (auto error = check_workspace(bytes, needed); error.failure()) return error;
  with_threads(
      pool, [&](ThreadPool& threads) { run(best_isa(), all.data(), of_call, threads, workspace); });
  return ffi::Error::Success();
}

ffi::Error prepare_weights(ffi::ThreadPool pool, ffi::AnyBuffer w_ih, ffi::AnyBuffer b_ih,
                           ffi::AnyBuffer w_hh, ffi::AnyBuffer b_hh, ffi::RemainingArgs more,
                           ffi::Result<ffi::BufferR1<ffi::U32>> out, CallAttributes attributes,
                           std::int64_t batch, std::int64_t time, bool int8) {
  if (auto error = check_environment(); error.failure()) return error;
  Problem p{};
  p.kind = Kind::kForward;
  const auto dtype = dtype_of(w_hh.element_type());
  const auto cell = cell_named(attributes.cell);
  const auto inputs = w_ih.dimensions(), units = w_hh.dimensions();
  const bool projects = cell && numbers(*cell).projects;
  const auto w_hr = more.get<ffi::AnyBuffer>(0);
  if (!dtype || !cell || inputs.size() != 2 || units.size() != 3 ||
      more.size() != (projects ? 1 : 0) || (projects && w_hr->dimensions().size() != 3))
    return ffi::Error::InvalidArgument("prnn_jax: weights to prepare have an unknown form");
  p.dtype = *dtype;
  p.cell = *cell;
  p.shape = {time, batch, units[0], units[1], false, false, false};
  if (projects) {
    p.shape.projected = units[1];
    p.shape.hidden = w_hr->dimensions()[1];
    p.forward.w_hr = w_hr->untyped_data();
  }
  p.weights = int8 ? WeightFormat::kInt8 : WeightFormat::kAsGiven;
  const std::int64_t of_group = times(numbers(p.cell).gates, p.shape.hidden);
  p.projection.input_size = inputs[0];
  p.projection.w = w_ih.untyped_data();
  p.projection.b = b_ih.untyped_data();
  p.forward.w_hh = w_hh.untyped_data();
  p.forward.b_hh = b_hh.untyped_data();
  const auto has = [&](const ffi::AnyBuffer& buffer, Buffers::Dimensions dimensions) {
    return buffer.element_type() == w_hh.element_type() && buffer.element_count() > 0 &&
           std::ranges::equal(buffer.dimensions(), dimensions);
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (batch < 1 || time < 1 || batch > kMost || time > kMost)
    return ffi::Error::InvalidArgument(
        "prnn_jax: weights are prepared for a batch and a time from 1 to 2147483647");
  if (!has(b_hh, {units[0], of_group}) || !has(w_hh, {units[0], units[1], of_group}) ||
      !has(b_ih, {units[0], of_group}) || !has(w_ih, {inputs[0], times(units[0], of_group)}) ||
      (projects && !has(*w_hr, {units[0], p.shape.hidden, units[1]})) ||
      static_cast<std::int64_t>(out->element_count()) != prepacked_words(p) || !can_prepare(p))
    return ffi::Error::InvalidArgument("prnn_jax: weights to prepare do not fit");
  with_threads(pool,
               [&](ThreadPool& threads) { prepare(best_isa(), p, threads, out->untyped_data()); });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace prnn

XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCpuForward, prnn::forward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<prnn::CallAttributes>("call"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCpuBackward, prnn::backward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<prnn::CallAttributes>("call"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCpuProducts, prnn::products,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<ffi::Span<const std::int64_t>>("over_rows"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCpuPrepare, prnn::prepare_weights,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::BufferR1<ffi::U32>>()
                                  .Attr<prnn::CallAttributes>("call")
                                  .Attr<std::int64_t>("batch")
                                  .Attr<std::int64_t>("time")
                                  .Attr<bool>("int8"));
