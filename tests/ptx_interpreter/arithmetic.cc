// Instructions between registers: PTX ISA, chapters 9.7.1 to 9.7.9. One row of a table for each
// opcode, made for each type that it comes with.
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "emulator/numbers.h"
#include "ptx_interpreter/frame.h"
#include "ptx_interpreter/opcodes.h"

namespace prnn::interpreter {
namespace {

// Whatever NaN goes in, the device's comes out.
template <class T>
T result(T v) {
  return v;
}
float result(float v) { return v == v ? v : emulator::float_of(emulator::kFloatNan); }

// nvcc computes with what a branch has left unwritten where the same branch decides, by `selp` or
// `and`, whether it is taken. So what is made of it is as unwritten: an error where it matters, in
// memory, a branch or another lane.
bool is_known(const Frame& frame, const Operand& operand) {
  return operand.reg == kNoRegister || frame.written[operand.reg];
}

// operand 0 = f(operands 1, 2, ...), with a T for each argument of f.
template <class T, auto f, std::size_t... kIndex>
void apply(Frame& frame, const Instruction& i, std::index_sequence<kIndex...>) {
  if ((is_known(frame, i.operands[kIndex + 1]) && ...))
    write(frame, i.operands[0], result(f(read<T>(frame, i.operands[kIndex + 1])...)));
  else
    frame.written[i.operands[0].reg] = false;
}
template <class T, auto f, int kArguments>
void of(Frame& frame, const Instruction& i) {
  apply<T, f>(frame, i, std::make_index_sequence<kArguments>{});
}

// `and`, which false decides, or `or`, which true does, whatever the other operand is.
template <bool kDecides>
void logic(Frame& frame, const Instruction& i) {
  bool all_known = true;
  for (const int n : {1, 2}) {
    if (!is_known(frame, i.operands[n]))
      all_known = false;
    else if (read<bool>(frame, i.operands[n]) == kDecides)
      return write(frame, i.operands[0], kDecides);
  }
  write(frame, i.operands[0], !kDecides);
  frame.written[i.operands[0].reg] = all_known;
}

// Of twice the width, for 16 and 32 bits.
template <class T>
using Wide = std::conditional_t<std::is_signed_v<T>,
                                std::conditional_t<sizeof(T) == 2, std::int32_t, std::int64_t>,
                                std::conditional_t<sizeof(T) == 2, std::uint32_t, std::uint64_t>>;

template <std::integral T>
struct Integer {
  using U = std::make_unsigned_t<T>;
  static constexpr int kBits = 8 * sizeof(T);

  // Sums and products of signed numbers wrap.
  static T add(T a, T b) { return static_cast<T>(static_cast<U>(a) + static_cast<U>(b)); }
  static T sub(T a, T b) { return static_cast<T>(static_cast<U>(a) - static_cast<U>(b)); }
  static T mul(T a, T b) {
    return static_cast<T>(std::uint64_t{static_cast<U>(a)} * static_cast<U>(b));
  }
  static T mad(T a, T b, T c) { return add(mul(a, b), c); }
  static T neg(T a) { return sub(0, a); }
  static T min(T a, T b) { return a < b ? a : b; }
  static T max(T a, T b) { return a > b ? a : b; }
  // Of a division by zero the result is unspecified.
  static T div(T a, T b) {
    return b == 0 ? T(-1) : b == T(-1) && std::is_signed_v<T> ? neg(a) : T(a / b);
  }
  static T rem(T a, T b) { return sub(a, mul(div(a, b), b)); }
  // Shifts by more than there are bits move all of them out.
  static T shl(T a, std::uint32_t n) {
    return n >= kBits ? T(0) : static_cast<T>(static_cast<U>(a) << n);
  }
  static T shr(T a, std::uint32_t n) {
    return n >= kBits ? T(a < 0 ? -1 : 0) : static_cast<T>(a >> n);
  }
};

// The low bits of a, into b from a position on. Of both counts, eight bits are read.
template <class T>
T inserted(T a, T b, std::uint32_t from, std::uint32_t count) {
  using I = Integer<T>;
  from &= 0xff;
  count &= 0xff;
  const auto mask = static_cast<T>(I::shl(static_cast<T>(~I::shl(~T{0}, count)), from));
  return static_cast<T>((b & ~mask) | (I::shl(a, from) & mask));
}
template <class T>
void bfi(Frame& frame, const Instruction& i) {
  const auto& o = i.operands;
  write(frame, o[0],
        inserted(read<T>(frame, o[1]), read<T>(frame, o[2]), read<std::uint32_t>(frame, o[3]),
                 read<std::uint32_t>(frame, o[4])));
}

template <class T, auto f>
void shift(Frame& frame, const Instruction& i) {
  write(frame, i.operands[0],
        f(read<T>(frame, i.operands[1]), read<std::uint32_t>(frame, i.operands[2])));
}

template <class T>
void mul_hi(Frame& frame, const Instruction& i) {
  using W = Wide<T>;
  const W product = W{read<T>(frame, i.operands[1])} * W{read<T>(frame, i.operands[2])};
  write(frame, i.operands[0], static_cast<T>(product >> (8 * sizeof(T))));
}
// The product in twice the bits, plus a third operand where there is one.
template <class T>
void mul_wide(Frame& frame, const Instruction& i) {
  using W = Wide<T>;
  W out = W{read<T>(frame, i.operands[1])} * W{read<T>(frame, i.operands[2])};
  if (i.operands.size() > 3) out = Integer<W>::add(out, read<W>(frame, i.operands[3]));
  write(frame, i.operands[0], out);
}

template <class T>
void copy(Frame& frame, const Operand& to, const Operand& from) {
  if (is_known(frame, from))
    write(frame, to, read<T>(frame, from));
  else
    frame.written[to.reg] = false;
}
template <class T>
void mov(Frame& frame, const Instruction& i) {
  copy<T>(frame, i.operands[0], i.operands[1]);
}
// Between a register and two of half its width: mov d, {a, b} and mov {a, b}, d.
template <class T, class Half>
void mov_halves(Frame& frame, const Instruction& i) {
  constexpr int kBits = 8 * sizeof(Half);
  const auto& o = i.operands;
  if (o.size() == 2) return mov<T>(frame, i);
  if (i.text.find('{') > i.text.find(','))
    return write(frame, o[0],
                 static_cast<T>(read<Half>(frame, o[1]) | T{read<Half>(frame, o[2])} << kBits));
  const auto value = read<T>(frame, o[2]);
  write(frame, o[0], static_cast<Half>(value));
  write(frame, o[1], static_cast<Half>(value >> kBits));
}

template <class T>
void selp(Frame& frame, const Instruction& i) {
  copy<T>(frame, i.operands[0], i.operands[read<bool>(frame, i.operands[3]) ? 1 : 2]);
}

template <class T, class From>
void cvt(Frame& frame, const Instruction& i) {
  write(frame, i.operands[0], static_cast<T>(read<From>(frame, i.operands[1])));
}

// ---- tables ----

template <class T>
void add_moves(Opcodes& to, const std::string& type) {
  to["mov." + type] = mov<T>;
  to["selp." + type] = selp<T>;
}

template <class T>
void add_ordered(Opcodes& to, const std::string& type) {
  to["setp.eq." + type] = of<T, [](T a, T b) { return a == b; }, 2>;
  to["setp.ne." + type] = of<T, [](T a, T b) { return (a < b || a > b); }, 2>;
  to["setp.lt." + type] = of<T, [](T a, T b) { return a < b; }, 2>;
  to["setp.le." + type] = of<T, [](T a, T b) { return a <= b; }, 2>;
  to["setp.gt." + type] = of<T, [](T a, T b) { return (a > b); }, 2>;
  to["setp.ge." + type] = of<T, [](T a, T b) { return (a >= b); }, 2>;
}

template <class T>
void add_integers(Opcodes& to, const std::string& type) {
  using I = Integer<T>;
  add_moves<T>(to, type);
  add_ordered<T>(to, type);
  to["add." + type] = of<T, I::add, 2>;
  to["sub." + type] = of<T, I::sub, 2>;
  to["mul.lo." + type] = of<T, I::mul, 2>;
  to["mad.lo." + type] = of<T, I::mad, 3>;
  to["neg." + type] = of<T, I::neg, 1>;
  to["min." + type] = of<T, I::min, 2>;
  to["max." + type] = of<T, I::max, 2>;
  to["div." + type] = of<T, I::div, 2>;
  to["rem." + type] = of<T, I::rem, 2>;
  to["shr." + type] = shift<T, I::shr>;
  if constexpr (sizeof(T) < 8) {
    to["mul.hi." + type] = mul_hi<T>;
    to["mul.wide." + type] = mul_wide<T>;
    to["mad.wide." + type] = mul_wide<T>;
  }
}

template <class T>
void add_bits(Opcodes& to, const std::string& type) {
  if constexpr (!std::is_same_v<T, bool>) {
    add_moves<T>(to, type);
    to["setp.eq." + type] = of<T, [](T a, T b) { return a == b; }, 2>;
    to["setp.ne." + type] = of<T, [](T a, T b) { return a != b; }, 2>;
    to["not." + type] = of<T, [](T a) { return static_cast<T>(~a); }, 1>;
    to["shl." + type] = shift<T, Integer<T>::shl>;
    to["shr." + type] = shift<T, Integer<T>::shr>;
  } else {
    to["mov." + type] = mov<T>;
    to["not." + type] = of<T, [](T a) { return !a; }, 1>;
    to["and." + type] = logic<false>;
    to["or." + type] = logic<true>;
    to["xor." + type] = of<T, [](T a, T b) { return a != b; }, 2>;
    return;
  }
  to["and." + type] = of<T, [](T a, T b) { return static_cast<T>(a & b); }, 2>;
  to["or." + type] = of<T, [](T a, T b) { return static_cast<T>(a | b); }, 2>;
  to["xor." + type] = of<T, [](T a, T b) { return static_cast<T>(a ^ b); }, 2>;
}

template <class T, class... From>
void add_conversions_to(Opcodes& to, const char* type, std::pair<const char*, From>... from) {
  ((to[std::string("cvt.") + type + "." + from.first] = cvt<T, From>), ...);
}
void add_conversions(Opcodes& to) {
  const auto all = [&]<class... T>(std::pair<const char*, T>... types) {
    (add_conversions_to<T>(to, types.first, types...), ...);
  };
  all(std::pair{"u8", std::uint8_t{}}, std::pair{"s8", std::int8_t{}},
      std::pair{"u16", std::uint16_t{}}, std::pair{"s16", std::int16_t{}},
      std::pair{"u32", std::uint32_t{}}, std::pair{"s32", std::int32_t{}},
      std::pair{"u64", std::uint64_t{}}, std::pair{"s64", std::int64_t{}});
}

// a b + c, exactly, as a double and what it lacks; then the float beside it in the direction asked.
// (A sum of doubles is exact but for its rounding, which TwoSum finds.)
enum class Towards { kZero, kMinusInfinity };
template <Towards kTowards>
float directed_fma(float a, float b, float c) {
  const double product = double{a} * double{b}, sum = product + double{c};
  const double part = sum - product, rest = (product - (sum - part)) + (double{c} - part);
  const auto near = static_cast<float>(sum);
  if (!std::isfinite(near)) return near;
  const double above = (double{near} - sum) - rest;  // of the float, over the exact result
  const bool downwards = kTowards == Towards::kMinusInfinity || near > 0;
  const float inf = std::numeric_limits<float>::infinity();
  if (downwards && above > 0) return std::nextafterf(near, -inf);
  if (!downwards && above < 0) return std::nextafterf(near, inf);
  return near;
}

void fma_rn(Frame& frame, const Instruction& i) {
  const auto a = read<float>(frame, i.operands[1]), b = read<float>(frame, i.operands[2]),
             c = read<float>(frame, i.operands[3]);
  write(frame, i.operands[0],
        result(frame.fma == Fma::kFused ? std::fmaf(a, b, c) : result(a * b) + c));
}

float flushed(float v) { return std::fabs(v) < std::numeric_limits<float>::min() ? 0.0f * v : v; }
float saturated(float v) { return v > 0.0f ? v < 1.0f ? v : 1.0f : 0.0f; }  // of a NaN: 0

void add_floats(Opcodes& to) {
  using F = float;
  add_moves<F>(to, "f32");
  add_ordered<F>(to, "f32");
  // Those with "u" are true of a NaN.
  to["setp.equ.f32"] = of<F, [](F a, F b) { return !(a < b || a > b); }, 2>;
  to["setp.neu.f32"] = of<F, [](F a, F b) { return a != b; }, 2>;
  to["setp.ltu.f32"] = of<F, [](F a, F b) { return !(a >= b); }, 2>;
  to["setp.leu.f32"] = of<F, [](F a, F b) { return !(a > b); }, 2>;
  to["setp.gtu.f32"] = of<F, [](F a, F b) { return !(a <= b); }, 2>;
  to["setp.geu.f32"] = of<F, [](F a, F b) { return !(a < b); }, 2>;
  to["setp.num.f32"] = of<F, [](F a, F b) { return a == a && b == b; }, 2>;
  to["setp.nan.f32"] = of<F, [](F a, F b) { return a != a || b != b; }, 2>;

  for (const char* rounding : {"", ".rn"}) {
    const std::string type = std::string(rounding) + ".f32";
    to["add" + type] = of<F, [](F a, F b) { return a + b; }, 2>;
    to["sub" + type] = of<F, [](F a, F b) { return a - b; }, 2>;
    to["mul" + type] = of<F, [](F a, F b) { return a * b; }, 2>;
  }
  to["fma.rn.f32"] = fma_rn;
  to["fma.rm.f32"] = of<F, directed_fma<Towards::kMinusInfinity>, 3>;
  to["add.rz.f32"] = of<F, [](F a, F b) { return directed_fma<Towards::kZero>(a, 1.0f, b); }, 2>;
  to["div.rn.f32"] = of<F, [](F a, F b) { return a / b; }, 2>;
  to["rcp.rn.f32"] = of<F, [](F a) { return 1.0f / a; }, 1>;
  to["sqrt.rn.f32"] = of<F, [](F a) { return std::sqrt(a); }, 1>;
  // The device's approximations have errors of their own, which the manual bounds.
  to["rcp.approx.ftz.f32"] = of<F, [](F a) { return flushed(1.0f / flushed(a)); }, 1>;
  to["ex2.approx.ftz.f32"] = of<F, [](F a) { return flushed(std::exp2f(flushed(a))); }, 1>;
  to["neg.f32"] = of<F, [](F a) { return -a; }, 1>;
  to["abs.f32"] = of<F, [](F a) { return std::fabs(a); }, 1>;
  // The number, where the other is a NaN.
  to["min.f32"] = of<F, [](F a, F b) { return std::fminf(a, b); }, 2>;
  to["max.f32"] = of<F, [](F a, F b) { return std::fmaxf(a, b); }, 2>;
  to["copysign.f32"] = of<F, [](F sign, F a) { return std::copysignf(a, sign); }, 2>;
  to["cvt.sat.f32.f32"] = of<F, saturated, 1>;
  to["cvt.rn.f32.s32"] = of<std::int32_t, [](std::int32_t a) { return static_cast<F>(a); }, 1>;

  to["cvt.rn.bf16x2.f32"] =
      of<F, [](F high, F low) { return emulator::bf16_of(low) | emulator::bf16_of(high) << 16; },
         2>;
  to["cvt.rn.f16x2.f32"] =
      of<F, [](F high, F low) { return emulator::f16_of(low) | emulator::f16_of(high) << 16; }, 2>;
  to["cvt.f32.f16"] =
      of<std::uint16_t, [](std::uint16_t a) { return emulator::float_of_f16(a); }, 1>;
  to["cvt.rna.tf32.f32"] = of<F, [](F a) { return emulator::tf32_of(a); }, 1>;
}

}  // namespace

Opcodes arithmetic() {
  Opcodes to;
  add_integers<std::uint16_t>(to, "u16");
  add_integers<std::int16_t>(to, "s16");
  add_integers<std::uint32_t>(to, "u32");
  add_integers<std::int32_t>(to, "s32");
  add_integers<std::uint64_t>(to, "u64");
  add_integers<std::int64_t>(to, "s64");
  add_bits<bool>(to, "pred");
  add_bits<std::uint16_t>(to, "b16");
  add_bits<std::uint32_t>(to, "b32");
  add_bits<std::uint64_t>(to, "b64");
  to["mov.b64"] = mov_halves<std::uint64_t, std::uint32_t>;
  to["mov.b32"] = mov_halves<std::uint32_t, std::uint16_t>;
  to["bfi.b32"] = bfi<std::uint32_t>;
  to["bfi.b64"] = bfi<std::uint64_t>;
  add_conversions(to);
  add_floats(to);
  return to;
}

}  // namespace prnn::interpreter
