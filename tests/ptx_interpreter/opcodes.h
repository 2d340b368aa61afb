// What each instruction does. An opcode is looked up once, when a kernel is decoded.
#pragma once
#include <string>
#include <string_view>
#include <unordered_map>

#include "ptx_interpreter/program.h"

namespace prnn::interpreter {

using Opcodes = std::unordered_map<std::string, Execute>;
Opcodes arithmetic();  // arithmetic.cc: registers alone
Opcodes memory();      // memory.cc: plain loads and stores
Opcodes device();      // device.cc: what threads do with each other; the rest of cuda/ptx.h

// Null if it is not known.
Execute find_opcode(const std::string& opcode);

}  // namespace prnn::interpreter
