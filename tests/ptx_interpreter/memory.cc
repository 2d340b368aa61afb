// Plain loads and stores: PTX ISA, chapter 9.7.9. Addresses of parameters and of global memory are
// the host's; those of shared memory lie in a window.
#include <cstring>
#include <utility>

#include "ptx_interpreter/frame.h"
#include "ptx_interpreter/opcodes.h"
#include "ptx_interpreter/shared.h"

namespace prnn::interpreter {
namespace {

enum class Space { kParameters, kGlobal, kShared };

template <Space kSpace>
char* address_of(const Frame& frame, const Operand& operand, std::size_t bytes) {
  const auto address = read<std::uint64_t>(frame, operand);
  if (address % bytes != 0)
    frame.fail("an address that is no multiple of " + std::to_string(bytes));
  if constexpr (kSpace == Space::kShared) return in_shared(frame, address, bytes);
  return reinterpret_cast<char*>(address);
}

// ld.v d..., [a]: the address is the last operand.
template <Space kSpace, class T, std::size_t kCount>
void load(Frame& frame, const Instruction& i) {
  const char* from = address_of<kSpace>(frame, i.operands[kCount], kCount * sizeof(T));
  T values[kCount];
  std::memcpy(values, from, sizeof values);
  for (std::size_t n = 0; n < kCount; ++n) write(frame, i.operands[n], values[n]);
}

template <Space kSpace, class T, std::size_t kCount>
void store(Frame& frame, const Instruction& i) {
  char* to = address_of<kSpace>(frame, i.operands[0], kCount * sizeof(T));
  T values[kCount];
  for (std::size_t n = 0; n < kCount; ++n) values[n] = read<T>(frame, i.operands[n + 1]);
  std::memcpy(to, values, sizeof values);
}

template <Space kSpace, class T>
void add_type(Opcodes& to, const std::string& space, const std::string& type) {
  const auto add = [&]<std::size_t kCount>(const std::string& vector,
                                           std::integral_constant<std::size_t, kCount>) {
    to["ld." + space + vector + type] = load<kSpace, T, kCount>;
    if constexpr (kSpace != Space::kParameters)
      to["st." + space + vector + type] = store<kSpace, T, kCount>;
  };
  add(".", std::integral_constant<std::size_t, 1>{});
  add(".v2.", std::integral_constant<std::size_t, 2>{});
  add(".v4.", std::integral_constant<std::size_t, 4>{});
}

template <Space kSpace>
void add_space(Opcodes& to, const std::string& space) {
  add_type<kSpace, std::int8_t>(to, space, "s8");
  add_type<kSpace, std::uint8_t>(to, space, "u8");
  add_type<kSpace, std::uint16_t>(to, space, "u16");
  add_type<kSpace, std::uint32_t>(to, space, "u32");
  add_type<kSpace, std::uint64_t>(to, space, "u64");
  add_type<kSpace, std::int16_t>(to, space, "s16");
  add_type<kSpace, std::int32_t>(to, space, "s32");
  add_type<kSpace, std::int64_t>(to, space, "s64");
  add_type<kSpace, float>(to, space, "f32");
  for (const char* bits : {"b8", "b16", "b32", "b64"}) {
    const std::string unsigned_ = std::string("u") + (bits + 1);
    for (const char* vector : {".", ".v2.", ".v4."})
      for (const char* what : {"ld.", "st."})
        if (const auto found = to.find(what + space + vector + unsigned_); found != to.end())
          to[what + space + vector + bits] = found->second;
  }
}

}  // namespace

Opcodes memory() {
  Opcodes to;
  add_space<Space::kParameters>(to, "param");
  add_space<Space::kGlobal>(to, "global");
  add_space<Space::kShared>(to, "shared");
  return to;
}

}  // namespace prnn::interpreter
