// The device's functions of a float, as nvcc compiles them: a kernel for each, named after it.
#define FUNCTION(name) \
  extern "C" __global__ void device_##name(float* to, float x) { *to = name(x); }
FUNCTION(expf)
FUNCTION(tanhf)
FUNCTION(log1pf)
