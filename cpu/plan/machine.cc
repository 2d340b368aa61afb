#include "cpu/plan/machine.h"

#include <unistd.h>

#include <fstream>

#include "cpu/environment.h"
#include "cpu/plan/machines.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include "cpu/x86.h"
#endif

namespace prnn {
namespace {

// Of the first core's cache, as Linux says: "32768K".
std::int64_t listed(int index) {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
  std::int64_t size = 0;
  char unit = 'B';
  if (!(file >> size)) return 0;
  file >> unit;
  return size << (unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0);
}

// As the C library says; 0: it does not.
std::int64_t configured([[maybe_unused]] int level) {
#ifdef _SC_LEVEL2_CACHE_SIZE
  const long size = sysconf(level == 2 ? _SC_LEVEL2_CACHE_SIZE : _SC_LEVEL3_CACHE_SIZE);
  if (size > 0) return static_cast<std::int64_t>(size);
#endif
  return 0;
}

std::int64_t own_cache() {
  if (const auto bytes = kCacheBytes.value()) return *bytes;
  const std::int64_t size = configured(2);
  return size > 0 ? size : std::int64_t{1} << 20;
}

std::int64_t shared_cache() {
  if (const auto bytes = kSharedCacheBytes.value()) return *bytes;
  // glibc adds up what a whole AMD processor has: 256 MiB, where each eight cores share 32.
  const std::int64_t size = listed(3);
  return size > 0 ? size : configured(3);
}

// As machines.cc names it; empty if it does not.
std::string microarchitecture() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return {};
  const unsigned family = (eax >> 8 & 0xf) + (eax >> 20 & 0xff);
  const unsigned model = (eax >> 4 & 0xf) | (eax >> 12 & 0xf0);
  if (x86().is_amd && family == 0x19) return x86().avx512 ? "zen4" : "zen3";
  if (x86().is_amd && family == 0x1a) return "zen5";
  // Sapphire, Emerald and Granite Rapids.
  if (x86().is_intel && family == 6 && (model == 0x8f || model == 0xcf || model == 0xad))
    return "sapphire_rapids";
  return {};
#elif defined(__aarch64__)
  return "neoverse";
#else
  return {};
#endif
}

Machine machine_of(const Entry& entry) {
  return {entry.name, entry.source, own_cache(), shared_cache(), entry.rates};
}

Machine detected(int width) {
  Machine out = machine_of(entry_of(microarchitecture(), width));
  if (const char* path = rates_path())
    if (const RatesFile file = read_rates(path); file.error.empty()) {
      out.source = path;
      out.rates = file.rates;
    }
  if (const auto wanted = wanted_way()) {
    out.wanted_source = wanted->source;
    out.wanted_partition = wanted->partition;
  }
  return out;
}

}  // namespace

std::optional<Machine> machine_named(const std::string& name) {
  for (const Entry& entry : known_machines())
    if (entry.name == name) return machine_of(entry);
  return std::nullopt;
}

const Machine& this_machine(int width) {
  static const Machine wide = detected(16), narrow = detected(8), portable = detected(4);
  return width > 8 ? wide : width > 4 ? narrow : portable;
}

}  // namespace prnn
