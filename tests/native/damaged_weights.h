// Prepacked weights (cpu/prepacked.h) with a damaged description: not for the call, which packs its
// own. And with a forged one, whose checksum is right: no access beyond the array, for the
// sanitizers.
#pragma once
#include <cstdio>
#include <random>

#include "cpu/prepacked.h"
#include "native/engine_data.h"

// A layer of its own, so that weights may be packed for it and damaged.
class PrepackedLayer {
 public:
  PrepackedLayer(CellKind cell, Dtype dtype, prnn::WeightFormat weights) : buffers_(dtype) {
    constexpr std::int64_t kInputs = 7;
    problem_.kind = prnn::Kind::kForward;
    problem_.dtype = dtype;
    problem_.cell = {cell, 0.0f, 0.8f};
    problem_.shape = {5, 3, 2, 37, false, false, true};
    const prnn::CellNumbers n = prnn::numbers(problem_.cell);
    if (n.projects) problem_.shape.projected = 21;
    const prnn::Shape& s = problem_.shape;
    const std::int64_t rows = s.batch * s.groups;
    const std::int64_t columns = s.groups * n.gates * s.hidden;
    problem_.projection.input_size = kInputs;
    problem_.projection.x = buffers_.wave(s.batch * s.time * kInputs, 0.8f, 1.0f);
    problem_.projection.w = buffers_.wave(kInputs * columns, 1.1f, 0.4f);
    problem_.projection.b = buffers_.wave(columns, 1.2f, 0.3f);
    problem_.forward.w_hh = buffers_.wave(columns * s.output(), 0.7f, 0.2f);
    if (n.projects)
      problem_.forward.w_hr = buffers_.wave(s.groups * s.hidden * s.output(), 0.5f, 0.2f);
    problem_.forward.b_hh = buffers_.wave(columns, 0.9f, 0.3f);
    const auto of_state = [&](int i) { return rows * (i == 0 ? s.output() : s.hidden); };
    problem_.forward.state_0 = buffers_.wave_states(n.states, of_state);
    problem_.forward.state_n = buffers_.unwritten_states(n.states, of_state);
    problem_.forward.y = buffers_.unwritten(rows * s.output() * s.time);
    workspace_ = buffers_.unwritten_floats(prnn::workspace_floats(problem_));
    problem_.weights = weights;
    packed_.resize(prnn::prepacked_words(problem_));
    problem_.prepacked_words = static_cast<std::int64_t>(packed_.size());
    Threads pool(2);
    prnn::prepare(prnn::best_isa(), problem_, pool, packed_.data());
    problem_.weights = {};
  }
  // y, given packed weights or null.
  Bytes run(const void* packed) {
    prnn::Problem problem = problem_;
    problem.prepacked = packed;
    Threads pool(2);
    prnn::run(prnn::best_isa(), problem, pool, workspace_);
    return buffers_.of(problem.forward.y);
  }
  bool takes(const void* packed) const {
    prnn::Problem problem = problem_;
    problem.prepacked = packed;
    return prnn::prepacked_for(prnn::best_isa(), problem) != nullptr;
  }
  // Aligned as XLA's arrays are.
  struct alignas(64) Line {
    std::uint32_t words[16];
  };
  std::vector<Line> packed() const {
    std::vector<Line> out((packed_.size() + 15) / 16);
    std::memcpy(out.data(), packed_.data(), packed_.size() * 4);
    return out;
  }

 private:
  Buffers buffers_;
  prnn::Problem problem_{};
  float* workspace_;
  std::vector<std::uint32_t> packed_;
};

inline void check_damaged_weights(CellKind cell, Dtype dtype, prnn::WeightFormat weights) {
  PrepackedLayer layer(cell, dtype, weights);
  const auto whole = layer.packed();
  const Bytes right = layer.run(nullptr);
  const auto expect = [&](bool is_right, const char* what) {
    if (is_right) return;
    std::printf("FAILED: %s (cell %d, dtype %d)\n", what, static_cast<int>(cell),
                static_cast<int>(dtype));
    std::exit(1);
  };
  const bool are_the_same = layer.run(whole.data()) == right;
  expect(layer.takes(whole.data()) && are_the_same == (weights == prnn::WeightFormat::kAsGiven),
         "whole weights are in use");

  constexpr int kWords = sizeof(prnn::Prepacked) / 4;
  std::mt19937 random(7);
  const auto word_of = [](auto& lines, int n) -> std::uint32_t& {
    return lines[n / 16].words[n % 16];
  };
  const auto expect_refused = [&](const auto& damaged) {
    expect(!layer.takes(damaged.data()), "damaged weights are refused");
  };
  for (int n = 0; n < kWords; ++n)
    for (const std::uint32_t value : {0u, 1u, 3u, 255u, 0x7fffffffu, 0x80000000u, 0xffffffffu,
                                      static_cast<std::uint32_t>(random())}) {
      auto damaged = whole;
      if (word_of(damaged, n) == value) continue;
      word_of(damaged, n) = value;
      expect_refused(damaged);
      if (n % 4 == 0 && value == 255)
        expect(layer.run(damaged.data()) == right, "the parameters are used instead");
    }
  for (int bit = 0; bit < 32 * kWords; ++bit) {
    auto damaged = whole;
    word_of(damaged, bit / 32) ^= 1u << bit % 32;
    expect_refused(damaged);
  }
  for (int round = 0; round < 1000; ++round) {
    auto damaged = whole;
    for (int n = 0; n < kWords; ++n)
      if (random() % 4 == 0) word_of(damaged, n) = static_cast<std::uint32_t>(random());
    if (std::memcmp(damaged.data(), whole.data(), sizeof(prnn::Prepacked)) != 0)
      expect_refused(damaged);
  }

  constexpr std::int64_t kSome[] = {
      -1,        0,        1, 2, 3, 5, 16, 255, 65535, 65536, 65537, 1 << 30, std::int64_t{1} << 40,
      INT64_MAX, INT64_MIN};
  const auto some = [&] { return kSome[random() % std::size(kSome)]; };
  for (int round = 0; round < 200; ++round) {
    auto forged = whole;
    prnn::Prepacked header;
    std::memcpy(static_cast<void*>(&header), forged.data(), sizeof header);
    header.steps = {some(), some()};
    header.projection = {some(), some()};
    header.checksum = prnn::checksum_of(header);
    std::memcpy(forged.data(), static_cast<const void*>(&header), sizeof header);
    layer.run(forged.data());  // some numbers
  }
}

inline void check_damaged_weights() {
  for (const CellKind cell :
       {CellKind::kRnnRelu, CellKind::kLstm, CellKind::kGruResetBefore, CellKind::kProjectedLstm})
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16})
      for (const auto weights : {prnn::WeightFormat::kAsGiven, prnn::WeightFormat::kInt8})
        check_damaged_weights(cell, dtype, weights);
}
