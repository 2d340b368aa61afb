// Whether calls on one GPU go on while another prepares a plan, which may wait for all that it is
// doing: a collective among it, that waits for the first one's calls. The rest of CUDA is nothing.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <thread>

#include "ffi/cuda_handlers.cc"

namespace prnn {
namespace {

constexpr std::int64_t kSmall = 40, kLarge = 512;  // units; what takes long is the large one's

std::mutex mutex;
std::condition_variable changed;
bool prepares = false, went_on = false, is_stuck = false;

void say(bool& what) {
  {
    const std::lock_guard lock(mutex);
    what = true;
  }
  changed.notify_all();
}

CudaCall call_of(std::int64_t hidden) {
  CudaCall call{};
  call.cell = {CellKind::kLstm, 0, 0};
  call.number = Number::kBfloat16;
  call.shape = {3, 1, 1, hidden, false, false, false};
  return call;
}

}  // namespace

Failure prepare(const CudaCall& call, const Plan&, const Device&) {
  if (call.shape.hidden != kLarge) return std::nullopt;
  say(prepares);
  std::unique_lock lock(mutex);
  is_stuck = !changed.wait_for(lock, std::chrono::seconds(3), [] { return went_on; });
  return std::nullopt;
}
Failure read_device(int, Device& device) {
  device = *find_device("NVIDIA H200");
  return std::nullopt;
}
CurrentDevice::CurrentDevice(int) {}
CurrentDevice::~CurrentDevice() {}
Failure HostWatchdog::prepare(double) { return std::nullopt; }
Failure HostWatchdog::given_up() const { return std::nullopt; }
GridOrder::~GridOrder() {}
Failure GridOrder::prepare() { return std::nullopt; }
Failure GridOrder::find_captured(CUstream_st*, bool&) { return std::nullopt; }
Failure GridOrder::wait(CUstream_st*) const { return std::nullopt; }
Failure GridOrder::record(CUstream_st*) { return std::nullopt; }
Failure hand_on_states(const CudaCall&, CUstream_st*) { return std::nullopt; }
Failure launch(const CudaCall&, const Plan&, CUstream_st*, GridOrder&) { return std::nullopt; }

}  // namespace prnn

int main() {
  using namespace prnn;
  if (!prepared_plans().get(call_of(kSmall), 0, 1).has_value()) return 2;
  std::thread first([] { (void)prepared_plans().get(call_of(kLarge), 0, 0); });
  std::thread second([] {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [] { return prepares; });
    }
    (void)prepared_plans().given_up(1);
    (void)prepared_plans().get(call_of(kSmall), 0, 1);
    say(went_on);
  });
  first.join();
  second.join();
  std::puts(is_stuck ? "device 1 waits for what device 0 prepares" : "ok");
}
