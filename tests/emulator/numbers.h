// The number formats of the device, bit for bit, in integer arithmetic: the same on every host and
// in threads that flush denormal numbers to zero. PTX ISA, chapter 5.2.3 "Alternate
// Floating-Point Data Formats" and the notes to cvt.
#pragma once
#include <bit>
#include <cstdint>

namespace prnn::emulator {

inline constexpr std::uint32_t kFloatInfinity = 0x7f800000;
inline constexpr std::uint32_t kFloatNan = 0x7fffffff;  // what the device yields
inline constexpr std::uint32_t kHalfNan = 0x7fff;       // of both formats of two bytes

inline std::uint32_t bits_of(float v) { return std::bit_cast<std::uint32_t>(v); }
inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline bool is_nan(std::uint32_t float_bits) { return (float_bits & 0x7fffffff) > kFloatInfinity; }

// `bits` without its lowest `drop`, to the nearest, halves to the even one; or cut off.
inline std::uint32_t round_bits(std::uint32_t bits, int drop, bool truncate) {
  const std::uint32_t kept = bits >> drop;
  if (truncate) return kept;
  const std::uint32_t half = 1u << (drop - 1), rest = bits & ((1u << drop) - 1);
  return kept + (rest > half || (rest == half && (kept & 1)) ? 1 : 0);
}

inline std::uint32_t bf16_of(float v, bool truncate = false) {
  const std::uint32_t bits = bits_of(v);
  return is_nan(bits) ? kHalfNan : round_bits(bits, 16, truncate);
}

inline std::uint32_t f16_of(float v, bool truncate = false) {
  const std::uint32_t bits = bits_of(v), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (is_nan(bits)) return kHalfNan;
  const int exponent = static_cast<int>(size >> 23) - 127;
  // Of what lies beyond, all is infinite: 65520 is the first, which round_bits() carries up to.
  if (exponent > 15) return sign | (truncate && size < kFloatInfinity ? 0x7bff : 0x7c00);
  if (exponent >= -14) return sign | round_bits(size - (112u << 23), 13, truncate);
  if (exponent < -25) return sign;
  // Denormal: multiples of 2^-24.
  const std::uint32_t mantissa = (size & 0x7fffff) | 0x800000;
  return sign | round_bits(mantissa, -1 - exponent, truncate);
}

inline float float_of_bf16(std::uint32_t bits) { return float_of(bits << 16); }

inline float float_of_f16(std::uint32_t bits) {
  const std::uint32_t sign = (bits & 0x8000) << 16, size = (bits & 0x7fff) << 13;
  constexpr std::uint32_t kTop = 0x7c00u << 13;
  if (size > kTop) return float_of(kFloatNan);
  if (size == kTop) return float_of(sign | kFloatInfinity);
  if (size >= 0x400u << 13) return float_of(sign | (size + (112u << 23)));
  // Denormal: as the mantissa of a number of exponent -14, less its leading one.
  const float leading = float_of(113u << 23);
  return float_of(sign | bits_of(float_of(size + (113u << 23)) - leading));
}

// To the nearest number of 10 bits of mantissa, halves away from zero. Of a NaN, the low bits are
// cut off: where there are no others, infinity is left, as on an H100 (16382 of 2^32 words).
inline std::uint32_t tf32_of(float v, bool truncate = false) {
  const std::uint32_t bits = bits_of(v);
  return (truncate || is_nan(bits) ? bits : bits + 0x1000) & ~0x1fffu;
}
// What the tensor core reads of a register.
inline float float_of_tf32(std::uint32_t bits) { return float_of(bits & ~0x1fffu); }

}  // namespace prnn::emulator
