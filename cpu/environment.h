// What the environment says of the CPU engine. A value that is not as it must be is an error when
// the package is imported, and at the first call; until then it is as if not given.
#pragma once
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "cpu/problem.h"

namespace prnn {

// A whole number; an empty value is none.
struct Setting {
  const char* variable;
  std::int64_t least, most;
  const char* expected;

  std::optional<std::int64_t> value() const {
    const char* const text = std::getenv(variable);
    if (text == nullptr || *text == '\0') return std::nullopt;
    char* end = nullptr;
    errno = 0;
    const long long number = std::strtoll(text, &end, 10);
    const bool is_number = *text != ' ' && end != text && *end == '\0' && errno == 0;
    if (!is_number || number < least || number > most) return std::nullopt;
    return number;
  }
  bool is_wrong() const {
    const char* const text = std::getenv(variable);
    return text != nullptr && *text != '\0' && !value();
  }
};

inline constexpr Setting kWorkers{"PRNN_CPU_WORKERS", 0, 1 << 16,
                                  "a whole number of threads from 0 to 65536"};
inline constexpr Setting kCacheBytes{
    "PRNN_CPU_CACHE_BYTES", 1, std::int64_t{1} << 40,
    "a whole number of bytes from 1 to 2^40, such as 1048576 for 1 MiB"};
inline constexpr Setting kSharedCacheBytes{
    "PRNN_CPU_SHARED_CACHE_BYTES", 0, std::int64_t{1} << 40,
    "a whole number of bytes from 0 (no such cache) to 2^40, such as 33554432 for 32 MiB"};
// The name of an instruction set; null where it is not given.
inline const char* wanted_isa() {
  const char* const name = std::getenv("PRNN_CPU_ISA");
  return name == nullptr || *name == '\0' ? nullptr : name;
}

// A file of the processor's rates (cpu/plan/rates.h); null where it is not given.
inline const char* rates_path() {
  const char* const path = std::getenv("PRNN_CPU_RATES");
  return path == nullptr || *path == '\0' ? nullptr : path;
}

// The ways in which calls are to be run where that can be, whatever they cost.
struct WantedWay {
  const char* name;
  std::optional<WeightSource> source;
  std::optional<Partition> partition;
};
inline constexpr WantedWay kWays[] = {
    {"packed", WeightSource::kPacked, {}}, {"unpacked", WeightSource::kUnpacked, {}},
    {"batch", {}, Partition::kBatch},      {"hidden", {}, Partition::kHidden},
    {"columns", {}, Partition::kColumns},
};
// Null where none is given, or none of these.
inline const WantedWay* wanted_way() {
  const char* const name = std::getenv("PRNN_CPU_PLAN");
  for (const WantedWay& way : kWays)
    if (name != nullptr && std::string_view(way.name) == name) return &way;
  return nullptr;
}

// What is wrong with any of these, in the words of who set it; empty if nothing is.
std::string environment_error();

}  // namespace prnn
