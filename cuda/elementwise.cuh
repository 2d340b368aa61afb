// A thread's part of an elementwise recurrence (core/elementwise.h): some adjacent elements of a
// row (kWide of them, one access to memory), all steps or those of a chunk (elementwise_plan.h).
#pragma once
#include "core/elementwise.h"
#include "cuda/elementwise_plan.h"
#include "cuda/ptx.h"

namespace prnn {

enum class ElementwisePart {
  kAll,       // from y_0 to the last step
  kCarries,   // what a chunk hands over
  kFromThem,  // the steps of a chunk, from what those before it hand over
};

struct ElementwiseTask {
  ElementwiseRecurrence of;
  std::int64_t chunk;  // steps
  int chunks;
  float *factor, *sum;  // [chunks, rows, width]
};

template <class T, int kWide>
struct alignas(sizeof(T) * kWide) Adjacent {
  T v[kWide];
};

PRNN_DEVICE float elementwise_load(float v) { return v; }
PRNN_DEVICE float elementwise_load(Bfloat16 v) {
  const std::uint32_t bits = std::uint32_t{v.bits} << 16;
  float out;
  __builtin_memcpy(&out, &bits, sizeof out);
  return out;
}
PRNN_DEVICE float elementwise_load(Float16 v) { return ptx::cvt_f32_f16(v.bits); }
PRNN_DEVICE void elementwise_store(float v, float& to) { to = v; }
PRNN_DEVICE void elementwise_store(float v, Bfloat16& to) {
  to.bits = static_cast<std::uint16_t>(ptx::cvt_rn_bf16x2(v, 0.0f));
}
PRNN_DEVICE void elementwise_store(float v, Float16& to) {
  to.bits = static_cast<std::uint16_t>(ptx::cvt_rn_f16x2(v, 0.0f));
}

// What a thread's elements are: kWide real numbers, or the two parts of a complex one.
template <int kWide>
struct Reals {
  using Values = float[kWide];

  PRNN_DEVICE static float one(int) { return 1.0f; }
  // y = a y + b; of an a of 0, b alone: a y that is infinite or no number does not pass a reset.
  PRNN_DEVICE static void next(const Values& a, Values& y, const Values& b) {
#pragma unroll
    for (int n = 0; n < kWide; ++n) y[n] = a[n] == 0.0f ? b[n] : fmaf(a[n], y[n], b[n]);
  }
  // The same of a product of many factors, which may be infinite: zero times it is not NaN in
  // steps.
  PRNN_DEVICE static void carry(const Values& a, Values& y, const Values& b) {
#pragma unroll
    for (int n = 0; n < kWide; ++n)
      y[n] = a[n] == 0.0f || y[n] == 0.0f ? b[n] : fmaf(a[n], y[n], b[n]);
  }
  // all *= a; 0 only if one of the factors is, however small.
  PRNN_DEVICE static void multiply(Values& all, const Values& a) {
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      const bool has_zero = all[n] == 0.0f || a[n] == 0.0f;
      all[n] *= a[n];
      if (all[n] == 0.0f || has_zero) all[n] = has_zero ? 0.0f : kLeast;
    }
  }
  static constexpr float kLeast = 0x1p-149f;
};
struct ComplexNumber {
  using Values = float[2];

  PRNN_DEVICE static float one(int part) { return part == 0 ? 1.0f : 0.0f; }
  PRNN_DEVICE static void next(const Values& a, Values& y, const Values& b) {
    const Values before = {y[0], y[1]};
    y[0] = b[0], y[1] = b[1];
    if (!is_zero(a)) add_product(y, a, before);
  }
  PRNN_DEVICE static void carry(const Values& a, Values& y, const Values& b) {
    if (is_zero(y))
      y[0] = b[0], y[1] = b[1];
    else
      next(a, y, b);
  }
  PRNN_DEVICE static void multiply(Values& all, const Values& a) {
    const bool has_zero = is_zero(all) || is_zero(a);
    const Values before = {all[0], all[1]};
    all[0] = all[1] = 0.0f;
    if (has_zero) return;
    add_product(all, a, before);
    if (is_zero(all)) all[0] = Reals<1>::kLeast;
  }

 private:
  PRNN_DEVICE static bool is_zero(const Values& v) { return v[0] == 0.0f && v[1] == 0.0f; }
  PRNN_DEVICE static void add_product(Values& sum, const Values& a, const Values& b) {
    sum[0] = fmaf(a[0], b[0], fmaf(-a[1], b[1], sum[0]));
    sum[1] = fmaf(a[0], b[1], fmaf(a[1], b[0], sum[1]));
  }
};

template <ElementwisePart kPart, class T, int kWide, class Numbers, class F>
class ElementwiseThread {
 public:
  // F makes y of a y + b.
  PRNN_DEVICE ElementwiseThread(const ElementwiseTask& task, const F& f) : task_(task), f_(f) {}

  PRNN_DEVICE void run() {
    const ElementwiseRecurrence& p = task_.of;
    const std::int64_t threads = p.elements() / kWide;
    const auto blocks = static_cast<int>((threads + kElementwiseThreads - 1) / kElementwiseThreads);
    const int chunk = ptx::ctaid() / blocks;
    const std::int64_t thread =
        std::int64_t{ptx::ctaid() % blocks} * kElementwiseThreads + ptx::tid();
    if (thread >= threads) return;
    element_ = thread * kWide;
    sequence_ = element_ / p.width * p.steps * p.width + element_ % p.width;
    begin(chunk);
    const std::int64_t first = chunk * task_.chunk;
    const std::int64_t end = first + task_.chunk < p.steps ? first + task_.chunk : p.steps;
    take(first, end);
    if constexpr (kPart == ElementwisePart::kCarries) hand_over(chunk);
  }

 private:
  using Values = Adjacent<T, kWide>;
  struct Step {
    Values a, b;
  };

  PRNN_DEVICE void begin(int chunk) {
    const ElementwiseRecurrence& p = task_.of;
    if (p.is_constant) constant_ = at(p.a, element_);
    const Values y_0 = at(p.y_0, element_);
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      y_[n] = kPart == ElementwisePart::kCarries ? 0.0f : elementwise_load(y_0.v[n]);
      factor_[n] = Numbers::one(n);
    }
    if constexpr (kPart == ElementwisePart::kFromThem) take_over(chunk);
  }

  PRNN_DEVICE void take_over(int chunk) {
#pragma unroll 8
    for (int before = 0; before < chunk; ++before) {
      const std::int64_t from = before * task_.of.elements() + element_;
      float factor[kWide], sum[kWide];
#pragma unroll
      for (int n = 0; n < kWide; ++n) {
        factor[n] = task_.factor[from + n];
        sum[n] = task_.sum[from + n];
      }
      Numbers::carry(factor, y_, sum);
    }
  }

  PRNN_DEVICE void hand_over(int chunk) const {
    const std::int64_t to = chunk * task_.of.elements() + element_;
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      task_.factor[to + n] = factor_[n];
      task_.sum[to + n] = y_[n];
    }
  }

  // While some steps are taken, the next ones are read.
  PRNN_DEVICE void take(std::int64_t first, std::int64_t end) {
    Step next[kStepsAhead] = {};
    read(next, first, end);
    for (std::int64_t s = first; s < end; s += kStepsAhead) {
      Step now[kStepsAhead];
#pragma unroll
      for (int k = 0; k < kStepsAhead; ++k) now[k] = next[k];
      read(next, s + kStepsAhead, end);
#pragma unroll
      for (int k = 0; k < kStepsAhead; ++k)
        if (s + k < end) step(s + k, now[k]);
    }
  }

  PRNN_DEVICE void read(Step (&steps)[kStepsAhead], std::int64_t first, std::int64_t end) const {
    const ElementwiseRecurrence& p = task_.of;
#pragma unroll
    for (int k = 0; k < kStepsAhead; ++k) {
      const std::int64_t s = first + k;
      if (s >= end) continue;
      steps[k].b = at(p.b, place(s));
      const std::int64_t of_a = p.is_shifted ? s - 1 : s;
      if (p.is_constant)
        steps[k].a = constant_;
      else if (of_a >= 0)
        steps[k].a = at(p.a, place(of_a));
    }
  }

  PRNN_DEVICE void step(std::int64_t s, const Step& given) {
    const ElementwiseRecurrence& p = task_.of;
    float a[kWide], b[kWide];
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      a[n] = p.is_shifted && s == 0 ? Numbers::one(n) : elementwise_load(given.a.v[n]);
      b[n] = elementwise_load(given.b.v[n]);
    }
    Numbers::next(a, y_, b);
    if constexpr (kPart == ElementwisePart::kCarries) Numbers::multiply(factor_, a);
    Values y;
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      y_[n] = f_(y_[n]);
      elementwise_store(y_[n], y.v[n]);
    }
    if constexpr (kPart != ElementwisePart::kCarries)
      *reinterpret_cast<Values*>(static_cast<T*>(p.y) + place(s)) = y;
  }

  // Of step s, in the order of processing, in a sequence.
  PRNN_DEVICE std::int64_t place(std::int64_t s) const {
    const ElementwiseRecurrence& p = task_.of;
    return sequence_ + (p.reverse ? p.steps - 1 - s : s) * p.width;
  }
  PRNN_DEVICE static Values at(const void* array, std::int64_t element) {
    return *reinterpret_cast<const Values*>(static_cast<const T*>(array) + element);
  }

  const ElementwiseTask& task_;
  const F f_;
  std::int64_t element_, sequence_;  // in y_0, and of step 0 in b
  Values constant_{};
  float y_[kWide], factor_[kWide];
};

}  // namespace prnn
