// For programs of tests that are linked to tests/fake_cuda: the device that they find there, and
// the mistake that its emulator makes (emulator/faults.h), if the environment names one.
#include <cstdlib>

#include "fake_cuda/control.h"

namespace {

const int device = [] {
  if (const char* fault = std::getenv("PRNN_FAKE_FAULT")) prnn::fake_cuda::set_fault(fault);
  return prnn::fake_cuda::add_device("NVIDIA H200");
}();

}  // namespace
