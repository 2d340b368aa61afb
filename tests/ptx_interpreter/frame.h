// A thread while it runs: its registers.
#pragma once
#include <cstring>
#include <memory>
#include <type_traits>

#include "emulator/operations.h"
#include "ptx_interpreter/interpreter.h"

namespace prnn::interpreter {

struct Frame {
  const Entry& entry;
  const Instruction* next;  // null at the end
  const Instruction* now = nullptr;
  std::unique_ptr<std::uint64_t[]> registers;
  std::unique_ptr<bool[]> written;
  Fma fma = Fma::kRoundsTwice;
  // The last loads of values of other blocks: where one is made again, the thread waits.
  static constexpr int kPolls = 64;
  struct Poll {
    const Instruction* instruction;
    std::uint64_t address;
  } polls[kPolls] = {};

  emulator::Where where() const { return {entry.file, now->line}; }
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void unwritten(int reg) const;
};

// The low bits of an operand. A register that nothing has written to is an error.
template <class T>
T read(const Frame& frame, const Operand& operand) {
  std::uint64_t bits = operand.constant;
  if (operand.reg != kNoRegister) {
    if (!frame.written[operand.reg]) frame.unwritten(operand.reg);
    bits += frame.registers[operand.reg];
  }
  if constexpr (std::is_same_v<T, bool>) {
    return bits != 0;
  } else {
    T value;
    std::memcpy(&value, &bits, sizeof value);  // the host is little-endian, as the device is
    return value;
  }
}

// Narrow integers are extended by their sign, which fills a register of any width.
template <class T>
void write(Frame& frame, const Operand& operand, T value) {
  std::uint64_t bits = 0;
  if constexpr (std::is_same_v<T, bool>)
    bits = value;
  else if constexpr (std::is_integral_v<T>)
    bits = static_cast<std::uint64_t>(value);
  else
    std::memcpy(&bits, &value, sizeof value);
  frame.registers[operand.reg] = bits;
  frame.written[operand.reg] = true;
}

}  // namespace prnn::interpreter
