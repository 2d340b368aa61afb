// What an x86-64 processor and its system run. By CPUID, for __builtin_cpu_supports asks a part of
// the compiler's runtime library that is not filled in everywhere: a module linked by ziglang's
// Clang was told that nothing is supported.
#pragma once
#include <cpuid.h>

#include <cstring>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace prnn {

struct X86 {
  bool avx2 = false;         // and FMA, F16C
  bool avx512 = false;       // F, DQ, BW, VL
  bool avx512_bf16 = false;  // and the former
  bool amx_bf16 = false;     // and the former; and this process may use tiles
  bool is_amd = false, is_intel = false;

  bool has(const char* isa) const {
    return std::strcmp(isa, "amx_bf16") == 0      ? amx_bf16
           : std::strcmp(isa, "avx512_bf16") == 0 ? avx512_bf16
           : std::strcmp(isa, "avx512") == 0      ? avx512
           : std::strcmp(isa, "avx2") == 0        ? avx2
                                                  : std::strcmp(isa, "portable") == 0;
  }
  // The instruction set that takes the least time.
  const char* best() const {
    if (amx_bf16) return "amx_bf16";
    // AMD's processors do two multiply-adds of bfloat16 in the time of one of float (Zen 5: 490
    // GFLOP/s against 240). On an Intel Xeon with AMX, widening in registers took 0.7 to 0.9 of
    // the time where weights come from the second-level cache, and the same elsewhere.
    if (is_amd && avx512_bf16) return "avx512_bf16";
    return avx512 ? "avx512" : avx2 ? "avx2" : "portable";
  }
};

// What the processor says of itself.
struct CpuidAnswers {
  unsigned vendor[3] = {};        // EBX, EDX, ECX of leaf 0
  unsigned ecx_1 = 0;             // leaf 1
  unsigned kept = 0;              // XCR0: the registers that the system keeps for each thread
  unsigned ebx_7 = 0, edx_7 = 0;  // leaf 7
  unsigned eax_7_1 = 0;           // its subleaf 1
};

inline bool has_bits(unsigned value, auto... wanted) { return (((value >> wanted) & 1) && ...); }
inline constexpr int kOsXsave = 27;

inline CpuidAnswers ask_cpuid() {
  CpuidAnswers out;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(0, &a, &b, &c, &d)) return out;
  out.vendor[0] = b, out.vendor[1] = d, out.vendor[2] = c;
  if (__get_cpuid(1, &a, &b, &c, &d)) out.ecx_1 = c;
  if (!has_bits(out.ecx_1, kOsXsave)) return out;
  unsigned upper = 0;
  asm("xgetbv" : "=a"(out.kept), "=d"(upper) : "c"(0));
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return out;
  out.ebx_7 = b, out.edx_7 = d;
  if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) out.eax_7_1 = a;
  return out;
}

// `may_use_tiles` is asked where all else is there.
inline X86 x86_of(const CpuidAnswers& said, bool (*may_use_tiles)()) {
  X86 out;
  out.is_amd = std::memcmp(said.vendor, "AuthenticAMD", sizeof said.vendor) == 0;
  out.is_intel = std::memcmp(said.vendor, "GenuineIntel", sizeof said.vendor) == 0;
  out.avx2 = has_bits(said.ecx_1, 12, kOsXsave, 28, 29) &&  // FMA, AVX, F16C
             has_bits(said.kept, 1, 2) && has_bits(said.ebx_7, 5);
  out.avx512 = out.avx2 && has_bits(said.ebx_7, 16, 17, 30, 31) && has_bits(said.kept, 5, 6, 7);
  out.avx512_bf16 = out.avx512 && has_bits(said.eax_7_1, 5);
  out.amx_bf16 = out.avx512_bf16 && has_bits(said.edx_7, 22, 24) && has_bits(said.kept, 17, 18) &&
                 may_use_tiles();
  return out;
}

// Linux gives tiles to processes that ask for them, and to what these start by fork().
inline bool ask_for_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

inline const X86& x86() {
  static const X86 asked = x86_of(ask_cpuid(), ask_for_tiles);
  return asked;
}

}  // namespace prnn
