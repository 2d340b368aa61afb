// How much of the cores' time the system leaves this process, as container runtimes limit it:
// cgroups' cpu.max, or before them cpu.cfs_quota_us. Threads beyond it make all of them stop for
// what is left of a period, mostly 0.1 s.
#pragma once
#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace prnn {

// Of "quota period" in a file, or one in each of two; nothing of "max", -1 or what is no number.
inline std::optional<double> share_of_period(const std::string& quota_path,
                                             const std::string& period_path = "") {
  std::ifstream quota_file(quota_path), period_file(period_path);
  double quota = 0, period = 0;
  if (!(quota_file >> quota)) return std::nullopt;
  std::ifstream& of_period = period_path.empty() ? quota_file : period_file;
  if (!(of_period >> period)) return std::nullopt;
  if (quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

// The least that a group or one around it has: `path`, as /proc/self/cgroup names it, or the
// beginnings of it that there are under `mount`.
template <class Share>
void limit_by(std::optional<double>& least, const std::string& mount, std::string path,
              const Share& share) {
  for (;;) {
    if (const auto found = share(mount + path)) least = std::min(least.value_or(*found), *found);
    const std::size_t slash = path.rfind('/');
    if (slash == path.npos) return;
    path.resize(slash);
  }
}

// In cores; nothing where there is no limit. `root` is where the system's files are, for tests.
inline std::optional<double> cpu_quota(const std::string& root = "") {
  std::optional<double> least;
  std::ifstream groups(root + "/proc/self/cgroup");
  const std::string mounts = root + "/sys/fs/cgroup";
  for (std::string line; std::getline(groups, line);) {
    // number:controllers:path; of version 2 there are none named.
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    std::string controllers = line.substr(first, second + 1 - first);
    controllers.front() = controllers.back() = ',';
    const std::string path = line.substr(second + 1);
    if (controllers == ",,")
      for (const char* mount : {"", "/unified"})
        limit_by(least, mounts + mount, path,
                 [](const std::string& group) { return share_of_period(group + "/cpu.max"); });
    else if (controllers.find(",cpu,") != controllers.npos)
      for (const char* mount : {"/cpu", "/cpu,cpuacct"})
        limit_by(least, mounts + mount, path, [](const std::string& group) {
          return share_of_period(group + "/cpu.cfs_quota_us", group + "/cpu.cfs_period_us");
        });
  }
  return least;
}

}  // namespace prnn
