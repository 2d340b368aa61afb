// Memory of the current CUDA device, for cuda_data.h; and errors, which end the program.
#pragma once
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

namespace prnn {

[[noreturn]] inline void give_up(const std::string& what) {
  std::printf("{\"part\": \"engine\", \"ok\": false, \"error\": \"%s\"}\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(3);  // destructors might wait for the device
}
inline void require(cudaError_t error, const char* what) {
  if (error != cudaSuccess) give_up(std::string(what) + ": " + cudaGetErrorString(error));
}
inline void require(const std::optional<std::string>& failure) {
  if (failure) give_up(*failure);
}

struct DeviceMemory {
  static void* allocate(std::size_t bytes) {
    void* p = nullptr;
    require(cudaMalloc(&p, bytes), "cudaMalloc");
    return p;
  }
  static void free(void* p) { require(cudaFree(p), "cudaFree"); }
  static void write(void* to, const void* from, std::size_t bytes) {
    require(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  static void read(void* to, const void* from, std::size_t bytes) {
    require(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  }
  static void set(void* to, int byte, std::size_t bytes) {
    require(cudaMemset(to, byte, bytes), "cudaMemset");
  }
};

}  // namespace prnn
