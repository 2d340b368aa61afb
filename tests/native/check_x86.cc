// Which instruction sets follow from what a processor says of itself and what the system grants.
// Built and run by tests/test_tiles.py.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "cpu/x86.h"

namespace {

int asked = 0;
bool granted() { return ++asked, true; }
bool refused() { return ++asked, false; }

constexpr unsigned bit(int n) { return 1u << n; }

// A Sapphire Rapids, as far as this is asked.
prnn::CpuidAnswers sapphire_rapids() {
  prnn::CpuidAnswers out;
  std::memcpy(out.vendor, "GenuineIntel", sizeof out.vendor);
  out.ecx_1 = bit(12) | bit(27) | bit(28) | bit(29);
  out.kept = bit(1) | bit(2) | bit(5) | bit(6) | bit(7) | bit(17) | bit(18);
  out.ebx_7 = bit(5) | bit(16) | bit(17) | bit(30) | bit(31);
  out.edx_7 = bit(22) | bit(24);
  out.eax_7_1 = bit(5);
  return out;
}

void expect(const char* what, const prnn::CpuidAnswers& said, bool (*may_use_tiles)(),
            const char* best, const char* last_there, bool asks) {
  asked = 0;
  const prnn::X86 x86 = prnn::x86_of(said, may_use_tiles);
  bool is_right = std::strcmp(x86.best(), best) == 0 && (asked > 0) == asks;
  // All from there on, and none before.
  bool is_there = false;
  for (const char* name : {"amx_bf16", "avx512_bf16", "avx512", "avx2", "portable"}) {
    is_there = is_there || std::strcmp(name, last_there) == 0;
    is_right = is_right && x86.has(name) == is_there;
  }
  if (is_right && !x86.has("avx1024")) return;
  std::printf("FAILED: %s: best is %s, asked %d times\n", what, x86.best(), asked);
  std::exit(1);
}

}  // namespace

int main() {
  const prnn::CpuidAnswers whole = sapphire_rapids();
  expect("all is there", whole, granted, "amx_bf16", "amx_bf16", true);
  expect("the system refuses", whole, refused, "avx512", "avx512_bf16", true);
  prnn::CpuidAnswers amd = whole;
  std::memcpy(amd.vendor, "AuthenticAMD", sizeof amd.vendor);
  expect("AMD's, where the system refuses", amd, refused, "avx512_bf16", "avx512_bf16", true);
  expect("AMD's with tiles", amd, granted, "amx_bf16", "amx_bf16", true);
  const auto without = [&](unsigned prnn::CpuidAnswers::* of, int n) {
    prnn::CpuidAnswers out = whole;
    out.*of &= ~bit(n);
    return out;
  };
  using Said = prnn::CpuidAnswers;
  for (const int n : {22, 24})
    expect("tiles, or their products, are missing", without(&Said::edx_7, n), granted, "avx512",
           "avx512_bf16", false);
  for (const int n : {17, 18})
    expect("the system keeps no tiles", without(&Said::kept, n), granted, "avx512", "avx512_bf16",
           false);
  expect("no products of bfloat16", without(&Said::eax_7_1, 5), granted, "avx512", "avx512", false);
  for (const int n : {16, 17, 30, 31})
    expect("a part of AVX-512 is missing", without(&Said::ebx_7, n), granted, "avx2", "avx2",
           false);
  for (const int n : {5, 6, 7})
    expect("the system keeps no wide registers", without(&Said::kept, n), granted, "avx2", "avx2",
           false);
  for (const int n : {12, 27, 28, 29})
    expect("a part of AVX2 is missing", without(&Said::ecx_1, n), granted, "portable", "portable",
           false);
  expect("nothing is said", {}, granted, "portable", "portable", false);
  prnn::x86_of(prnn::ask_cpuid(), prnn::ask_for_tiles);
  std::printf("ok\n");
}
