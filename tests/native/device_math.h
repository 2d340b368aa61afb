// The device's mathematical functions, as nvcc has them (ptx_interpreter/math.cu): what sources
// take in place of the C library's, so that they give the bits that interpreted kernels give.
#pragma once
#include <string>

#include "ptx_interpreter/interpreter.h"

namespace prnn {

struct DeviceMath {
  explicit DeviceMath(const std::string& path)
      : program(path),
        expf(program.decode("device_expf")),
        tanhf(program.decode("device_tanhf")),
        log1pf(program.decode("device_log1pf")) {}
  interpreter::Program program;
  interpreter::Entry expf, tanhf, log1pf;
  interpreter::Fma fma = interpreter::Fma::kRoundsTwice;  // where sources take them
};
inline const DeviceMath* math = nullptr;

inline float call(const interpreter::Entry& function, float x, interpreter::Fma fma) {
  float result = 0;
  const struct {
    float* to;
    float x;
  } parameters{&result, x};
  interpreter::run(function, &parameters, fma);
  return result;
}

}  // namespace prnn

// In place of the C library's: a program has them once.
extern "C" {
float expf(float x) { return prnn::call(prnn::math->expf, x, prnn::math->fma); }
float tanhf(float x) { return prnn::call(prnn::math->tanhf, x, prnn::math->fma); }
float log1pf(float x) { return prnn::call(prnn::math->log1pf, x, prnn::math->fma); }
}
