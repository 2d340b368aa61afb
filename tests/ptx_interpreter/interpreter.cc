#include "ptx_interpreter/interpreter.h"

#include "emulator/emulator.h"
#include "emulator/machine.h"
#include "ptx_interpreter/frame.h"
#include "ptx_interpreter/opcodes.h"

namespace prnn::interpreter {

Execute find_opcode(const std::string& opcode) {
  static const Opcodes all = [] {
    Opcodes table = arithmetic();
    table.merge(memory());
    table.merge(device());
    return table;
  }();
  const auto found = all.find(opcode);
  return found == all.end() ? nullptr : found->second;
}

void Frame::fail(const std::string& what) const {
  const std::string text = what + ": " + std::string(now->text);
  if (emulator::running() == nullptr) throw emulator::EmulatorError(text);
  emulator::fail("PTX", text, where());
}

void Frame::unwritten(int reg) const {
  fail("nothing has been written to " + entry.registers[static_cast<std::size_t>(reg)]);
}

void run(const Entry& entry, const void* parameters, Fma fma) {
  const std::size_t registers = entry.registers.size();
  Frame frame{entry, entry.code.data(), nullptr,
              std::make_unique_for_overwrite<std::uint64_t[]>(registers),
              std::make_unique<bool[]>(registers)};
  frame.fma = fma;
  const auto preset = [&](Preset reg, std::uint64_t value) { write(frame, {reg}, value); };
  preset(kParameters, reinterpret_cast<std::uintptr_t>(parameters));
  if (emulator::running() != nullptr) {
    preset(kTid, static_cast<std::uint64_t>(emulator::thread_in_block()));
    preset(kCtaid, static_cast<std::uint64_t>(emulator::block_in_grid()));
    preset(kNctaid, static_cast<std::uint64_t>(emulator::blocks_in_grid()));
    preset(kClusterCtarank, static_cast<std::uint64_t>(emulator::rank_in_cluster()));
  }
  while (frame.next != nullptr) {
    const Instruction& instruction = *frame.next++;
    frame.now = &instruction;
    if (instruction.guard != kNoRegister &&
        read<bool>(frame, {instruction.guard}) == instruction.guard_is_negated)
      continue;
    instruction.execute(frame, instruction);
  }
}

}  // namespace prnn::interpreter
