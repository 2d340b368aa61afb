// Arrays of the engine's calls for check_engine.cc, of exactly the right size, and threads.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "cpu/run.h"

using prnn::CellKind;
using prnn::Dtype;
using Floats = std::vector<float>;
using Bytes = std::vector<char>;

class Threads : public prnn::ThreadPool {
 public:
  explicit Threads(int threads) : threads_(threads) {}
  ~Threads() override {
    for (auto& t : running_) t.join();
  }
  int threads() const override { return threads_; }
  void schedule(std::function<void()> task) override { running_.emplace_back(std::move(task)); }

 private:
  int threads_;
  std::vector<std::thread> running_;
};

inline Floats wave(std::int64_t size, float frequency, float scale) {
  Floats out(size);
  for (std::int64_t i = 0; i < size; ++i) out[i] = scale * std::sin(frequency * (i + 1));
  return out;
}

// Of numbers well within a format's range: float's upper half, or 10 bits below the exponent.
inline std::uint16_t narrow(float v, Dtype dtype) {
  std::uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  if (dtype == Dtype::kBfloat16) return static_cast<std::uint16_t>(bits >> 16);
  const std::uint32_t exponent = bits >> 23 & 0xff, sign = bits >> 16 & 0x8000;
  if (exponent < 113) return static_cast<std::uint16_t>(sign);
  return static_cast<std::uint16_t>(sign | (exponent - 112) << 10 | (bits >> 13 & 0x3ff));
}
inline bool is_finite(const Bytes& bytes, Dtype dtype) {
  if (bytes.empty()) return true;
  if (dtype == Dtype::kFloat32) {
    Floats values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    for (float v : values)
      if (!std::isfinite(v)) return false;
    return true;
  }
  const std::uint16_t exponent = dtype == Dtype::kBfloat16 ? 0x7f80 : 0x7c00;
  std::vector<std::uint16_t> values(bytes.size() / 2);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  for (std::uint16_t v : values)
    if ((v & exponent) == exponent) return false;
  return true;
}

// Arrays of exactly the size, all of the dtype but what Buffers::unwritten_floats gives.
class Buffers {
 public:
  explicit Buffers(Dtype dtype) : dtype_(dtype) {}
  const float* wave_floats(std::int64_t size, float frequency, float scale, float offset = 0.0f) {
    const Floats values = ::wave(size, frequency, scale);
    float* const out = unwritten_floats(size);
    for (std::int64_t i = 0; i < size; ++i) out[i] = values[i] + offset;
    return out;
  }
  const void* wave(std::int64_t size, float frequency, float scale, float offset = 0.0f) {
    const float* const values = wave_floats(size, frequency, scale, offset);
    Bytes& out = make(size * width());
    for (std::int64_t i = 0; i < size; ++i) {
      const float value = values[i];
      const std::uint16_t half = narrow(value, dtype_);
      std::memcpy(out.data() + i * width(), width() == 4 ? static_cast<const void*>(&value) : &half,
                  width());
    }
    return out.data();
  }
  // All bits set, which is NaN in every format.
  void* unwritten(std::int64_t size) { return make(size * width()).data(); }
  float* unwritten_floats(std::int64_t size) {
    return reinterpret_cast<float*>(make(size * 4).data());
  }
  // States, the n-th of size(n) values.
  template <class Size>
  prnn::GivenStates<void> wave_states(int count, Size&& size) {
    prnn::GivenStates<void> out{wave(size(0), 2.1f, 0.5f), {}};
    constexpr float kFrequencies[] = {1.7f, 1.5f, 1.1f};
    for (int n = 1; n < count; ++n)  // the second of these divides
      out.others[n - 1] = wave_floats(size(n), kFrequencies[n - 1], 0.5f, n == 2 ? 1.0f : 0.0f);
    return out;
  }
  template <class Size>
  prnn::MadeStates<void> unwritten_states(int count, Size&& size) {
    prnn::MadeStates<void> out{unwritten(size(0)), {}};
    for (int n = 1; n < count; ++n) out.others[n - 1] = unwritten_floats(size(n));
    return out;
  }
  const Bytes& of(const void* data) const {
    for (const auto& bytes : all_)
      if (bytes->data() == data) return *bytes;
    std::abort();
  }

 private:
  std::int64_t width() const { return dtype_ == Dtype::kFloat32 ? 4 : 2; }
  Bytes& make(std::int64_t bytes) {
    all_.push_back(std::make_unique<Bytes>(bytes, static_cast<char>(0xff)));
    return *all_.back();
  }
  Dtype dtype_;
  std::vector<std::unique_ptr<Bytes>> all_;
};
