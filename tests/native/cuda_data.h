// The arrays of a native call on a GPU, of the exact size, with inputs drawn from a seed. They lie
// in a Memory: the host's, or a device's (device_memory.h).
#pragma once
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include "native/cuda_cases.h"

namespace prnn {

struct HostMemory {
  static constexpr std::align_val_t kAlignment{64};
  static void* allocate(std::size_t bytes) { return ::operator new(bytes, kAlignment); }
  static void free(void* p) { ::operator delete(p, kAlignment); }
  static void write(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  static void read(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  static void set(void* to, int byte, std::size_t bytes) { std::memset(to, byte, bytes); }
};

// An array of the exact size, so that a sanitizer sees what lies beyond; filled with NaN first.
template <class T, class Memory = HostMemory>
class Array {
 public:
  explicit Array(std::int64_t n)
      : n_(n), data_(Memory::allocate(static_cast<std::size_t>(n) * sizeof(T))) {
    forget();
  }
  T* get() const { return static_cast<T*>(data_.get()); }
  std::int64_t size() const { return n_; }
  std::size_t bytes() const { return static_cast<std::size_t>(n_) * sizeof(T); }
  std::vector<T> copy() const {
    std::vector<T> out(static_cast<std::size_t>(n_));
    Memory::read(out.data(), get(), bytes());
    return out;
  }
  void forget() { Memory::set(get(), 0xff, bytes()); }
  T* clear() {
    Memory::set(get(), 0, bytes());
    return get();
  }
  // With value(i), rounded.
  template <class F>
  T* fill(F&& value) {
    std::vector<T> values;
    for (std::int64_t i = 0; i < n_; ++i) values.push_back(rounded(value(i)));
    Memory::write(get(), values.data(), bytes());
    return get();
  }

 private:
  static T rounded(float v) {
    if constexpr (std::is_same_v<T, float>) return v;
    if constexpr (std::is_integral_v<T>) return static_cast<T>(v);
    if constexpr (std::is_same_v<T, Bfloat16>) return Format<Number::kBfloat16>::from_float(v);
    if constexpr (std::is_same_v<T, Float16>) return Format<Number::kFloat16>::from_float(v);
  }
  struct Free {
    void operator()(void* p) const { Memory::free(p); }
  };
  std::int64_t n_;
  std::unique_ptr<void, Free> data_;
};

template <class T, class Memory>
std::vector<std::vector<T>> copies(const std::vector<Array<T, Memory>>& arrays) {
  std::vector<std::vector<T>> out;
  for (const Array<T, Memory>& array : arrays) out.push_back(array.copy());
  return out;
}

// What is in a call's inputs.
enum class Values {
  kRandom,
  kWithNan,  // in one row of the batch, of the bits that also mean "unwritten"
  kZero,     // soon written: for measurements
};

// The controls of a call, such that each rule comes up.
template <class T, class Memory>
class ControlArrays {
 public:
  ControlArrays(const Case& c, std::mt19937& random) {
    const std::string_view which = c.controls;
    const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
    const Shape& s = c.shape;
    const auto time = static_cast<unsigned>(s.time);
    if (!which.empty())
      // The first rows all end early; of later ones, those of one group are empty.
      lengths.emplace_back(s.batch * s.groups).fill([&](std::int64_t i) {
        return i / s.groups < 8 ? below(time - 1) : i % s.groups == 1 ? 0 : below(time + 1);
      });
    if (which != "all") return;
    resets.emplace_back(s.batch * s.time * s.groups).fill([&](auto) { return below(3) == 0; });
    const std::int64_t state = s.batch * s.groups * s.hidden;
    const std::int64_t states = numbers(cell_spec(c.cell)).states;
    // Powers of two, so that it is the same where they enter a product.
    constexpr float kMask[] = {0, 0.5f, 1, 2}, kStays[] = {0, 0.125f, 0.1875f, 1};
    mask.emplace_back(state).fill([&](auto) { return kMask[below(4)]; });
    zoneout.emplace_back(state * s.time * states).fill([&](auto) { return kStays[below(4)]; });
  }
  // Of the rest, reset_to is an input like state_0.
  void give(Shape& shape, Controls<void>& to) const {
    if (!lengths.empty()) shape.lengths = lengths[0].get();
    if (!resets.empty()) to.resets = resets[0].get();
    if (!mask.empty()) to.mask = mask[0].get();
    if (!zoneout.empty()) to.zoneout = zoneout[0].get();
  }

 private:
  // One of each, or none.
  std::vector<Array<std::int32_t, Memory>> lengths;
  std::vector<Array<std::uint8_t, Memory>> resets;
  std::vector<Array<T, Memory>> mask, zoneout;
};

// All arrays of a call.
template <class T, class Memory = HostMemory>
struct Data {
  std::mt19937 random{7};
  std::vector<Array<T, Memory>> inputs, results;
  std::vector<Array<float, Memory>> given_floats, sums;  // the same that are floats in any format
  ControlArrays<T, Memory> controls;
  std::vector<Array<T, Memory>> workspace;  // one
  CudaCall call;

  Data(const Case& c, const CellSpec& cell, Values values)
      : controls(c, random),
        call{c.pass, cell, c.number, c.shape, {}, {}, nullptr, {}, is_stack(c.cell)} {
    const CellNumbers numbers = prnn::numbers(cell);
    const Shape& s = c.shape;
    const std::int64_t state = s.batch * s.groups * s.hidden, sequence = state * s.time;
    // Of a stack, a_x and dy are one layer's, and w has w_ih, too.
    const std::int64_t outer = call.is_stack ? sequence / s.groups : sequence;
    const bool is_lean = std::string_view(c.controls) == "lengths";
    const auto fill_input = [&](auto& array, float scale) {
      if (values == Values::kZero) return array.clear();
      std::uniform_real_distribution<float> uniform(-scale, scale);
      return array.fill([&](auto) { return uniform(random); });
    };
    const auto input = [&](std::int64_t n, float scale) {
      return fill_input(inputs.emplace_back(n), scale);
    };
    // The n-th state. What divides is not near 0, but it may be 0 in the beginning.
    const auto fill_state = [&](auto& array, int n, bool is_first) {
      std::uniform_real_distribution<float> uniform(-0.8f, 0.8f);
      const bool divides = cell.kind == CellKind::kSlstm && n == 2;
      return array.fill([&](auto) {
        const float v = uniform(random);
        return !divides ? v : is_first && v < -0.4f ? 0.0f : 0.5f + std::fabs(v);
      });
    };
    const auto input_state = [&](int n, bool is_first) {
      return fill_state(inputs.emplace_back(state), n, is_first);
    };
    const auto with_one_nan = [&]<class V>(V* array) {
      if (values == Values::kWithNan) Memory::set(array, 0xff, sizeof(V));
      return array;
    };
    const auto output = [&](std::int64_t n) { return results.emplace_back(n).get(); };
    const auto states_made = [&] {
      MadeStates<void> out{output(state), {}};
      for (int n = 1; n < numbers.states; ++n) out.others[n - 1] = sums.emplace_back(state).get();
      return out;
    };
    const float weight = 1.5f / std::sqrt(static_cast<float>(s.hidden));
    const std::int64_t sources = call.is_stack ? 2 : 1;
    const std::int64_t weights = s.groups * sources * s.hidden * numbers.gates * s.hidden;
    const auto per_unit = [&]() -> const void* {
      const std::int64_t count = s.groups * numbers.per_unit * s.hidden;
      return count == 0 ? nullptr : input(count, 0.8f);
    };
    if (c.pass == PassKind::kForward) {
      auto& at = call.forward;
      at.a_x = input(outer * numbers.gates, 1.0f);
      at.w_hh = input(weights, weight);
      const int products = pass_sizes(cell.kind, c.pass, call.is_stack).products;
      at.b_hh = input(s.groups * products * s.hidden, 0.5f);
      at.per_unit = per_unit();
      at.state_0.h = with_one_nan(input_state(0, true));
      for (int n = 1; n < numbers.states; ++n)
        at.state_0.others[n - 1] =
            with_one_nan(fill_state(given_floats.emplace_back(state), n, true));
      at.y = output(sequence);
      at.state_n = states_made();
      at.saves_reserve = !is_lean;
      controls.give(call.shape, at.controls);
      const int kept = numbers.kept(at.controls.zoneout != nullptr);
      const int saved = is_lean ? numbers.states - 1 : kept;
      if (saved > 0) at.saved = output(sequence * saved);
      if (at.controls.resets != nullptr)
        for (int n = 0; n < numbers.states; ++n) at.controls.reset_to[n] = input_state(n, true);
    } else {
      auto& at = call.backward;
      at.w_hh = input(weights, weight);
      at.per_unit = per_unit();
      at.y = input(sequence, 0.8f);
      controls.give(call.shape, at.controls);
      if (const int kept = numbers.kept(at.controls.zoneout != nullptr); kept > 0) {
        std::uniform_real_distribution<float> uniform(-0.9f, 0.9f);
        const auto drawn = [&](std::int64_t value, float v) {
          if (cell.kind != CellKind::kSlstm) return v;
          if (value < 2) return 0.1f + std::fabs(v);  // i and f, of which n is made
          return value == Slstm::kReserve + 1 ? 0.5f + std::fabs(v) : v;  // n, which divides
        };
        at.saved = inputs.emplace_back(sequence * kept).fill([&](std::int64_t i) {
          return drawn(i / s.hidden % kept, uniform(random));
        });
      }
      for (int n = 0; n < numbers.states; ++n) at.state_0[n] = input_state(n, false);
      at.dy = input(outer, 1.0f);
      at.dstate_n.h = with_one_nan(input(state, 1.0f));
      for (int n = 1; n < numbers.states; ++n)
        at.dstate_n.others[n - 1] =
            with_one_nan(fill_input(given_floats.emplace_back(state), 1.0f));
      at.da_x = output(sequence * numbers.gates);
      at.da_h = numbers.same_gradient ? at.da_x : output(sequence * numbers.gates);
      if (numbers.normalises) at.dper_unit = sums.emplace_back(state * numbers.per_unit).get();
      at.dstate_0 = states_made();
      if (at.controls.resets != nullptr)
        for (int n = 0; n < numbers.states; ++n) {
          at.controls.reset_to[n] = input_state(n, false);
          at.dreset_to[n] = sums.emplace_back(state).get();
        }
    }
    // No more than is used, so that a sanitizer sees what lies beyond the mailbox. Small layers are
    // streamed, too, by plans that are made by hand.
    const auto list = instances(c, cell);
    const bool may_stream =
        c.instance == kPlanned || list[static_cast<std::size_t>(c.instance)].tile.is_streamed();
    const auto bytes = mailbox_of(call).bytes + (may_stream ? streamed_bytes(call) : 0);
    call.workspace = workspace.emplace_back(bytes / static_cast<std::int64_t>(sizeof(T))).get();
  }
  void forget() {
    for (auto& result : results) result.forget();
    for (auto& sum : sums) sum.forget();
    workspace[0].forget();
  }
};

}  // namespace prnn
