// Checks tests/emulator: each operation against its definition, what an error is answered with, and
// that every fault it can inject is one that shows. Exits with 1 and a line on a failure.
//
// With an argument, runs one kernel that is wrong in a way only a sanitizer sees. Built and run,
// plainly and under sanitizers, by tests/test_emulator.py.
#include <atomic>
#include <set>
#include <thread>

#include "emulator_checks/errors.h"
#include "emulator_checks/exchange.h"
#include "emulator_checks/layouts.h"
#include "emulator_checks/mistakes.h"
#include "emulator_checks/operations.h"

namespace prnn::checks {

void check_residency() {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    std::atomic<int> started = 0, ended = 0, most = 0;
    Options options = seeded(seed);
    options.resident_blocks = 5;  // two clusters of two
    emulator::launch(
        {.grid = 12, .cluster = 2},
        [&] {
          if (ptx::tid() == 0) most = std::max<int>(most, ++started - ended);
          cluster_sync();
          if (ptx::tid() == 0) ++ended;
        },
        options);
    expect(started == 12 && ended == 12 && most <= 4, "residency");
  }
}

void check_order_by_seed() {
  const auto order = [](std::uint64_t seed) {
    std::vector<int> out(96);
    std::atomic<int> size = 0;
    emulator::launch(
        {.grid = 3}, [&] { out[size++] = 32 * ptx::ctaid() + ptx::tid(); }, seeded(seed));
    return out;
  };
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    orders.insert(order(seed));
    expect(order(seed) == order(seed), "one seed, two orders");
  }
  expect(orders.size() == 20, "two seeds, one order");
}

void check_concurrent_launches() {
  const auto right = grid_relay({});
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&wrong, &right, i] {
      for (int n = 0; n < 5; ++n) wrong += grid_relay(seeded(10 * i + n)) != right;
    });
  }
  for (std::thread& t : threads) t.join();
  expect(wrong == 0, "launches from several threads at once");
}

}  // namespace prnn::checks

int main(int argc, char** argv) {
  using namespace prnn::checks;
  if (argc > 1) return run_hidden(argv[1]);
  check_conversions();
  check_matrix_products();
  check_layouts();
  check_shuffles_and_votes();
  check_barriers();
  check_granules();
  check_residency();
  check_order_by_seed();
  check_exceptions();
  // ThreadSanitizer would report the mistakes themselves.
  constexpr bool kThreadSanitizer = prnn::emulator::sanitizers::kThread;
  check_relays(kThreadSanitizer ? 20 : 200);
  if (!kThreadSanitizer) {
    check_errors();
    check_faults();
  }
  check_concurrent_launches();
  std::printf("ok\n");
}
