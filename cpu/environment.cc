#include "cpu/environment.h"

#include "cpu/plan/rates.h"
#include "cpu/run.h"

namespace prnn {

std::string environment_error() {
  for (const Setting& setting : {kWorkers, kCacheBytes, kSharedCacheBytes})
    if (setting.is_wrong())
      return std::string("prnn_jax: ") + setting.variable + " must be " + setting.expected +
             ", got \"" + std::getenv(setting.variable) + "\"; correct it or unset it.";
  if (const char* way = std::getenv("PRNN_CPU_PLAN"); way != nullptr && *way && !wanted_way()) {
    std::string known;
    for (const WantedWay& each : kWays)
      known += (known.empty() ? "" : ", ") + std::string(each.name);
    return "prnn_jax: PRNN_CPU_PLAN must be one of " + known + ", got \"" + way +
           "\"; correct it or unset it.";
  }
  if (const char* path = rates_path())
    if (const RatesFile file = read_rates(path); !file.error.empty())
      return std::string(
                 "prnn_jax: PRNN_CPU_RATES must be a file that benchmarks/calibrate.py "
                 "wrote, got \"") +
             path + "\", which " + file.error + "; correct it or unset it.";
  const char* const wanted = wanted_isa();
  if (wanted == nullptr || find_isa(wanted) != nullptr) return {};
  std::string known;
  for (const char* name :
       {"amx_bf16", "avx512_bf16", "avx512", "avx2", "neon_bf16", "neon", "portable"})
    if (find_isa(name) != nullptr) known += (known.empty() ? "" : ", ") + std::string(name);
  return "prnn_jax: PRNN_CPU_ISA must be an instruction set of this processor that this build has "
         "(" +
         known + "), got \"" + wanted + "\"; correct it or unset it.";
}

}  // namespace prnn
