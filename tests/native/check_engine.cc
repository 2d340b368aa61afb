// Runs the CPU engine over many shapes in buffers of exactly the right size, for the sanitizers:
// no access out of bounds, no unwritten result, no data race. Results must not depend on the
// number of threads, to the last bit, and the LSTM, products of matrices and elementwise
// recurrences must match a plain loop in double precision.
// Built and run by tests/test_native.py.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "native/damaged_weights.h"
#include "native/elementwise_check.h"
#include "native/engine_data.h"
#include "native/product_check.h"

namespace {

// The calls of one kind: a dtype, with or without all controls; and with lengths beyond what there
// is in place of the least and the greatest.
struct Kind {
  Dtype dtype;
  bool has_controls;
  bool wild = false;
};

struct Result {
  Bytes bytes;
  Dtype dtype;
  bool is_complete;  // written everywhere
};

// As the planner would; or in the n-th of the ways that there are, if there are so many.
constexpr int kPlanned = -1;
void run(const prnn::Problem& p, prnn::ThreadPool& pool, float* workspace, int way) {
  const prnn::Isa& isa = prnn::best_isa();
  const prnn::Choices all = prnn::choices(isa, p, pool.threads());
  if (way >= all.count || p.shape.time * p.shape.batch == 0) way = kPlanned;
  if (way != kPlanned && p.dtype == Dtype::kBfloat16 && isa.sums_pairs) way = kPlanned;
  if (way == kPlanned) return prnn::run(isa, p, pool, workspace);
  const prnn::Machine& machine = prnn::this_machine(isa.width);
  prnn::run(isa, p, prnn::plan_of(machine, isa, p, all.all[way]), pool, workspace);
}

// Forward and backward pass of one call, and a layer of the same: y first.
std::vector<Result> run(const prnn::CellSpec& cell, prnn::Shape s, Kind kind, int threads,
                        std::int64_t inputs = 7, int way = kPlanned) {
  const prnn::CellNumbers n = prnn::numbers(cell);
  if (n.projects) s.projected = s.hidden / 2 + 3;
  const std::int64_t rows = s.batch * s.groups, sequence = rows * s.time * s.hidden;
  const std::int64_t of_y = rows * s.time * s.output();
  const auto of_state = [&](int i) { return rows * (i == 0 ? s.output() : s.hidden); };
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.hidden));
  Buffers buffers(kind.dtype);
  std::vector<std::int32_t> lengths(rows);
  std::vector<std::uint8_t> resets(rows * s.time);
  for (std::int64_t i = 0; i < rows; ++i) lengths[i] = static_cast<std::int32_t>(i % (s.time + 1));
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  for (std::int64_t i = 0; kind.wild && i < rows; ++i) {
    if (lengths[i] == s.time)
      lengths[i] = i % 2 == 0 ? kMost : lengths[i] + 1;
    else if (lengths[i] == 0)
      lengths[i] = i % 2 == 0 ? kLeast : -1;
  }

  prnn::Controls<void> controls{};
  if (kind.has_controls) {
    s.lengths = lengths.data();
    controls.resets = resets.data();
    for (int i = 0; i < n.states; ++i)
      controls.reset_to[i] = buffers.wave(of_state(i), 1.9f + i, 0.5f, i == 2 ? 1.0f : 0.0f);
    controls.mask = buffers.wave(of_state(0), 0.3f, 1.0f);
    if (cell.kind != CellKind::kSlstm && !n.projects)
      controls.zoneout = buffers.wave(sequence * n.states, 0.4f, 0.2f, 0.3f);
  }
  Threads pool(threads);
  prnn::Problem p{};
  p.cell = cell;
  p.shape = s;
  p.dtype = kind.dtype;
  auto& forward = p.forward;
  forward.a_x = buffers.wave(sequence * n.gates, 1.3f, 1.0f);
  forward.w_hh = buffers.wave(s.groups * s.output() * n.gates * s.hidden, 0.7f, scale);
  forward.b_hh = buffers.wave(s.groups * n.gates * s.hidden, 0.9f, 0.3f);
  if (n.per_unit > 0) forward.per_unit = buffers.wave(s.groups * n.per_unit * s.hidden, 0.6f, 0.4f);
  if (n.projects) forward.w_hr = buffers.wave(s.groups * s.hidden * s.output(), 0.5f, scale);
  forward.y = buffers.unwritten(of_y);
  const int kept = n.kept(controls.zoneout != nullptr);
  forward.saved = kept > 0 ? buffers.unwritten(sequence * kept) : nullptr;
  forward.saves_reserve = true;
  forward.controls = controls;
  auto& backward = p.backward;
  backward.dy = forward.y;
  backward.w_hh = forward.w_hh;
  backward.per_unit = forward.per_unit;
  backward.w_hr = forward.w_hr;
  if (n.projects) backward.dh = buffers.unwritten(of_y);
  if (n.normalises)
    backward.dper_unit = buffers.unwritten_floats(s.batch * s.groups * n.per_unit * s.hidden);
  backward.y = forward.y;
  backward.saved = forward.saved;
  backward.da_x = buffers.unwritten(sequence * n.gates);
  backward.da_h = n.same_gradient ? backward.da_x : buffers.unwritten(sequence * n.gates);
  backward.controls = controls;
  forward.state_0 = backward.dstate_n = buffers.wave_states(n.states, of_state);
  forward.state_n = buffers.unwritten_states(n.states, of_state);
  backward.dstate_0 = buffers.unwritten_states(n.states, of_state);
  for (int i = 0; i < n.states; ++i) {
    constexpr float kFrequencies[] = {2.1f, 1.7f, 1.5f, 1.1f};
    backward.state_0[i] = buffers.wave(of_state(i), kFrequencies[i], 0.5f, i == 2 ? 1.0f : 0.0f);
    if (kind.has_controls) backward.dreset_to[i] = buffers.unwritten_floats(of_state(i));
  }
  const auto workspace = [&] { return buffers.unwritten_floats(prnn::workspace_floats(p)); };
  p.kind = prnn::Kind::kForward;
  run(p, pool, workspace(), way);
  p.kind = prnn::Kind::kBackward;
  run(p, pool, workspace(), way);

  // A layer: the same with an a_x of its own making.
  prnn::Problem layer = p;
  layer.kind = prnn::Kind::kForward;
  const std::int64_t columns = s.groups * n.gates * s.hidden;
  layer.projection.input_size = inputs;
  layer.projection.x = buffers.wave(s.batch * s.time * inputs, 0.8f, 1.0f);
  layer.projection.w = buffers.wave(inputs * columns, 1.1f, 0.4f);
  layer.projection.b = buffers.wave(columns, 1.2f, 0.3f);
  layer.forward.a_x = nullptr;
  layer.forward.y = buffers.unwritten(of_y);
  layer.forward.saved = nullptr;
  layer.forward.state_n = buffers.unwritten_states(n.states, of_state);
  const auto run_layer = [&] {
    auto* const workspace = buffers.unwritten_floats(prnn::workspace_floats(layer));
    run(layer, pool, workspace, way);
  };
  run_layer();
  // And again, with its weights packed for calls of other sizes.
  const void* const not_prepacked = layer.forward.y;
  if (!kind.has_controls && !n.normalises) {
    prnn::Problem other = layer;
    other.shape.batch = 3;
    other.shape.time = 20;
    const auto run_prepacked = [&] {
      layer.prepacked_words = prnn::prepacked_words(other);
      void* const packed = buffers.unwritten_floats(layer.prepacked_words);
      prnn::prepare(prnn::best_isa(), other, pool, packed);
      layer.prepacked = packed;
      layer.forward.y = buffers.unwritten(of_y);
      run_layer();
    };
    run_prepacked();
    if (buffers.of(layer.forward.y) != buffers.of(not_prepacked)) {
      std::printf("FAILED: prepacked weights give other results\n");
      std::exit(1);
    }
    other.weights = prnn::WeightFormat::kInt8;
    run_prepacked();
  }

  std::vector<Result> results;
  const auto add = [&](const void* data, bool is_complete = true) {
    if (data != nullptr) results.push_back({buffers.of(data), kind.dtype, is_complete});
  };
  add(forward.y);
  add(layer.forward.y);
  add(forward.saved, !kind.has_controls);  // nothing is kept of steps that do not count
  add(backward.da_x);
  add(backward.da_h);
  add(backward.dh);
  const auto add_floats = [&](const float* data) {
    results.push_back({buffers.of(data), Dtype::kFloat32, true});
  };
  if (n.normalises) add_floats(backward.dper_unit);
  for (const prnn::MadeStates<void>& states : {forward.state_n, backward.dstate_0}) {
    add(states.h);
    for (int i = 1; i < n.states; ++i) add_floats(states.others[i - 1]);
  }
  for (int i = 0; kind.has_controls && i < n.states; ++i) add_floats(backward.dreset_to[i]);
  return results;
}

void fail(const std::string& what, const prnn::Shape& s, int cell, Kind kind) {
  std::printf("FAILED: %s (cell %d, dtype %d%s, T%d B%d N%d H%d)\n", what.c_str(), cell,
              static_cast<int>(kind.dtype), kind.has_controls ? ", controls" : "",
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

// More weights than are packed as a whole, in place and in their turn, of two directions: there is
// room for half of a group's columns.
void check_large_projections() {
  constexpr std::int64_t kInputs = 1010;
  for (const auto& [time, batch] : {std::pair{1, 1}, {3, 3}, {9, 2}}) {
    const prnn::Shape s{time, batch, 2, 260, false, false, true};
    for (const Kind kind : {Kind{Dtype::kFloat32, false}, {Dtype::kBfloat16, false}}) {
      const prnn::CellSpec cell{CellKind::kLstm, 0.0f, 0.0f};
      const auto alone = run(cell, s, kind, 1, kInputs), shared = run(cell, s, kind, 3, kInputs);
      for (std::size_t i = 0; i < alone.size(); ++i) {
        if (!is_finite(alone[i].bytes, alone[i].dtype))
          fail("a result of a large layer was not written", s, 2, kind);
        if (alone[i].bytes != shared[i].bytes)
          fail("results of a large layer depend on the number of threads", s, 2, kind);
      }
    }
  }
}

}  // namespace

// With an argument, only what depends on who does what: every way that the planner considers.
int main(int argc, char**) {
  const bool all = argc == 1;
  if (all) check_products();
  if (all) check_elementwise();
  const prnn::Shape shapes[] = {
      {1, 1, 1, 1, false, false, false},  {3, 2, 1, 15, false, true, false},
      {4, 3, 2, 17, true, false, true},   {5, 9, 1, 65, false, false, false},
      {2, 21, 3, 16, true, true, false},  {4, 1, 1, 300, false, false, false},
      {3, 5, 2, 140, false, false, true}, {70, 2, 1, 5, false, true, false},
      {3, 2, 1, 65, false, false, false}, {0, 3, 2, 17, false, false, true},
      {3, 0, 1, 5, false, false, false},  {1, 2, 26, 9, false, false, true},
      {3, 5, 40, 8, true, false, false},
  };
  const Kind kinds[] = {{Dtype::kFloat32, false},  {Dtype::kFloat32, true},
                        {Dtype::kBfloat16, false}, {Dtype::kBfloat16, true},
                        {Dtype::kFloat16, false},  {Dtype::kFloat16, true}};
  // In place, by more threads than there are vectors of 16 units.
  const prnn::Shape oversubscribed{2, 4, 1, 192, false, false, false};
  std::vector<prnn::CellSpec> cells;
  for (int n = 0; n <= static_cast<int>(CellKind::kGeneralProjectedLstm); ++n)
    cells.push_back({static_cast<CellKind>(n), n < 2 ? 0.2f : 0.0f, 0.8f});
  using prnn::InnerNorm;
  for (const auto& [kind, norm] : std::initializer_list<std::pair<CellKind, prnn::Normalisation>>{
           {CellKind::kLstm, {true, false, false, InnerNorm::kOutput, 1e-5f}},
           {CellKind::kLstm, {true, true, true, InnerNorm::kState, 1e-3f}},
           {CellKind::kGru, {true, false, false, InnerNorm::kNone, 1e-5f}}}) {
    cells.push_back({kind, 0.0f, 0.0f});
    cells.back().norm = norm;
  }
  for (const CellKind kind : {CellKind::kGeneralRnn, CellKind::kGeneralLstm, CellKind::kGeneralGru,
                              CellKind::kGruResetBefore, CellKind::kGeneralProjectedLstm}) {
    cells.push_back({kind, 0.0f, 0.0f});
    cells.back().has_peepholes = kind == CellKind::kGeneralProjectedLstm;
    cells.back().clip = {true,          {0.3f, 0.7f},  {-0.6f, 0.6f},
                         {-0.4f, 0.5f}, {-0.1f, 0.1f}, {-0.2f, 0.2f}};
  }
  for (int n = 0; n < static_cast<int>(cells.size()); ++n) {
    const prnn::CellSpec& cell = cells[n];
    for (const Kind kind : kinds) {
      const auto alone = run(cell, oversubscribed, kind, 1),
                 shared = run(cell, oversubscribed, kind, 16);
      for (std::size_t i = 0; i < alone.size(); ++i)
        if (alone[i].bytes != shared[i].bytes)
          fail("results depend on the number of threads", oversubscribed, n, kind);
      for (const prnn::Shape& s : shapes) {
        const auto alone = run(cell, s, kind, 1), shared = run(cell, s, kind, 3);
        for (std::size_t i = 0; i < alone.size(); ++i) {
          if (alone[i].is_complete && !is_finite(alone[i].bytes, alone[i].dtype))
            fail("a result was not written", s, n, kind);
          if (alone[i].bytes != shared[i].bytes)
            fail("results depend on the number of threads", s, n, kind);
        }
        // Both 16-bit formats are widened by the same code.
        const bool is_float16 = kind.dtype == Dtype::kFloat16;
        for (int way = 0; !all && !is_float16 && way < prnn::Choices::kMost; ++way) {
          const auto other = run(cell, s, kind, 3, 7, way);
          for (std::size_t i = 0; i < alone.size(); ++i)
            if (alone[i].bytes != other[i].bytes)
              fail("results depend on the way, " + std::to_string(way), s, n, kind);
        }
        if (all && kind.has_controls) {
          const auto wild = run(cell, s, {kind.dtype, true, true}, 1);
          for (std::size_t i = 0; i < alone.size(); ++i)
            if (alone[i].bytes != wild[i].bytes)
              fail("lengths beyond what there is are not the nearest within", s, n, kind);
        }
        const bool plain = s.groups == 1 && !s.time_major && !s.reverse && !kind.has_controls;
        if (cell.kind != CellKind::kLstm || cell.norm.is_there || !plain ||
            kind.dtype != Dtype::kFloat32)
          continue;
        if (s.time * s.batch == 0) continue;
        Floats y(alone[0].bytes.size() / sizeof(float));
        std::memcpy(y.data(), alone[0].bytes.data(), alone[0].bytes.size());
        // 1e-6: eight float32 roundings of values below 1, at these lengths.
        if (!(lstm_error(s, y) < 1e-6)) fail("the LSTM differs from its equations", s, n, kind);
      }
    }
  }
  check_large_projections();
  if (all) check_damaged_weights();
  std::printf("ok %s\n", prnn::best_isa().name);
}
