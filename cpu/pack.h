// How the weights of a panel's units lie in memory, by the type they come in.
//   kPerSlice  how many k a slice of words holds
//   beside     a slice's words, of weights that lie unit beside unit, a k in each row
//   along      the words of one unit for a vector of slices, of weights that lie k beside k
//   store      puts a vector's words in their place in a slice
//   widened    vector v of a slice of so many, in float
#pragma once
#include "core/passes.h"
#include "cpu/io.h"

namespace prnn::PRNN_ISA {

template <class T>
struct Packed;

// Words that lie in their slice as they are.
struct PackedWords {
  PRNN_HD static void store(float* slice, int, int lane, UintVector words) {
    Io<float>{kWidth}.store(slice + lane, (FloatVector)words);
  }
};

template <>
struct Packed<float> : PackedWords {
  static constexpr int kPerSlice = 1;
  template <class T>
  PRNN_HD static UintVector beside(const T* weights, std::int64_t, bool, int units) {
    return (UintVector)Io<T>{units}.load(weights).v;
  }
  template <class T>
  PRNN_HD static UintVector along(const T* weights, int count) {
    return (UintVector)Io<T>{count}.load(weights).v;
  }
  template <int kPart>
  PRNN_HD static FloatVector widened(const float* slice, int v, int) {
    FloatVector weights;
    __builtin_memcpy(&weights, slice + v * kWidth, sizeof weights);
    return weights;
  }
};

// Two of a 16-bit format in a word, the first in the lower half.
struct PackedPairs {
  static constexpr int kPerSlice = 2;
  template <class T>
  PRNN_HD static UintVector beside(const T* weights, std::int64_t stride, bool has_second,
                                   int units) {
    const UintVector first = __builtin_convertvector(halves(weights, units), UintVector);
    if (!has_second) return first;
    return first | __builtin_convertvector(halves(weights + stride, units), UintVector) << 16;
  }
  template <class T>
  PRNN_HD static UintVector along(const T* weights, int count) {
    UintVector words{};
    if (count == 2 * kWidth)
      __builtin_memcpy(&words, weights, sizeof words);
    else
      __builtin_memcpy(&words, weights, sizeof(T) * count);
    return words;
  }

 private:
  template <class T>
  PRNN_HD static HalfVector halves(const T* p, int count) {
    if (count < kWidth) return load_some(&p->bits, count);
    HalfVector v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
};

// The two in a word, which is what AVX512-BF16 multiplies (cpu/dot_product.cc), and as floats they
// are its halves.
template <>
struct Packed<Bfloat16> : PackedPairs, PackedWords {
  template <int kPart>
  PRNN_HD static FloatVector widened(const float* slice, int v, int) {
    UintVector words;
    __builtin_memcpy(&words, slice + v * kWidth, sizeof words);
    return (FloatVector)(kPart == 0 ? words << 16 : words & 0xffff0000);
  }
};

#if defined(__AVX512F__) || defined(__F16C__) || defined(__aarch64__)
// One after the other: an instruction widens what lies side by side.
template <>
struct Packed<Float16> : PackedPairs {
  PRNN_HD static void store(float* slice, int lanes, int lane, UintVector words) {
    std::uint16_t* const at = (std::uint16_t*)slice + lane;
    store_halves(at, __builtin_convertvector(words & 0xffff, HalfVector));
    store_halves(at + lanes, __builtin_convertvector(words >> 16, HalfVector));
  }
  template <int kPart>
  PRNN_HD static FloatVector widened(const float* slice, int v, int vectors) {
    HalfVector weights;
    __builtin_memcpy(&weights, (const char*)slice + 2 * (kPart * vectors + v) * kWidth,
                     sizeof weights);
    return widen<Float16>(weights).v;
  }

 private:
  PRNN_HD static void store_halves(std::uint16_t* at, HalfVector halves) {
    __builtin_memcpy(at, &halves, sizeof halves);
  }
};
#else
// As floats: without such an instruction, widening costs more than reading twice as much.
template <>
struct Packed<Float16> : Packed<float> {};
#endif

PRNN_HD constexpr std::int64_t min(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
PRNN_HD constexpr std::int64_t max(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
PRNN_HD constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Slices of a product that runs over `depth` weights, that of the bias included.
template <class T>
PRNN_HD std::int64_t slices(std::int64_t depth) {
  return 1 + ceil_div(depth, Packed<T>::kPerSlice);
}

// Vectors of a panel that are multiplied at once lie in a micropanel: the slices of some of them,
// then those of the next. Memory is read in one piece then, which is a tenth of the time of weights
// from the third-level cache (LSTM 512 at batch 4, on a Zen 3), and nothing where they are in the
// second-level one.
struct Micropanel {
  int first_vector, vectors;
  std::int64_t first_word;  // in the panel

  PRNN_HD int first_lane() const { return first_vector * kWidth; }
  PRNN_HD int lanes() const { return vectors * kWidth; }
};

}  // namespace prnn::PRNN_ISA
