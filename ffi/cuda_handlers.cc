// XLA's calls into the CUDA engine, under the same names as the CPU's and with the same buffers
// (ffi/decode.h). Initialize plans and prepares: once per shape and device, never under capture.
// Execute fills the mailbox and launches, nothing else.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <tuple>
#include <vector>

#include "cuda/launch.h"
#include "ffi/cuda_call.h"
#include "ffi/handlers.h"

namespace ffi = xla::ffi;

namespace prnn {
namespace {

// Plans that are prepared, by device and all that the planner reads of a call.
class PreparedPlans {
 public:
  ffi::ErrorOr<Plan> get(const CudaCall& call, std::int64_t max_sms, int device) {
    const Shape& s = call.shape;
    const Key key{device,
                  static_cast<int>(call.cell.kind),
                  static_cast<int>(call.pass),
                  static_cast<int>(call.number),
                  s.time,
                  s.batch,
                  s.groups,
                  s.hidden,
                  max_sms};
    const std::lock_guard lock(mutex_);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
    const auto plan = make(call, max_sms, device);
    if (plan.has_value()) plans_.emplace(key, *plan);
    return plan;
  }

 private:
  using Key = std::tuple<int, int, int, int, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                         std::int64_t>;

  ffi::ErrorOr<Plan> make(const CudaCall& call, std::int64_t max_sms, int ordinal) {
    auto device = devices_.find(ordinal);
    if (device == devices_.end()) {
      Device read;
      if (const Failure failed = read_device(ordinal, read))
        return ffi::Unexpected(ffi::Error::Internal(*failed));
      device = devices_.emplace(ordinal, std::move(read)).first;
    }
    const Planning planning = plan(request_of(call, max_sms), device->second);
    const std::string_view exchange = asked_exchange();
    const std::vector<Plan> plans = by_preference(planning, exchange);
    if (plans.empty()) {
      const std::string none = "prnn_jax: no plan has PRNN_CUDA_EXCHANGE=" + std::string(exchange);
      return ffi::Unexpected(ffi::Error(
          ffi::ErrorCode::kUnimplemented,
          planning.best ? none + "; the best without it: " + planning.reason : planning.reason));
    }
    // The driver may refuse one (clusters that cannot be resident, limits of MPS) and take another.
    Failure first;
    for (const Plan& each : plans) {
      const Failure failed = prepare(call, each, device->second);
      if (!failed) return each;
      if (!first) first = failed;
    }
    return ffi::Unexpected(ffi::Error(ffi::ErrorCode::kFailedPrecondition, *first));
  }

  // Empty: any. For tests and measurements; not a part of the key.
  static std::string_view asked_exchange() {
    const char* const asked = std::getenv("PRNN_CUDA_EXCHANGE");
    return asked == nullptr ? "" : asked;
  }

  // The planner's choice, then the others, the fastest first; of one exchange, if it is asked for.
  static std::vector<Plan> by_preference(const Planning& planning, std::string_view exchange) {
    std::vector<Plan> plans;
    if (planning.best && exchange.empty()) plans.push_back(*planning.best);
    const auto first = static_cast<std::ptrdiff_t>(plans.size());
    for (const Candidate& candidate : planning.candidates)
      if (candidate.plan && (exchange.empty() || exchange == name(candidate.plan->exchange)))
        plans.push_back(*candidate.plan);
    std::stable_sort(plans.begin() + first, plans.end(),
                     [](const Plan& a, const Plan& b) { return a.call_us < b.call_us; });
    return plans;
  }

  std::mutex mutex_;
  std::map<Key, Plan> plans_;
  std::map<int, Device> devices_;
};

PreparedPlans& prepared_plans() {
  static auto* plans = new PreparedPlans;  // never destroyed: XLA's threads may outlive statics
  return *plans;
}

template <PassKind kPass>
ffi::Error initialize(std::int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                      CallAttributes attributes) {
  const auto call = cuda_call(kPass, args, rets, attributes);
  if (!call.has_value()) return call.error();
  if (is_empty(call->shape) || call->shape.time == 0) return ffi::Error::Success();
  const CurrentDevice current(device);
  if (current.failure) return ffi::Error::Internal(*current.failure);
  const auto plan = prepared_plans().get(*call, attributes.max_sms, device);
  return plan.has_value() ? ffi::Error::Success() : plan.error();
}

template <PassKind kPass>
ffi::Error execute(CUstream_st* stream, std::int32_t device, ffi::RemainingArgs args,
                   ffi::RemainingRets rets, CallAttributes attributes) {
  const auto call = cuda_call(kPass, args, rets, attributes);
  if (!call.has_value()) return call.error();
  if (is_empty(call->shape)) return ffi::Error::Success();
  const CurrentDevice current(device);
  if (current.failure) return ffi::Error::Internal(*current.failure);
  if (call->shape.time == 0) {
    const Failure failed = hand_on_states(*call, stream);
    return failed ? ffi::Error::Internal(*failed) : ffi::Error::Success();
  }
  const auto plan = prepared_plans().get(*call, attributes.max_sms, device);
  if (!plan.has_value()) return plan.error();
  if (const Failure failed = launch(*call, *plan, stream)) return ffi::Error::Internal(*failed);
  return ffi::Error::Success();
}

auto bind_initialize() {
  return ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
      .Ctx<ffi::DeviceOrdinal>()
      .RemainingArgs()
      .RemainingRets()
      .Attr<CallAttributes>("call");
}
auto bind_execute() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<CUstream_st*>>()
      .Ctx<ffi::DeviceOrdinal>()
      .RemainingArgs()
      .RemainingRets()
      .Attr<CallAttributes>("call");
}

}  // namespace
}  // namespace prnn

using prnn::PassKind;
XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCudaPrepareForward, prnn::initialize<PassKind::kForward>,
                              prnn::bind_initialize());
XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCudaPrepareBackward, prnn::initialize<PassKind::kBackward>,
                              prnn::bind_initialize());
// Capturable: a fill and a launch of fixed size, whatever the buffers' addresses.
XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCudaForward, prnn::execute<PassKind::kForward>,
                              prnn::bind_execute(), {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCudaBackward, prnn::execute<PassKind::kBackward>,
                              prnn::bind_execute(), {ffi::Traits::kCmdBufferCompatible});
// The same, never captured.
XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCudaForwardUncaptured, prnn::execute<PassKind::kForward>,
                              prnn::bind_execute());
XLA_FFI_DEFINE_HANDLER_SYMBOL(PrnnCudaBackwardUncaptured, prnn::execute<PassKind::kBackward>,
                              prnn::bind_execute());
