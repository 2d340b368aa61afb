// The handlers that the module registers with XLA.
#pragma once
#include "xla/ffi/api/c_api.h"

extern "C" {
XLA_FFI_Error* PrnnCheckCall(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCpuForward(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCpuBackward(XLA_FFI_CallFrame*);
XLA_FFI_Error* PrnnCpuProject(XLA_FFI_CallFrame*);
}
