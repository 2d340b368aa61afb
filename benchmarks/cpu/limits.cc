// What can this processor do at best? How fast it reads working sets of several sizes, how many
// multiply-adds it makes, and how often its threads can wait for each other. Prints JSON:
// {"vector_bytes": 64, "rows": [...]}, a row for each quantity, number of threads and size, with
// what each round gave, all threads together.
//
//   limits ROUNDS ROUND_MS THREADS,... BYTES,...      bytes of each thread's own working set
//
// Build: c++ -std=c++20 -O3 -march=native -pthread
#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kWidth = 16, kRegisters = 32;
#elif defined(__AVX__)
constexpr int kWidth = 8, kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kWidth = 4, kRegisters = 32;
#else
constexpr int kWidth = 4, kRegisters = 16;
#endif
typedef float Vector __attribute__((vector_size(4 * kWidth)));

constexpr long kBlockBytes = 16384;  // working sets are multiples of it

// Sums in flight. An addition or multiply-add takes some 4 cycles, and two begin in each: 8 sums at
// least, and as many as leave registers for operands.
constexpr int kSums = kRegisters * 3 / 4, kSumsOfRead = kRegisters / 2;

thread_local volatile float sink;  // so that nothing is computed for no one

template <int kCount>
void consume(const Vector (&sums)[kCount]) {
  Vector sum{};
  for (const Vector& v : sums) sum += v;
  sink = sum[0];
}

// ---- what is measured: run(passes) does what per_pass() counts, in units of 1e9, so often ----

// Reads a working set over and over: forth and, as the engine reads its weights, in blocks back, so
// that what was read last, and is in the cache still, comes first.
class Read {
 public:
  static constexpr const char* kQuantity = "read_gb_per_s";
  explicit Read(long bytes) : blocks_(bytes / sizeof(Block)) {
    for (Block& block : blocks_)
      for (Vector& v : block.vectors) v = Vector{} + 1.0f;
  }
  double per_pass() const { return 1e-9 * static_cast<double>(blocks_.size() * sizeof(Block)); }
  void run(long passes) const {
    Vector sums[kSumsOfRead] = {};
    const long count = static_cast<long>(blocks_.size());
    for (long pass = 0; pass < passes; ++pass) {
      asm volatile("" ::: "memory");  // what was read may have changed: read it again
      for (long n = 0; n < count; ++n) {
        const Block& block = blocks_[pass % 2 == 0 ? n : count - 1 - n];
        for (int first = 0; first < Block::kVectors; first += kSumsOfRead)
#pragma GCC unroll 16
          for (int s = 0; s < kSumsOfRead; ++s) sums[s] += block.vectors[first + s];
      }
    }
    consume(sums);
  }

 private:
  struct Block {
    static constexpr int kVectors = kBlockBytes / sizeof(Vector);
    Vector vectors[kVectors];
  };
  std::vector<Block> blocks_;
};

// Multiplies and adds what is in registers. In float, s + s · 1e-9 is s again.
struct MultiplyAdd {
  static constexpr const char* kQuantity = "float32_gflop_per_s";
  double per_pass() const { return 1e-9 * 2 * kWidth * kSums; }
  void run(long passes) const {
    Vector sums[kSums], factor = Vector{} + 1e-9f;
    for (int s = 0; s < kSums; ++s) sums[s] = Vector{} + static_cast<float>(s + 1);
    asm volatile("" : "+m"(factor));  // a number the compiler does not know
    for (long pass = 0; pass < passes; ++pass)
#pragma GCC unroll 32
      for (int s = 0; s < kSums; ++s) sums[s] += sums[s] * factor;
    consume(sums);
  }
};

#ifdef __AVX512BF16__
// The same with dot products of pairs of bfloat16, added to floats.
struct DotProduct {
  static constexpr const char* kQuantity = "bfloat16_gflop_per_s";
  double per_pass() const { return 1e-9 * 4 * kWidth * kSums; }
  void run(long passes) const {
    Vector sums[kSums] = {}, pairs = Vector{} + std::bit_cast<float>(0x3a803a80u);  // two of 2^-10
    asm volatile("" : "+m"(pairs));
    for (long pass = 0; pass < passes; ++pass)
#pragma GCC unroll 32
      for (int s = 0; s < kSums; ++s)
        sums[s] = (Vector)_mm512_dpbf16_ps((__m512)sums[s], (__m512bh)pairs, (__m512bh)pairs);
    consume(sums);
  }
};
#endif

// Where threads meet: a line of the cache, and the one that is fetched along with it, for each.
struct Room {
  struct alignas(128) Flag {
    std::atomic<long> passes = 0;
  };
  explicit Room(int threads) : flags(threads) {}
  std::vector<Flag> flags;
  std::atomic<int> taken = 0;  // flags that have an owner
};

// Each thread says that it is there and waits until all have, as between two steps that share the
// units of a layer: none can begin with what another has not published.
class Barrier {
 public:
  static constexpr const char* kQuantity = "million_barriers_per_s";
  explicit Barrier(Room* room) : flags_(room->flags), own_(room->flags[room->taken++]) {}
  double per_pass() const { return 1e-6 / static_cast<double>(flags_.size()); }
  void run(long passes) const {
    for (long pass = 0; pass < passes; ++pass) {
      const long arrived = own_.passes.load(std::memory_order_relaxed) + 1;
      own_.passes.store(arrived, std::memory_order_release);
      for (const Room::Flag& flag : flags_) wait_for(flag, arrived);
    }
  }

 private:
  static void wait_for(const Room::Flag& flag, long arrived) {
    for (long asked = 1; flag.passes.load(std::memory_order_acquire) < arrived; ++asked)
      if (asked % 100'000 == 0) std::this_thread::yield();  // fewer cores than threads
  }
  const std::vector<Room::Flag>& flags_;
  Room::Flag& own_;
};

// ---- measuring ----

struct Options {
  int rounds;
  double round_s;
  std::vector<long> threads, bytes;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What `threads` of them do in a second, each on a work of its own, in each of several rounds. A
// round lasts from the start of the first thread to the end of the last.
template <class Work, class... Arguments>
std::vector<double> rates(const Options& options, int threads, Arguments... arguments) {
  std::barrier<> barrier(threads);
  std::vector<double> starts(threads), ends(threads), out;
  // Written by the first thread, between two barriers.
  long passes = 1;
  bool is_long_enough = false;
  const auto finish_round = [&](const Work& work) {
    const double seconds = *std::max_element(ends.begin(), ends.end()) -
                           *std::min_element(starts.begin(), starts.end());
    if (is_long_enough)
      out.push_back(threads * static_cast<double>(passes) * work.per_pass() / seconds);
    else if (seconds >= options.round_s)
      is_long_enough = true;  // from now on; this one was the warm-up
    else
      passes *= 2;
  };
  const auto thread = [&](int n) {
    const Work work(arguments...);  // memory is near to the thread that first touches it
    while (static_cast<int>(out.size()) < options.rounds) {
      barrier.arrive_and_wait();
      starts[n] = now();
      work.run(passes);
      ends[n] = now();
      barrier.arrive_and_wait();
      if (n == 0) finish_round(work);
      barrier.arrive_and_wait();
    }
  };
  std::vector<std::thread> others;
  for (int n = 1; n < threads; ++n) others.emplace_back(thread, n);
  thread(0);
  for (std::thread& other : others) other.join();
  return out;
}

// ---- command line ----

// Between rows, and before the first.
const char* separator() {
  static bool is_first = true;
  return std::exchange(is_first, false) ? "" : ",";
}

void print_rounds(const std::vector<double>& rounds) {
  const char* before = "\"rounds\": [";
  for (const double rate : rounds) {
    std::printf("%s%.6g", before, rate);
    before = ", ";
  }
  std::printf("]}");
}

template <class Work, class... Bytes>
void row(const Options& options, int threads, Bytes... bytes) {
  std::printf("%s\n {\"quantity\": \"%s\", \"threads\": %d, ", separator(), Work::kQuantity,
              threads);
  (std::printf("\"bytes\": %ld, ", bytes), ...);
  print_rounds(rates<Work>(options, threads, bytes...));
}

void barrier_row(const Options& options, int threads) {
  Room room(threads);
  std::printf("%s\n {\"quantity\": \"%s\", \"threads\": %d, ", separator(), Barrier::kQuantity,
              threads);
  print_rounds(rates<Barrier>(options, threads, &room));
}

std::vector<long> numbers(const char* list) {
  std::vector<long> out;
  for (char* end = nullptr; *list != '\0'; list = *end == ',' ? end + 1 : end) {
    out.push_back(std::strtol(list, &end, 10));
    if (end == list || out.back() < 1) return {};
  }
  return out;
}

}  // namespace

int main(int count, char** arguments) {
  Options options{};
  if (count == 5)
    options = {std::atoi(arguments[1]), 1e-3 * std::atof(arguments[2]), numbers(arguments[3]),
               numbers(arguments[4])};
  const bool are_whole_blocks = std::all_of(options.bytes.begin(), options.bytes.end(),
                                            [](long bytes) { return bytes % kBlockBytes == 0; });
  if (options.rounds < 1 || !(options.round_s > 0) || options.threads.empty() ||
      options.bytes.empty() || !are_whole_blocks) {
    std::fprintf(stderr,
                 "limits ROUNDS ROUND_MS THREADS,... BYTES,...\n"
                 "BYTES are multiples of %ld.\n",
                 kBlockBytes);
    return 1;
  }
  std::printf("{\"vector_bytes\": %zu, \"rows\": [", sizeof(Vector));
  for (const long threads : options.threads) {
    row<MultiplyAdd>(options, static_cast<int>(threads));
#ifdef __AVX512BF16__
    row<DotProduct>(options, static_cast<int>(threads));
#endif
    if (threads > 1) barrier_row(options, static_cast<int>(threads));
    for (const long bytes : options.bytes) row<Read>(options, static_cast<int>(threads), bytes);
  }
  std::printf("\n]}\n");
  return 0;
}
