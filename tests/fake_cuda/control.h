// What a test may ask of the fake CUDA runtime: its devices, refusals and failures, and what ran.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace prnn::fake_cuda {

// What a driver may refuse although the device is said to have it.
struct Limits {
  int largest_cluster = 0;        // of more blocks, none can be resident; 0: all can
  std::int64_t shared_bytes = 0;  // blocks with more are not resident; 0: all are
  bool has_image = true;          // the build has kernels for the device
};

// Another device, after one on record (cuda/devices.cc); its ordinal. Devices are never removed, so
// that one just added is as in a process that has not used it.
int add_device(std::string_view recorded, const Limits& limits = {});

// Whether this thread's calls are those of the project: counted, and failed where a test wants it.
void count_calls(bool count);
// The nth such call of a function from now on, by any thread, returns the error; 0: none does.
void fail(std::string_view function, int nth, cudaError_t error);
// Calls of each function since then, "name:count" each.
std::vector<std::string> calls();

// Of the emulator, for launches that start from now on: its schedule, and a mistake that it makes.
void set_seed(std::uint64_t seed);
void set_fault(std::string_view fault);
// Whether two cooperative grids have run at the same time: CUDA does not say that they never do,
// nor that each then gets the SMs it needs.
bool grids_overlapped(int device);
// How many blocks of the host's memory calls on a device have and have not given back.
int host_blocks(int device);

// How this thread's last accepted launch since this was asked was made: "block", "cluster:N",
// "grid"; empty where there was none.
std::string last_launch();
// What the kernel that failed last on the device said; empty where none has.
std::string failure_of(int device);

}  // namespace prnn::fake_cuda
