// Runs the CPU engine over many shapes in buffers of exactly the right size, for the sanitizers:
// no access out of bounds, no unwritten result, no data race. Results must not depend on the
// number of threads, to the last bit, and the LSTM must match a plain loop in double precision.
// Built and run by tests/test_native.py.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "cpu/run.h"

namespace {

using prnn::CellKind;
using Floats = std::vector<float>;

class Threads : public prnn::ThreadPool {
 public:
  explicit Threads(int threads) : threads_(threads) {}
  ~Threads() override {
    for (auto& t : running_) t.join();
  }
  int threads() const override { return threads_; }
  void schedule(std::function<void()> task) override { running_.emplace_back(std::move(task)); }

 private:
  int threads_;
  std::vector<std::thread> running_;
};

Floats wave(std::int64_t size, float frequency, float scale) {
  Floats out(size);
  for (std::int64_t i = 0; i < size; ++i) out[i] = scale * std::sin(frequency * (i + 1));
  return out;
}
Floats unwritten(std::int64_t size) {
  return Floats(size, std::numeric_limits<float>::quiet_NaN());
}

struct Results {
  std::vector<Floats> arrays;
};

// Forward and backward pass of one call.
Results run(const prnn::CellSpec& cell, const prnn::Shape& s, int threads) {
  const prnn::CellNumbers n = prnn::numbers(cell);
  const std::int64_t state = s.batch * s.groups * s.hidden, sequence = state * s.time;
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.hidden));
  const Floats a_x = wave(sequence * n.gates, 1.3f, 1.0f),
               b = wave(s.groups * n.gates * s.hidden, 0.9f, 0.3f);
  const Floats w = wave(s.groups * s.hidden * n.gates * s.hidden, 0.7f, scale);
  const Floats h_0 = wave(state, 2.1f, 0.5f), c_0 = wave(state, 1.7f, 0.5f);
  Results out;
  out.arrays = {unwritten(sequence),
                unwritten(state),
                unwritten(state),
                unwritten(sequence * n.saved),
                unwritten(sequence * n.gates),
                unwritten(sequence * n.gates),
                unwritten(state),
                unwritten(state)};
  Floats &y = out.arrays[0], &h_n = out.arrays[1], &c_n = out.arrays[2], &saved = out.arrays[3];
  Floats &da_x = out.arrays[4], &da_h = out.arrays[5], &dh_0 = out.arrays[6];
  Floats& dc_0 = out.arrays[7];

  Threads pool(threads);
  prnn::Problem p{};
  p.kind = prnn::Kind::kForward;
  p.cell = cell;
  p.shape = s;
  p.forward = {a_x.data(),
               w.data(),
               b.data(),
               {h_0.data(), c_0.data()},
               y.data(),
               {h_n.data(), c_n.data()},
               n.saved > 0 ? saved.data() : nullptr,
               nullptr};
  Floats workspace = unwritten(prnn::workspace_floats(p));
  prnn::run(prnn::best_isa(), p, pool, workspace.data());

  p.kind = prnn::Kind::kBackward;
  const bool same = prnn::visit(cell, [](auto c) { return decltype(c)::kSameGradient; });
  p.backward = {y.data(),
                w.data(),
                y.data(),
                saved.data(),
                {h_0.data(), c_0.data()},
                {h_0.data(), c_0.data()},
                da_x.data(),
                same ? da_x.data() : da_h.data(),
                {dh_0.data(), dc_0.data()}};
  workspace = unwritten(prnn::workspace_floats(p));
  prnn::run(prnn::best_isa(), p, pool, workspace.data());
  if (same) da_h.clear();
  if (n.states == 1) c_n.clear(), dc_0.clear();
  return out;
}

void fail(const std::string& what, const prnn::Shape& s, int cell) {
  std::printf("FAILED: %s (cell %d, T%d B%d N%d H%d)\n", what.c_str(), cell,
              static_cast<int>(s.time), static_cast<int>(s.batch), static_cast<int>(s.groups),
              static_cast<int>(s.hidden));
  std::exit(1);
}

// y of the LSTM by its equations, for one group run forwards, batch-major.
double lstm_error(const prnn::Shape& s, const Floats& y) {
  const int H = static_cast<int>(s.hidden);
  const float scale = 1.0f / std::sqrt(static_cast<float>(H));
  const Floats a_x = wave(s.batch * s.time * 4 * H, 1.3f, 1.0f), b = wave(4 * H, 0.9f, 0.3f);
  const Floats w = wave(4 * H * H, 0.7f, scale);
  const Floats h_0 = wave(s.batch * H, 2.1f, 0.5f), c_0 = wave(s.batch * H, 1.7f, 0.5f);
  const auto sigmoid = [](double a) { return 1.0 / (1.0 + std::exp(-a)); };
  double worst = 0;
  for (int row = 0; row < s.batch; ++row) {
    std::vector<double> h(h_0.begin() + row * H, h_0.begin() + (row + 1) * H);
    std::vector<double> c(c_0.begin() + row * H, c_0.begin() + (row + 1) * H), next(H);
    for (int t = 0; t < s.time; ++t) {
      for (int u = 0; u < H; ++u) {
        double a[4];
        for (int gate = 0; gate < 4; ++gate) {
          a[gate] = a_x[((row * s.time + t) * 4 + gate) * H + u] + b[gate * H + u];
          for (int k = 0; k < H; ++k) a[gate] += h[k] * w[(k * 4 + gate) * H + u];
        }
        c[u] = sigmoid(a[1]) * c[u] + sigmoid(a[0]) * std::tanh(a[2]);
        next[u] = sigmoid(a[3]) * std::tanh(c[u]);
        worst = std::fmax(worst, std::fabs(next[u] - y[(row * s.time + t) * H + u]));
      }
      h = next;
    }
  }
  return worst;
}

}  // namespace

int main() {
  const prnn::Shape shapes[] = {
      {1, 1, 1, 1, false, false, false},  {3, 2, 1, 15, false, true, false},
      {4, 3, 2, 17, true, false, true},   {5, 9, 1, 33, false, false, false},
      {2, 21, 3, 16, true, true, false},  {4, 1, 1, 300, false, false, false},
      {3, 5, 2, 140, false, false, true},
  };
  for (int kind = 0; kind <= static_cast<int>(CellKind::kGruResetBefore); ++kind) {
    const prnn::CellSpec cell{static_cast<CellKind>(kind), kind < 2 ? 0.2f : 0.0f, 0.8f};
    for (const prnn::Shape& s : shapes) {
      const Results alone = run(cell, s, 1), shared = run(cell, s, 3);
      for (std::size_t i = 0; i < alone.arrays.size(); ++i) {
        const Floats &a = alone.arrays[i], &b = shared.arrays[i];
        for (float value : a)
          if (!std::isfinite(value)) fail("a result was not written", s, kind);
        if (a.size() != b.size() ||
            (!a.empty() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0))
          fail("results depend on the number of threads", s, kind);
      }
      const bool plain = s.groups == 1 && !s.time_major && !s.reverse;
      // 1e-6: eight float32 roundings of values below 1, at these lengths.
      if (kind == static_cast<int>(CellKind::kLstm) && plain &&
          !(lstm_error(s, alone.arrays[0]) < 1e-6))
        fail("the LSTM differs from its equations", s, kind);
    }
  }
  std::printf("ok %s\n", prnn::best_isa().name);
}
