// The handlers that the module registers with XLA.
#pragma once
#include <string>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace prnn {
// What kernels of any GPU that gave up a wait have left behind. Where built with CUDA.
std::vector<std::string> cuda_failures();
}  // namespace prnn

extern "C" {
XLA_FFI_Error* PrnnCheckCall(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCpuForward(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCpuBackward(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCpuProducts(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCpuPrepare(XLA_FFI_CallFrame*);
// Where built with CUDA.
XLA_FFI_Error* PrnnCudaPrepareForward(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCudaPrepareBackward(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCudaForward(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCudaBackward(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCudaForwardUncaptured(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCudaBackwardUncaptured(XLA_FFI_CallFrame*);
}
