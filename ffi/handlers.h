// The handlers that the modules register with XLA.
#pragma once
#include <string>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace prnn {
// What kernels of any GPU that gave up a wait have left behind.
std::vector<std::string> cuda_failures();
}  // namespace prnn

extern "C" {
XLA_FFI_Error* PrnnCheckCall(XLA_FFI_CallFrame*);
// Of _prnn.
XLA_FFI_Error* PrnnCpuForward(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCpuBackward(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCpuProducts(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCpuPrepare(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCpuElementwise(XLA_FFI_CallFrame*);
// Of _prnn_cuda.
XLA_FFI_Error* PrnnCudaPrepareForward(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCudaPrepareBackward(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCudaForward(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCudaBackward(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCudaForwardUncaptured(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCudaBackwardUncaptured(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCudaPrepareElementwise(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCudaElementwise(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCudaElementwiseUncaptured(XLA_FFI_CallFrame*);
}
