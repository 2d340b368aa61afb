// Arguments of a program, "name=value" each.
#pragma once
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

namespace prnn {

struct Option {
  std::string_view name;
  std::function<void(const std::string&)> set;
};

// False, and said, where an argument is none of the options.
inline bool read_options(int argc, char** argv, std::initializer_list<Option> options) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::size_t equals = argument.find('=');
    bool is_known = false;
    for (const Option& option : options)
      if (equals != std::string::npos && option.name == argument.substr(0, equals)) {
        option.set(argument.substr(equals + 1));
        is_known = true;
      }
    if (is_known) continue;
    std::printf("no option is '%s'\n", argv[i]);
    return false;
  }
  return true;
}

}  // namespace prnn
