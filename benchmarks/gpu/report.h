// What the CUDA programs of this folder share: rows of JSON on stdout, errors, launches, times.
// A program ends with 0, with 1 where a row says so, with 3 after a CUDA error, with 4 out of time,
// and with 77 where there is no GPU.
#pragma once
#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace bench {

constexpr int kNoGpu = 77, kCudaError = 3, kOutOfTime = 4;

// ---- rows ----

inline std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text)
    if (c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 32) out += c;
  return out + '"';
}
inline std::string json(const char* v) { return quoted(v); }
inline std::string json(const std::string& v) { return quoted(v); }
inline std::string json(bool v) { return v ? "true" : "false"; }
template <class T>
std::string json(T v) {
  char text[40];
  if constexpr (std::is_floating_point_v<T>)
    std::snprintf(text, sizeof text, v == v && v - v == 0 ? "%.6g" : "null",
                  static_cast<double>(v));
  else
    std::snprintf(text, sizeof text, "%lld", static_cast<long long>(v));
  return text;
}

// row("part", "micro", "us", 0.37): a line of JSON, flushed.
inline void append(std::string&) {}
template <class Value, class... Rest>
void append(std::string& out, const char* key, const Value& value, const Rest&... rest) {
  out += (out.size() > 1 ? ", " : "") + quoted(key) + ": " + json(value);
  append(out, rest...);
}
template <class... Fields>
void row(const Fields&... fields) {
  std::string out = "{";
  append(out, fields...);
  std::printf("%s}\n", out.c_str());
  std::fflush(stdout);
}

// ---- errors ----

inline void check(cudaError_t error, const char* what, const char* file, int line) {
  if (error == cudaSuccess) return;
  const char* name = std::max(file, 1 + std::string(file).rfind('/') + file);
  row("error", std::string(what) + ": " + cudaGetErrorString(error), "at",
      std::string(name) + ":" + std::to_string(line));
  // Destructors might wait for the device.
  _exit(error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ? kNoGpu : kCudaError);
}
#define CHECK(call) ::bench::check((call), #call, __FILE__, __LINE__)

// Ends the program after that many seconds, whatever the device does.
inline void watch(int seconds) {
  std::thread([seconds] {
    std::this_thread::sleep_for(std::chrono::seconds(seconds));
    row("error", "out of time", "seconds", seconds);
    _exit(kOutOfTime);
  }).detach();
}

inline bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}
inline int attribute(cudaDeviceAttr which) {
  int value = 0;
  CHECK(cudaDeviceGetAttribute(&value, which, 0));
  return value;
}
inline int sms() { return attribute(cudaDevAttrMultiProcessorCount); }
inline int compute_capability() {
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor) +
         attribute(cudaDevAttrComputeCapabilityMinor);
}

// ---- memory ----

// An array on the device, with a copy for the host.
template <class T>
class Array {
 public:
  explicit Array(std::size_t size) : size_(size) { CHECK(cudaMalloc(&data_, bytes())); }
  explicit Array(const std::vector<T>& values) : Array(values.size()) {
    CHECK(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice));
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { cudaFree(data_); }

  T* get() const { return data_; }
  std::size_t bytes() const { return size_ * sizeof(T); }
  void fill(int byte, cudaStream_t stream = nullptr) const {
    CHECK(cudaMemsetAsync(data_, byte, bytes(), stream));
  }
  std::vector<T> read() const {
    std::vector<T> out(size_);
    CHECK(cudaMemcpy(out.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return out;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

// ---- launches ----

struct Launch {
  int blocks = 1, threads = 32;
  int shared_bytes = 0;
  bool cooperative = false;
  int cluster = 1;
  cudaStream_t stream = nullptr;
};

class Config {
 public:
  explicit Config(const Launch& l) {
    config_.gridDim = dim3(static_cast<unsigned>(l.blocks));
    config_.blockDim = dim3(static_cast<unsigned>(l.threads));
    config_.dynamicSmemBytes = static_cast<std::size_t>(l.shared_bytes);
    config_.stream = l.stream;
    config_.attrs = attributes_;
    if (l.cooperative) {
      cudaLaunchAttribute& a = attributes_[config_.numAttrs++];
      a.id = cudaLaunchAttributeCooperative;
      a.val.cooperative = 1;
    }
    if (l.cluster > 1) {
      cudaLaunchAttribute& a = attributes_[config_.numAttrs++];
      a.id = cudaLaunchAttributeClusterDimension;
      a.val.clusterDim.x = static_cast<unsigned>(l.cluster);
      a.val.clusterDim.y = a.val.clusterDim.z = 1;
    }
  }
  Config(const Config&) = delete;
  const cudaLaunchConfig_t* get() const { return &config_; }

 private:
  cudaLaunchAttribute attributes_[2] = {};
  cudaLaunchConfig_t config_ = {};
};

template <class... Parameters>
void allow(void (*kernel)(Parameters...), const Launch& l) {
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, l.shared_bytes));
  if (l.cluster > 8)
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
}
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const Launch& l, Arguments... arguments) {
  allow(kernel, l);
  CHECK(cudaLaunchKernelEx(Config(l).get(), kernel, static_cast<Parameters>(arguments)...));
}
// Clusters of such a launch that run at once; 0 where none does.
template <class... Parameters>
int resident_clusters(void (*kernel)(Parameters...), const Launch& l) {
  allow(kernel, l);
  int count = 0;
  if (cudaOccupancyMaxActiveClusters(&count, kernel, Config(l).get()) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

// ---- times ----

// Median of `runs` times in microseconds, by events; `before` is not timed.
inline double time_us(
    const std::function<void()>& run, const std::function<void()>& before = [] {}, int runs = 15) {
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<double> times;
  for (int n = -2; n < runs; ++n) {
    before();
    CHECK(cudaEventRecord(begin));
    run();
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (n >= 0) times.push_back(1e3 * ms);
  }
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace bench
