// The CUDA engine as targets of XLA for the CPU: programs of JAX run the kernels in the emulator,
// with the buffers, attributes and planner that the handlers for CUDA use (ffi/cuda_handlers.cc).
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/devices.h"
#include "emulator/engine.h"
#include "ffi/cuda_call.h"

namespace ffi = xla::ffi;

namespace prnn::emulator {

extern template Statistics run<Number::kBfloat16>(const CudaCall&, const Plan&, const Options&);
extern template Statistics run<Number::kFloat16>(const CudaCall&, const Plan&, const Options&);
extern template Statistics run<Number::kTf32>(const CudaCall&, const Plan&, const Options&);
extern template Statistics run<Number::kFloat32>(const CudaCall&, const Plan&, const Options&);

namespace {

// What the test asked for; and what has run since, an exchange for each call.
struct Session {
  std::mutex mutex;
  std::string device = "NVIDIA H200", exchange;  // exchange: empty for the planner's choice
  std::uint64_t seed = 1;
  std::string ran;
};
Session& session() {
  static auto* const only = new Session;
  return *only;
}

// The best plan with the exchange asked for.
ffi::ErrorOr<Plan> choose(const CudaCall& call, std::int64_t max_sms) {
  const std::lock_guard lock(session().mutex);
  const Device* device = find_device(session().device);
  if (device == nullptr)
    return ffi::Unexpected(ffi::Error::Internal("no record of a device " + session().device));
  const Planning planning = plan(request_of(call, max_sms), *device);
  std::optional<Plan> chosen;
  for (const Candidate& candidate : planning.candidates)
    if (candidate.plan && name(candidate.instance.exchange) == session().exchange)
      if (!chosen || candidate.plan->call_us < chosen->call_us) chosen = candidate.plan;
  if (session().exchange.empty()) chosen = planning.best;
  if (!chosen) return ffi::Unexpected(ffi::Error(ffi::ErrorCode::kUnimplemented, planning.reason));
  return *chosen;
}

Statistics run(const CudaCall& call, const Plan& plan, const Options& options) {
  switch (call.number) {
    case Number::kBfloat16:
      return run<Number::kBfloat16>(call, plan, options);
    case Number::kFloat16:
      return run<Number::kFloat16>(call, plan, options);
    case Number::kTf32:
      return run<Number::kTf32>(call, plan, options);
    case Number::kFloat32:
      return run<Number::kFloat32>(call, plan, options);
  }
  throw EmulatorError("no such number format");
}

// As cuda/launch.cc.
void hand_on_states(const CudaCall& call) {
  const Shape& shape = call.shape;
  const auto count = static_cast<std::size_t>(shape.batch * shape.groups * shape.hidden);
  const auto bytes = count * static_cast<std::size_t>(value_bytes(call.number));
  const auto copy = [&](void* to, const void* from) { std::memcpy(to, from, bytes); };
  const auto clear = [&](float* to) { std::fill_n(to, count, 0.0f); };
  const int states = numbers(call.cell).states;
  if (call.pass == PassKind::kForward)
    prnn::hand_on_states(call.forward, states, copy, clear);
  else
    prnn::hand_on_states(call.backward, states, copy, clear);
}

template <PassKind kPass>
ffi::Error execute(ffi::RemainingArgs args, ffi::RemainingRets rets, CallAttributes attributes) {
  const auto call = cuda_call(kPass, args, rets, attributes);
  if (!call.has_value()) return call.error();
  if (is_empty(call->shape)) return ffi::Error::Success();
  if (call->shape.time == 0) {
    hand_on_states(*call);
    return ffi::Error::Success();
  }
  const auto plan = choose(*call, attributes.max_sms);
  if (!plan.has_value()) return plan.error();
  Options options;
  {
    const std::lock_guard lock(session().mutex);
    options.seed = session().seed;
    session().ran += std::string(session().ran.empty() ? "" : " ") +
                     (kPass == PassKind::kForward ? "forward:" : "backward:") +
                     std::string(name(plan->exchange));
  }
  try {
    run(*call, *plan, options);
  } catch (const std::exception& error) {
    return ffi::Error::Internal(error.what());
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace prnn::emulator

// For ctypes. Empty strings: the planner chooses the exchange.
extern "C" void prnn_emulate(const char* device, const char* exchange, std::uint64_t seed) {
  auto& session = prnn::emulator::session();
  const std::lock_guard lock(session.mutex);
  session.device = device;
  session.exchange = exchange;
  session.seed = seed;
  session.ran.clear();
}

// The calls since, "pass:exchange" each, into a buffer.
extern "C" void prnn_emulated(char* text, std::size_t bytes) {
  auto& session = prnn::emulator::session();
  const std::lock_guard lock(session.mutex);
  if (bytes > 0) text[session.ran.copy(text, bytes - 1)] = '\0';
}

using prnn::PassKind;
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    PrnnEmulatedForward, prnn::emulator::execute<PassKind::kForward>,
    ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<prnn::CallAttributes>("call"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    PrnnEmulatedBackward, prnn::emulator::execute<PassKind::kBackward>,
    ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<prnn::CallAttributes>("call"));
