// What an x86-64 processor and its system run. By CPUID, for __builtin_cpu_supports asks a part of
// the compiler's runtime library that is not filled in everywhere: a module linked by ziglang's
// Clang was told that nothing is supported.
#pragma once
#include <cpuid.h>

namespace prnn {

struct X86 {
  bool avx2 = false;         // and FMA, F16C
  bool avx512 = false;       // F, DQ, BW, VL
  bool avx512_bf16 = false;  // and the former
  bool is_amd = false, is_intel = false;
};

inline X86 ask_x86() {
  X86 out;
  unsigned a = 0, b = 0, c = 0, d = 0;
  const auto bits = [](unsigned value, auto... wanted) { return (((value >> wanted) & 1) && ...); };
  if (!__get_cpuid(0, &a, &b, &c, &d)) return out;
  out.is_amd = b == 0x68747541 && d == 0x69746e65 && c == 0x444d4163;           // "AuthenticAMD"
  out.is_intel = b == 0x756e6547 && d == 0x49656e69 && c == 0x6c65746e;         // "GenuineIntel"
  if (!__get_cpuid(1, &a, &b, &c, &d) || !bits(c, 12, 27, 28, 29)) return out;  // OSXSAVE, AVX, too
  unsigned kept = 0, upper = 0;  // the registers that the system keeps for each thread
  asm("xgetbv" : "=a"(kept), "=d"(upper) : "c"(0));
  if (!bits(kept, 1, 2) || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return out;
  const unsigned subleaves = a;
  out.avx2 = bits(b, 5);
  out.avx512 = out.avx2 && bits(b, 16, 17, 30, 31) && bits(kept, 5, 6, 7);
  if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
    out.avx512_bf16 = out.avx512 && bits(a, 5);
  return out;
}

inline const X86& x86() {
  static const X86 asked = ask_x86();
  return asked;
}

}  // namespace prnn
