// The kernels of one number format (PRNN_NUMBER) in the emulator: compiled apart, side by side.
#include "emulator/engine.h"

namespace prnn::emulator {

template Statistics run<Number::PRNN_NUMBER>(const CudaCall&, const Plan&, const Options&);

}  // namespace prnn::emulator
