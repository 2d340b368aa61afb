#include <cuda_runtime.h>

#include <cmath>

#include "cuda/elementwise.cuh"
#include "cuda/elementwise.h"
#include "cuda/errors.h"
#include "cuda/kernels.h"

namespace prnn {
namespace {

struct Linear {
  PRNN_DEVICE float operator()(float v) const { return v; }
};

template <ElementwisePart kPart, class T, int kWide, class Numbers, class F>
__global__ void __launch_bounds__(kElementwiseThreads)
    elementwise(const __grid_constant__ ElementwiseTask task, const F f) {
  ElementwiseThread<kPart, T, kWide, Numbers, F>(task, f).run();
}

// Calls g(kernel, f) for each kernel of a call, in their order, until one fails.
template <class T, int kWide, class Numbers = Reals<kWide>, class G>
cudaError_t each_linear_kernel(int chunks, G&& g) {
  using enum ElementwisePart;
  if (chunks == 1) return g(&elementwise<kAll, T, kWide, Numbers, Linear>, Linear{});
  if (const cudaError_t e = g(&elementwise<kCarries, T, kWide, Numbers, Linear>, Linear{}))
    return e;
  return g(&elementwise<kFromThem, T, kWide, Numbers, Linear>, Linear{});
}
template <class T, int kWide, class G>
cudaError_t each_kernel(const ElementwiseRecurrence& p, int chunks, G&& g) {
  if (p.is_linear) return each_linear_kernel<T, kWide>(chunks, g);
  return g(&elementwise<ElementwisePart::kAll, T, kWide, Reals<kWide>, AnyActivation>, p.f);
}

// The same of any dtype: two numbers of 16 bits at once, where rows are made of such pairs.
template <class G>
cudaError_t each_kernel(const ElementwiseRecurrence& p, int chunks, int& wide, G&& g) {
  if (p.is_complex) {
    wide = 2;
    return each_linear_kernel<float, 2, ComplexNumber>(chunks, g);
  }
  return visit(p.dtype, [&](auto value) {
    using T = decltype(value);
    wide = sizeof(T) == 2 && p.width % 2 == 0 ? 2 : 1;
    if constexpr (sizeof(T) == 2)
      if (wide == 2) return each_kernel<T, 2>(p, chunks, g);
    return each_kernel<T, 1>(p, chunks, g);
  });
}

}  // namespace

Failure prepare(const ElementwiseRecurrence& recurrence, int chunks) {
  int wide = 1;
  const cudaError_t error = each_kernel(recurrence, chunks, wide, [](auto* kernel, auto&&) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 0);
  });
  if (is_not_in_build(error)) {
    cudaGetLastError();
    return "prnn_jax: this build has no kernels for the compute capability of this GPU; build with "
           "its architecture in PRNN_CUDA_ARCHS, or use implementation=\"scan\"";
  }
  return failure("the kernel cannot be prepared", error);
}

Failure launch(const ElementwiseRecurrence& recurrence, int chunks, float* workspace,
               CUstream_st* stream) {
  const ElementwisePlan plan = in_chunks(recurrence.steps, chunks);
  const ElementwiseTask task{.of = recurrence,
                             .chunk = plan.chunk,
                             .chunks = plan.chunks,
                             .factor = workspace,
                             .sum = workspace + plan.chunks * recurrence.elements()};
  int wide = 1;
  const cudaError_t error = each_kernel(recurrence, plan.chunks, wide, [&](auto* kernel, auto f) {
    const std::int64_t threads = recurrence.elements() / wide;
    const std::int64_t blocks = (threads + kElementwiseThreads - 1) / kElementwiseThreads;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks * plan.chunks));
    config.blockDim = dim3(kElementwiseThreads);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, task, f);
  });
  return failure("the launch failed", error);
}

}  // namespace prnn
