// What XLA's calls into the CPU engine share.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "core/dtype.h"
#include "cpu/environment.h"
#include "cpu/workers.h"
#include "xla/ffi/api/ffi.h"

namespace prnn {

class XlaThreadPool : public ThreadPool {
 public:
  explicit XlaThreadPool(xla::ffi::ThreadPool pool) : pool_(pool) {}
  // 0 where XLA has none: then there is the caller's.
  int threads() const override {
    return static_cast<int>(std::max<std::int64_t>(pool_.num_threads(), 1));
  }
  void schedule(std::function<void()> task) override { pool_.Schedule(std::move(task)); }

 private:
  xla::ffi::ThreadPool pool_;
};

// Calls f(pool) with the threads that calls share: our own, or XLA's where we are to have none.
template <class F>
void with_threads(xla::ffi::ThreadPool pool, F&& f) {
  XlaThreadPool of_xla(pool);
  Workers workers(std::min(of_xla.threads(), 1 + most_workers()));
  if (has_own_threads())
    f(workers);
  else
    f(of_xla);
}

// What was wrong with the environment when the first call came.
inline xla::ffi::Error check_environment() {
  static const std::string& wrong = *new std::string(environment_error());
  return wrong.empty() ? xla::ffi::Error::Success() : xla::ffi::Error::InvalidArgument(wrong);
}

}  // namespace prnn
