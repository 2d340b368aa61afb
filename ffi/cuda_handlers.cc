// XLA's calls into the CUDA engine, under the same names as the CPU's and with the same buffers
// (ffi/decode.h). Initialize plans and prepares: once per shape and device, never under capture.
// Execute fills the mailbox and launches, nothing else.
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <memory>
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

// Seconds that a block waits for another: 0 for good.
ffi::ErrorOr<double> watchdog_seconds() {
  constexpr double kDefault = 2.0, kMost = 3600.0;
  const char* const text = std::getenv("PRNN_CUDA_WATCHDOG_S");
  if (text == nullptr || *text == '\0') return kDefault;
  const std::string_view all = text;
  double seconds = 0.0;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), seconds);
  if (error == std::errc() && end == all.data() + all.size() && seconds >= 0.0 && seconds <= kMost)
    return seconds;
  return ffi::Unexpected(ffi::Error::InvalidArgument(
      "prnn_jax: PRNN_CUDA_WATCHDOG_S must be a number of seconds from 0 (no limit) to 3600, got "
      "\"" +
      std::string(all) + "\"; correct it or unset it."));
}

// Plans that are prepared, by device and all that the planner reads of a call. Each device has a
// lock of its own: what prepares a plan may wait for all that the device is doing, a collective
// among it that waits for another device, whose calls must go on.
class PreparedPlans {
 public:
  struct Prepared {
    Plan plan;
    Watchdog watchdog;
    GridOrder* order;
  };
  // What the device's watchdog has to say. Asks nothing of CUDA, which fails after that.
  Failure given_up(int ordinal) {
    KnownDevice& device = at(ordinal);
    const std::lock_guard lock(device.mutex);
    return device.is_ready ? device.watchdog.given_up() : std::nullopt;
  }
  std::vector<std::string> given_up() {
    std::vector<int> ordinals;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [ordinal, device] : devices_) ordinals.push_back(ordinal);
    }
    std::vector<std::string> all;
    for (const int ordinal : ordinals)
      if (const Failure failed = given_up(ordinal)) all.push_back(*failed);
    return all;
  }

  ffi::ErrorOr<Prepared> get(const CudaCall& call, std::int64_t max_sms, int ordinal) {
    const Shape& s = call.shape;
    const Key key{static_cast<int>(call.cell.kind),
                  static_cast<int>(call.pass),
                  static_cast<int>(call.number),
                  s.time,
                  s.batch,
                  s.groups,
                  s.hidden,
                  is_plain(call),  // which kernels it has
                  call.is_stack,
                  call.cell.norm.is_there,
                  static_cast<int>(call.cell.norm.inner),
                  max_sms,
                  asked_exchange()};
    KnownDevice& device = at(ordinal);
    const std::lock_guard lock(device.mutex);
    if (ffi::Error error = make_ready(ordinal, device); error.failure())
      return ffi::Unexpected(error);
    auto found = device.plans.find(key);
    if (found == device.plans.end()) {
      const auto plan = make(call, max_sms, device.properties);
      if (!plan.has_value()) return ffi::Unexpected(plan.error());
      found = device.plans.emplace(key, *plan).first;
    }
    return Prepared{found->second, device.watchdog.of_kernels(), device.order.get()};
  }

 private:
  using Key = std::tuple<int, int, int, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                         bool, bool, bool, int, std::int64_t, std::string>;

  struct KnownDevice {
    std::mutex mutex;  // of all that is here
    bool is_ready = false;
    Device properties;
    HostWatchdog watchdog;
    std::unique_ptr<GridOrder> order;
    std::map<Key, Plan> plans;
  };
  // Stays where it is.
  KnownDevice& at(int ordinal) {
    const std::lock_guard lock(mutex_);
    return devices_[ordinal];
  }
  // Its memory for the watchdog and its event are had at its first call, in `initialize`.
  static ffi::Error make_ready(int ordinal, KnownDevice& device) {
    if (device.is_ready) return ffi::Error::Success();
    if (const Failure failed = read_device(ordinal, device.properties))
      return ffi::Error::Internal(*failed);
    const auto seconds = watchdog_seconds();
    if (!seconds.has_value()) return seconds.error();
    auto order = std::make_unique<GridOrder>();
    if (const Failure failed = order->prepare()) return ffi::Error::Internal(*failed);
    if (const Failure failed = device.watchdog.prepare(*seconds))
      return ffi::Error::Internal(*failed);
    device.order = std::move(order);
    device.is_ready = true;
    return ffi::Error::Success();
  }

  ffi::ErrorOr<Plan> make(const CudaCall& call, std::int64_t max_sms, const Device& device) {
    const Planning planning = plan(request_of(call, max_sms), device);
    const std::string exchange = asked_exchange();
    const std::vector<Plan> plans = by_preference(planning, exchange);
    if (plans.empty()) {
      const std::string none = "prnn_jax: no plan has PRNN_CUDA_EXCHANGE=" + exchange;
      return ffi::Unexpected(ffi::Error(
          ffi::ErrorCode::kUnimplemented,
          planning.best ? none + "; the best without it: " + planning.reason : planning.reason));
    }
    // The driver may refuse one (clusters that cannot be resident, limits of MPS) and take another.
    Failure first;
    for (const Plan& each : plans) {
      const Failure failed = prepare(call, each, device);
      if (!failed) return each;
      if (!first) first = failed;
    }
    return ffi::Unexpected(ffi::Error(ffi::ErrorCode::kFailedPrecondition, *first));
  }

  // Empty: any. For tests and measurements.
  static std::string asked_exchange() {
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

  std::mutex mutex_;  // of the map alone
  std::map<int, KnownDevice> devices_;
};

PreparedPlans& prepared_plans() {
  static auto* plans = new PreparedPlans;  // never destroyed: XLA's threads may outlive statics
  return *plans;
}

}  // namespace

std::vector<std::string> cuda_failures() { return prepared_plans().given_up(); }

namespace {

template <PassKind kPass>
ffi::Error initialize(std::int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                      CallAttributes attributes) {
  const auto call = cuda_call(kPass, args, rets, attributes);
  if (!call.has_value()) return call.error();
  if (is_empty(call->shape) || call->shape.time == 0) return ffi::Error::Success();
  if (const Failure failed = prepared_plans().given_up(device))
    return ffi::Error::Internal(*failed);
  const CurrentDevice current(device);
  if (current.failure) return ffi::Error::Internal(*current.failure);
  const auto prepared = prepared_plans().get(*call, attributes.max_sms, device);
  return prepared.has_value() ? ffi::Error::Success() : prepared.error();
}

template <PassKind kPass>
ffi::Error execute(CUstream_st* stream, std::int32_t device, ffi::RemainingArgs args,
                   ffi::RemainingRets rets, CallAttributes attributes) {
  auto call = cuda_call(kPass, args, rets, attributes);
  if (!call.has_value()) return call.error();
  if (is_empty(call->shape)) return ffi::Error::Success();
  if (const Failure failed = prepared_plans().given_up(device))
    return ffi::Error::Internal(*failed);
  const CurrentDevice current(device);
  if (current.failure) return ffi::Error::Internal(*current.failure);
  if (call->shape.time == 0) {
    const Failure failed = hand_on_states(*call, stream);
    return failed ? ffi::Error::Internal(*failed) : ffi::Error::Success();
  }
  const auto prepared = prepared_plans().get(*call, attributes.max_sms, device);
  if (!prepared.has_value()) return prepared.error();
  call->watchdog = prepared->watchdog;
  if (const Failure failed = launch(*call, prepared->plan, stream, *prepared->order))
    return ffi::Error::Internal(*failed);
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
