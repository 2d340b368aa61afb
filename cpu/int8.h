// Weights as 8-bit integers q, with a scale s for each column: w[k][n] = s[n] q[k][n], where the
// largest of a column is ±127. What they multiply is rounded to 16-bit integers, each accumulation
// block (kAccumulationBlock values of a row) with a factor of its own: so the sum of a block is
// exact, whatever the instruction set. A fourth of float's bytes is read.
//
// A micropanel begins with two slices, biases and scales; each that follows has the weights of four
// k. A vector of its words holds those of the first two k, lane by lane, and then those of the
// others.
#pragma once
#include "cpu/io.h"
#include "cpu/packing.h"
#include "cpu/product.h"

namespace prnn::PRNN_ISA {

struct Int8 {
  static constexpr int kPerSlice = 4, kHeadSlices = 2, kMost = 127;
  using Sum = IntVector;  // of a block: at most kAccumulationBlock · 127 · 32767

  // Rows as quantise() leaves them.
  template <int kRows>
  struct Rows {
    const std::int32_t* pairs[kRows];
    float factors[kRows];  // of the block

    PRNN_HD Rows(const float* const* rows, std::int64_t first, std::int64_t, std::int64_t depth) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        pairs[r] = (const std::int32_t*)(rows[r] + blocks(depth)) + first / 2;
        factors[r] = rows[r][first / kAccumulationBlock];
      }
    }
  };
  PRNN_HD static constexpr std::int64_t blocks(std::int64_t depth) {
    return ceil_div(depth, kAccumulationBlock);
  }
  // Of a quantised row: a factor for each block, and pairs.
  PRNN_HD static constexpr std::int64_t row_floats(std::int64_t depth) {
    return blocks(depth) * (1 + kAccumulationBlock / 2);
  }

  // The rows whose integers there is room for. A phase may multiply nothing.
  PRNN_HD static constexpr std::int64_t most_rows(std::int64_t depth) {
    return max(kMostQuantised / (max(blocks(depth), 1) * kAccumulationBlock), 1);
  }
  // In place of rows, their integers.
  static std::int64_t prepare(const float** rows, int count, std::int64_t depth, float* place,
                              std::int64_t room);

  PRNN_HD static FloatVector start(const float*, int) { return FloatVector{}; }
  template <int kRows>
  PRNN_HD static FloatVector of_block(IntVector block, const Rows<kRows>& rows, int r) {
    return __builtin_convertvector(block, FloatVector) * rows.factors[r];
  }
  PRNN_HD static FloatVector result(const float* micropanel, int lanes, int v, FloatVector sum) {
    FloatVector bias, scale;
    __builtin_memcpy(&bias, micropanel + v * kWidth, sizeof bias);
    __builtin_memcpy(&scale, micropanel + lanes + v * kWidth, sizeof scale);
    return multiply_add(scale, sum, bias);
  }

  template <int kRows, int kVectors>
  PRNN_HD static void add_slice(const float* slice, const Rows<kRows>& rows, std::int64_t k,
                                std::int64_t, IntVector (&sum)[kRows][kVectors]) {
    add_pair<0>(slice, rows, k / 2, sum);
    add_pair<1>(slice, rows, k / 2 + 1, sum);
  }

  // Where byte `of` (0 to 3) of a lane's word lies among a slice's bytes.
  PRNN_HD static int byte_at(int lane, int of) {
    return lane / kWidth * 4 * kWidth + of / 2 * 2 * kWidth + lane % kWidth * 2 + of % 2;
  }

 private:
  template <int kPart, int kRows, int kVectors>
  PRNN_HD static void add_pair(const float* slice, const Rows<kRows>& rows, std::int64_t pair,
                               IntVector (&sum)[kRows][kVectors]) {
    const auto weight = [&](int v) {
      return widened((const std::int8_t*)(slice + v * kWidth) + kPart * 2 * kWidth);
    };
    const auto row = [&](int r) { return rows.pairs[r][pair] - IntVector{}; };
    const auto add = [](IntVector& sum, auto w, IntVector h) { sum += dot(w, h); };
    add_products(weight, row, add, sum);
  }

  // A vector of pairs of weights, each a word of two; and its product with pairs, summed.
#if defined(__AVX512BW__)
  PRNN_HD static IntVector widened(const std::int8_t* p) {
    return (IntVector)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p));
  }
  PRNN_HD static IntVector dot(IntVector w, IntVector h) {
    return (IntVector)_mm512_madd_epi16((__m512i)w, (__m512i)h);
  }
#elif defined(__AVX2__)
  PRNN_HD static IntVector widened(const std::int8_t* p) {
    return (IntVector)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p));
  }
  PRNN_HD static IntVector dot(IntVector w, IntVector h) {
    return (IntVector)_mm256_madd_epi16((__m256i)w, (__m256i)h);
  }
#elif defined(__aarch64__)
  PRNN_HD static IntVector widened(const std::int8_t* p) { return (IntVector)vmovl_s8(vld1_s8(p)); }
  PRNN_HD static IntVector dot(IntVector w, IntVector h) {
    const auto weights = (int16x8_t)w, values = (int16x8_t)h;
    const auto low = vmull_s16(vget_low_s16(weights), vget_low_s16(values));
    return (IntVector)vpaddq_s32(low, vmull_high_s16(weights, values));
  }
#else
  PRNN_HD static IntVector widened(const std::int8_t* p) {
    typedef std::uint16_t Shorts __attribute__((vector_size(2 * kWidth)));
    Shorts pairs;
    __builtin_memcpy(&pairs, p, sizeof pairs);
    const IntVector words = __builtin_convertvector(pairs, IntVector);
    const IntVector first = (words << 24) >> 24, second = (words << 16) >> 24;
    return (first & 0xffff) | second << 16;
  }
  PRNN_HD static IntVector dot(IntVector w, IntVector h) {
    return ((w << 16) >> 16) * ((h << 16) >> 16) + (w >> 16) * (h >> 16);
  }
#endif
};

constexpr bool rows_have_room() {
  for (std::int64_t depth = 1; depth <= kMostQuantised; ++depth)
    if (Int8::most_rows(depth) * Int8::row_floats(depth) > Int8::row_floats(kMostQuantised))
      return false;
  return true;
}
static_assert(rows_have_room());

// ---- what weights multiply ----

template <int kHalf = kWidth / 2>
PRNN_HD std::int32_t largest_lane(IntVector v) {
  if constexpr (kHalf == 0) {
    return v[0];
  } else {
    const IntVector other = shuffle(v, v, [](int i) { return (i + kHalf) % kWidth; });
    return largest_lane<kHalf / 2>(v > other ? v : other);
  }
}

// The integers of a block of a row, zeros past its end; gives the factor by which they are its
// values.
PRNN_HD float quantise_block(const float* row, std::int64_t count, std::int16_t* out) {
  typedef std::int16_t Shorts __attribute__((vector_size(2 * kWidth)));
  constexpr int kMostInput = 32767;
  constexpr float kWhole = 0x1.8p23f;  // a float plus that is rounded to a whole number
  FloatVector values[kAccumulationBlock / kWidth];
  IntVector largest{};  // magnitude; a NaN's bits are larger than any number's
  for (int n = 0; n < kAccumulationBlock / kWidth; ++n) {
    const std::int64_t left = count - n * kWidth;
    const Io<float> io{left >= kWidth ? kWidth : left > 0 ? (int)left : 0};
    values[n] = io.lanes > 0 ? io.load(row + n * kWidth).v : FloatVector{};
    const IntVector magnitude = (IntVector)values[n] & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  const float scale = __builtin_bit_cast(float, largest_lane(largest));
  const bool is_number = scale < __builtin_huge_valf();
  const bool is_some = is_number && scale > 0x1p-100f;  // what is less has no inverse
  const float inverse = is_some ? kMostInput / scale : 0.0f;
  for (int n = 0; n < kAccumulationBlock / kWidth; ++n) {
    const FloatVector whole = (is_number ? values[n] * inverse : FloatVector{}) + kWhole;
    const IntVector rounded = (IntVector)whole - __builtin_bit_cast(std::int32_t, kWhole);
    const Shorts shorts = __builtin_convertvector(rounded, Shorts);
    __builtin_memcpy(out + n * kWidth, &shorts, sizeof shorts);
  }
  return is_some ? scale / kMostInput : is_number ? 0.0f : __builtin_nanf("");
}

// A row as Int8::Rows reads it.
[[gnu::noinline]] inline void quantise(const float* row, std::int64_t depth, float* out) {
  auto* const integers = (std::int16_t*)(out + Int8::blocks(depth));
  for (std::int64_t first = 0; first < depth; first += kAccumulationBlock)
    out[first / kAccumulationBlock] = quantise_block(row + first, depth - first, integers + first);
}

inline std::int64_t Int8::prepare(const float** rows, int count, std::int64_t depth, float* place,
                                  std::int64_t room) {
  const std::int64_t each = row_floats(depth);
  if (count * each > room) return 0;
  for (int r = 0; r < count; ++r) {
    quantise(rows[r], depth, place + r * each);
    rows[r] = place + r * each;
  }
  return count * each;
}

// ---- packing ----

// The scale of weights of which the largest magnitude is so much, and those by it. A column with a
// weight that is no number has none.
PRNN_HD float int8_scale(float largest) { return largest / Int8::kMost; }
PRNN_HD int int8_of(float weight, float scale) {
  const float q = scale > 0.0f ? weight / scale : 0.0f;
  const float clipped = q < Int8::kMost ? (q > -Int8::kMost ? q : -Int8::kMost) : Int8::kMost;
  return q == q ? (int)__builtin_rintf(clipped) : 0;
}

// All slices of a micropanel but that of the biases.
template <class T>
[[gnu::noinline]] void pack_micropanel_int8(WeightRows<T> weights, std::int64_t depth,
                                            const MicropanelPlaces& micropanel) {
  float* const scales = micropanel.slice;
  auto* const bytes = (std::int8_t*)(scales + micropanel.lanes);
  __builtin_memset(scales, 0,
                   sizeof(float) * micropanel.lanes * (1 + ceil_div(depth, Int8::kPerSlice)));
  for (int n = 0; n < micropanel.count; ++n) {
    const Place& place = micropanel.all[n];
    for (std::int64_t k = 0; k < depth; ++k)
      for (int u = 0; u < place.count; ++u) {
        const float weight = to_float(weights.first[k * weights.stride + place.column + u]);
        const float magnitude = weight < 0 ? -weight : weight;
        float& largest = scales[place.lane + u];
        if (largest == largest && !(magnitude <= largest)) largest = magnitude;  // a NaN stays
      }
    for (int u = 0; u < place.count; ++u)
      scales[place.lane + u] = int8_scale(scales[place.lane + u]);
    for (std::int64_t k = 0; k < depth; ++k) {
      std::int8_t* const slice = bytes + k / Int8::kPerSlice * Int8::kPerSlice * micropanel.lanes;
      for (int u = 0; u < place.count; ++u) {
        const int lane = place.lane + u;
        const float weight = to_float(weights.first[k * weights.stride + place.column + u]);
        slice[Int8::byte_at(lane, (int)(k % Int8::kPerSlice))] =
            (std::int8_t)int8_of(weight, scales[lane]);
      }
    }
  }
}

// As pack_panels().
template <class Pass>
void pack_panels_int8(const Pass& pass, std::int64_t group, int phase, const Panel* panels,
                      int count) {
  if constexpr (requires { pass.weight_rows(group, phase); }) {
    const std::int64_t depth = pass.depth(phase);
    for (int n = 0; n < count; ++n) {
      const auto& [at, units] = panels[n];
      for (int v = 0; v < units.product_vectors; v += units.micropanel_vectors) {
        const Micropanel micropanel =
            units.micropanel(v, Int8::kHeadSlices + ceil_div(depth, Int8::kPerSlice));
        MicropanelPlaces places =
            places_of(pass.units(phase), units, micropanel, at + micropanel.first_word);
        __builtin_memset(places.slice, 0, sizeof(float) * places.lanes);
        pack_starts(pass, group, phase, places);
        pack_micropanel_int8(pass.weight_rows(group, phase), depth, places);
      }
    }
  }
}

}  // namespace prnn::PRNN_ISA
