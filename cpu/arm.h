// What a 64-bit Arm processor and its system run beyond NEON, which all have.
#pragma once
#include <cstddef>

#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace prnn {

inline bool ask_for_bf16() {
#if defined(__linux__)
  constexpr unsigned long kBf16 = 1ul << 14;  // HWCAP2_BF16
  return (getauxval(AT_HWCAP2) & kBf16) != 0;
#elif defined(__APPLE__)
  int has = 0;
  std::size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &size, nullptr, 0) == 0 && has != 0;
#else
  return false;
#endif
}
inline bool has_bf16() {
  static const bool asked = ask_for_bf16();
  return asked;
}

}  // namespace prnn
