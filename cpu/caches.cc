#include "cpu/caches.h"

#include <unistd.h>

#include <fstream>
#include <string>

#include "cpu/environment.h"

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

}  // namespace

std::int64_t cache_bytes_per_thread() {
  static const std::int64_t bytes = [] {
    if (const auto bytes = kCacheBytes.value()) return *bytes;
#ifdef _SC_LEVEL2_CACHE_SIZE
    const long size = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (size > 0) return static_cast<std::int64_t>(size);
#endif
    return std::int64_t{1} << 20;
  }();
  return bytes;
}

std::int64_t shared_cache_bytes() {
  static const std::int64_t bytes = [] {
    if (const auto bytes = kSharedCacheBytes.value()) return *bytes;
    // glibc adds up what a whole AMD processor has: 256 MiB, where each eight cores share 32.
    if (const std::int64_t size = listed(3); size > 0) return size;
#ifdef _SC_LEVEL3_CACHE_SIZE
    const long size = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (size > 0) return static_cast<std::int64_t>(size);
#endif
    return std::int64_t{0};
  }();
  return bytes;
}

}  // namespace prnn
