// XLA's calls into the CPU engine. Arguments and results, in order (core/shape.h has the layouts):
//   prnn_forward   a_x, w_hh, b_hh, state_0...                -> y, state_n..., [saved], workspace
//   prnn_project   x [rows, input], w [input, columns], b [columns] -> a [rows, columns], workspace
//   prnn_backward  w_hh, y, [saved], state_0..., dy, dstate_n...
//                                                -> da_x, [da_h], dstate_0..., workspace
// `saved` is absent where nothing is kept, da_h where it equals da_x.
#include <string>

#include "cpu/run.h"
#include "ffi/attributes.h"
#include "ffi/handlers.h"

namespace ffi = xla::ffi;

namespace prnn {
namespace {

class XlaThreadPool : public ThreadPool {
 public:
  explicit XlaThreadPool(ffi::ThreadPool pool) : pool_(pool) {}
  int threads() const override { return static_cast<int>(pool_.num_threads()); }
  void schedule(std::function<void()> task) override { pool_.Schedule(std::move(task)); }

 private:
  ffi::ThreadPool pool_;
};

// Takes the buffers of a call one after the other and checks the size of each. Python has checked
// the caller's arrays; this guards against programs exported by another version.
class Buffers {
 public:
  Buffers(ffi::RemainingArgs args, ffi::RemainingRets rets) : args_(args), rets_(rets) {}

  const float* argument(std::int64_t floats) {
    const auto buffer = args_.get<ffi::AnyBuffer>(next_arg_++);
    return checked(buffer.has_value() ? &*buffer : nullptr, floats);
  }
  float* result(std::int64_t floats) {
    auto buffer = rets_.get<ffi::AnyBuffer>(next_ret_++);
    return checked(buffer.has_value() ? &**buffer : nullptr, floats);
  }
  ffi::Error error() const {
    if (!wrong_ && next_arg_ == args_.size() && next_ret_ == rets_.size())
      return ffi::Error::Success();
    return ffi::Error::InvalidArgument(
        "prnn_jax: a native call's buffers do not have the number, sizes or dtype (float32) this "
        "version expects; was the program exported by another version?");
  }

 private:
  float* checked(const ffi::AnyBuffer* buffer, std::int64_t floats) {
    if (buffer != nullptr && buffer->element_type() == ffi::DataType::F32 &&
        static_cast<std::int64_t>(buffer->element_count()) >= floats)
      return buffer->typed_data<float>();
    wrong_ = true;
    return nullptr;
  }
  ffi::RemainingArgs args_;
  ffi::RemainingRets rets_;
  std::size_t next_arg_ = 0, next_ret_ = 0;
  bool wrong_ = false;
};

// The shape of a call, read off a sequence [batch, time, groups, hidden] (or time-major).
ffi::ErrorOr<Shape> shape_of(const ffi::ErrorOr<ffi::AnyBuffer>& sequence, int values,
                             const CallAttributes& call) {
  if (!sequence.has_value() || sequence->dimensions().size() != 4)
    return ffi::Unexpected(ffi::Error::InvalidArgument("prnn_jax: a sequence must have rank 4"));
  const auto d = sequence->dimensions();
  return Shape{d[call.time_major ? 0 : 1],
               d[call.time_major ? 1 : 0],
               d[2],
               d[3] / values,
               call.time_major,
               call.reverse,
               call.bidirectional};
}

struct CellNumbers {
  int gates, states, saved;
  bool same_gradient;
};
CellNumbers numbers(const CellSpec& cell) {
  return visit(cell, [](auto c) {
    using C = decltype(c);
    return CellNumbers{C::kGates, C::kStates, saved_values<C>, C::kSameGradient};
  });
}

ffi::Error forward(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                   CallAttributes call) {
  Problem p{};
  p.cell = {*cell_kind(call.cell), call.skip, call.cap};
  p.kind = Kind::kForward;
  const CellNumbers n = numbers(p.cell);
  const auto shape = shape_of(args.get<ffi::AnyBuffer>(0), n.gates, call);
  if (!shape.has_value()) return shape.error();
  p.shape = *shape;
  const std::int64_t state = shape->batch * shape->groups * shape->hidden;
  const std::int64_t sequence = state * shape->time;

  Buffers buffers(args, rets);
  p.forward.a_x = buffers.argument(sequence * n.gates);
  p.forward.w_hh = buffers.argument(shape->groups * shape->hidden * n.gates * shape->hidden);
  p.forward.b_hh = buffers.argument(shape->groups * n.gates * shape->hidden);
  for (int s = 0; s < n.states; ++s) p.forward.state_0[s] = buffers.argument(state);
  p.forward.y = buffers.result(sequence);
  for (int s = 0; s < n.states; ++s) p.forward.state_n[s] = buffers.result(state);
  if (call.save && n.saved > 0) p.forward.saved = buffers.result(sequence * n.saved);
  float* workspace = buffers.result(workspace_floats(p));
  if (ffi::Error error = buffers.error(); error.failure()) return error;
  XlaThreadPool threads(pool);
  run(best_isa(), p, threads, workspace);
  return ffi::Error::Success();
}

ffi::Error backward(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                    CallAttributes call) {
  Problem p{};
  p.cell = {*cell_kind(call.cell), call.skip, call.cap};
  p.kind = Kind::kBackward;
  const CellNumbers n = numbers(p.cell);
  const auto shape = shape_of(args.get<ffi::AnyBuffer>(1), 1, call);
  if (!shape.has_value()) return shape.error();
  p.shape = *shape;
  const std::int64_t state = shape->batch * shape->groups * shape->hidden;
  const std::int64_t sequence = state * shape->time;

  Buffers buffers(args, rets);
  p.backward.w_hh = buffers.argument(shape->groups * shape->hidden * n.gates * shape->hidden);
  p.backward.y = buffers.argument(sequence);
  if (n.saved > 0) p.backward.saved = buffers.argument(sequence * n.saved);
  for (int s = 0; s < n.states; ++s) p.backward.state_0[s] = buffers.argument(state);
  p.backward.dy = buffers.argument(sequence);
  for (int s = 0; s < n.states; ++s) p.backward.dstate_n[s] = buffers.argument(state);
  p.backward.da_x = buffers.result(sequence * n.gates);
  p.backward.da_h = n.same_gradient ? p.backward.da_x : buffers.result(sequence * n.gates);
  for (int s = 0; s < n.states; ++s) p.backward.dstate_0[s] = buffers.result(state);
  float* workspace = buffers.result(workspace_floats(p));
  if (ffi::Error error = buffers.error(); error.failure()) return error;
  XlaThreadPool threads(pool);
  run(best_isa(), p, threads, workspace);
  return ffi::Error::Success();
}

ffi::Error project(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  const auto x = args.get<ffi::AnyBuffer>(0), b = args.get<ffi::AnyBuffer>(2);
  if (!x.has_value() || !b.has_value() || x->dimensions().size() != 2)
    return ffi::Error::InvalidArgument("prnn_jax: prnn_project needs x [rows, input], w, b");
  Problem p{};
  p.kind = Kind::kProjection;
  const std::int64_t rows = x->dimensions()[0], columns = b->element_count();
  p.shape = {1, rows, 1, columns, false, false, false};
  p.projection.input_size = x->dimensions()[1];

  Buffers buffers(args, rets);
  p.projection.x = buffers.argument(rows * p.projection.input_size);
  p.projection.w = buffers.argument(p.projection.input_size * columns);
  p.projection.b = buffers.argument(columns);
  p.projection.a = buffers.result(rows * columns);
  float* workspace = buffers.result(workspace_floats(p));
  if (ffi::Error error = buffers.error(); error.failure()) return error;
  XlaThreadPool threads(pool);
  run(best_isa(), p, threads, workspace);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace prnn

XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCheckCall, prnn::check_attributes,
                              ffi::Ffi::BindInstantiate().Attr<prnn::CallAttributes>("call"));
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
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    PrnnCpuProject, prnn::project,
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets());
