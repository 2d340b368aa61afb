#include "cpu/plan/rates.h"

#include <fstream>
#include <map>
#include <sstream>

namespace prnn {

RatesFile read_rates(const std::string& path) {
  RatesFile out{};
  std::ifstream file(path);
  if (!file) {
    out.error = "cannot be read";
    return out;
  }
  std::map<std::string, double> found;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, more;
    double value = 0;
    if (!(words >> name)) continue;
    if (!(words >> value) || !(value > 0) || !(value < 1e6) || (words >> more) ||
        !found.emplace(name, value).second) {
      out.error =
          "has the line \"" + line + "\", which is no name with a number above 0, once each";
      return out;
    }
  }
  visit_rates(out.rates, [&](const char* name, double& value) {
    const auto at = found.find(name);
    if (at == found.end()) {
      if (out.error.empty()) out.error = std::string("has no line for ") + name;
      return;
    }
    value = at->second;
    found.erase(at);
  });
  if (out.error.empty() && !found.empty())
    out.error = "has a line for " + found.begin()->first + ", which is no rate";
  return out;
}

}  // namespace prnn
