// Where the seed of a launch goes: splitmix64, http://prng.di.unimi.it/splitmix64.c
#pragma once
#include <cstddef>
#include <cstdint>

namespace prnn::emulator {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t n) { return next() % n; }
  bool one_in(int n) { return next() % n == 0; }

 private:
  std::uint64_t state_;
};

}  // namespace prnn::emulator
