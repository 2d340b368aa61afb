// PTX text, decoded: the kernels of a file, as lists of instructions that interpreter.cc runs.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace prnn::interpreter {

struct Frame;
struct Instruction;
using Execute = void (*)(Frame&, const Instruction&);

// Registers that hold something when a thread starts; a kernel's own come after these.
enum Preset { kTid, kCtaid, kNctaid, kClusterCtarank, kParameters, kSink, kPresets };
inline constexpr int kNoRegister = -1;

// Where a block's dynamic shared memory lies in the window of addresses of shared memory. Not at 0,
// which is the system's on sm_90.
inline constexpr std::uint32_t kSharedWindow = 1024;

// A register plus a constant; what it lacks is 0.
struct Operand {
  int reg = kNoRegister;
  std::uint64_t constant = 0;
};

struct Instruction {
  Execute execute = nullptr;
  std::vector<Operand> operands;  // vectors, addresses and pairs as their parts, in order
  int guard = kNoRegister;        // a predicate
  bool guard_is_negated = false;
  int target = 0;  // of a branch: an index into the kernel's code
  std::uint32_t line = 0;
  std::string_view text;
};

struct Entry {
  const char* file;
  std::string_view name;  // mangled
  std::size_t parameter_bytes = 0;
  std::vector<std::string> registers;  // their names
  std::vector<Instruction> code;
};

// What the text has that is not known here.
class PtxError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Program {
 public:
  // Throws PtxError if the file cannot be read.
  explicit Program(const std::string& path);
  Program(const Program&) = delete;

  // The kernels' names.
  const std::vector<std::string_view>& names() const { return names_; }
  // Decodes a kernel; throws PtxError, with the line, at an instruction that is not known.
  Entry decode(std::string_view name) const;

 private:
  std::string path_, text_;
  std::vector<std::string_view> names_;
};

}  // namespace prnn::interpreter
