// The cases of check_cuda_engine.cc and their names.
//
// PRNN_COMPILED, globs over names without controls and sizes ("lstm-forward-bf16-grid0"), limits
// what is compiled; cases of other instances do not exist then.
#pragma once
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cuda/devices.h"
#include "emulator/engine.h"

#ifndef PRNN_COMPILED
#define PRNN_COMPILED "*"
#endif

namespace prnn {

constexpr bool matches_one(std::string_view glob, std::string_view text) {
  if (glob.empty()) return text.empty();
  if (glob[0] == '*')
    return matches_one(glob.substr(1), text) ||
           (!text.empty() && matches_one(glob, text.substr(1)));
  return !text.empty() && (glob[0] == '?' || glob[0] == text[0]) &&
         matches_one(glob.substr(1), text.substr(1));
}
// Whether one of the globs, separated by spaces, matches.
constexpr bool matches(std::string_view globs, std::string_view text) {
  while (!globs.empty()) {
    const std::size_t end = globs.find(' ');
    if (matches_one(globs.substr(0, end), text)) return true;
    globs = end == std::string_view::npos ? "" : globs.substr(end + 1);
  }
  return false;
}

struct Name {  // std::string is constant to few compilers yet
  char text[64] = {};
  std::size_t length = 0;

  constexpr Name& operator+=(std::string_view s) {
    for (const char c : s) text[length++] = c;
    return *this;
  }
  constexpr operator std::string_view() const { return {text, length}; }
};
// "lstm-forward-bf16-grid0": cell, pass, number format, and the instance by its exchange and its
// place in the list.
constexpr Name name_of(std::string_view cell, PassKind pass, Number number, Exchange exchange,
                       int place) {
  constexpr const char* kNumbers[] = {"bf16", "f16", "tf32", "f32"};
  constexpr const char* kExchanges[] = {"block", "cluster", "grid"};
  const char digit = static_cast<char>('0' + place);
  Name name;
  name += cell;
  name += pass == PassKind::kForward ? "-forward-" : "-backward-";
  (name += kNumbers[static_cast<int>(number)]) += "-";
  name += kExchanges[static_cast<int>(exchange)];
  return name += {&digit, 1};
}
constexpr Name name_of(std::string_view cell, PassKind pass, Number number,
                       std::span<const Instance> list, const Instance& instance) {
  int place = 0;
  for (const Instance& other : list) {
    if (other == instance) break;
    ++place;
  }
  return name_of(cell, pass, number, instance.exchange, place);
}

template <class Activation>
constexpr const char* cell_name(const Rnn<Activation>*) {
  return "rnn";
}
constexpr const char* cell_name(const ClippedRnn*) { return "general_rnn"; }
constexpr const char* cell_name(const Lstm*) { return "lstm"; }
constexpr const char* cell_name(const ClippedLstm*) { return "general_lstm"; }
constexpr const char* cell_name(const Slstm*) { return "slstm"; }
constexpr const char* stack_name(const char* cell) {
  const std::string_view name = cell;
  return name == "lstm" ? "lstm_stack" : name == "gru" ? "gru_stack" : "rnn_stack";
}
constexpr const char* cell_name(const Gru*) { return "gru"; }
constexpr const char* cell_name(const ClippedGru*) { return "general_gru"; }
constexpr const char* cell_name(const ClippedGruResetBefore*) { return "gru_before"; }
constexpr const char* cell_name(const NormedLstm*) { return "normed_lstm"; }
constexpr const char* cell_name(const NormedGru*) { return "normed_gru"; }

template <class Pass, Number kNumber, Exchange kExchange, Tile kTile>
constexpr bool is_selected() {
  using Cell = std::remove_cvref_t<decltype(Pass::cell)>;
  const PassKind pass = Pass::kStartsPublished ? PassKind::kForward : PassKind::kBackward;
  const char* cell = cell_name(static_cast<const Cell*>(nullptr));
  if (Pass::kSources > 1) cell = stack_name(cell);
  return matches(PRNN_COMPILED,
                 name_of(cell, pass, kNumber, instances_of<Pass>(), {kExchange, kTile}));
}

// Whether any instance of a number format may be: where none is, nothing of it need be compiled.
template <Number kNumber>
constexpr bool is_any_selected() {
  constexpr int kMostInstances = 7;
  for (const char* cell :
       {"rnn", "general_rnn", "rnn_stack", "lstm", "general_lstm", "lstm_stack", "slstm", "gru",
        "general_gru", "gru_before", "gru_stack", "normed_lstm", "normed_gru"})
    for (const PassKind pass : {PassKind::kForward, PassKind::kBackward})
      for (const Exchange exchange : {Exchange::kBlock, Exchange::kCluster, Exchange::kGrid})
        for (int place = 0; place < kMostInstances; ++place)
          if (matches(PRNN_COMPILED, name_of(cell, pass, kNumber, exchange, place))) return true;
  return false;
}

constexpr int kPlanned = -1;  // in place of an instance: what the planner takes on an H200

struct Case {
  const char* cell;
  PassKind pass;
  Number number;
  int instance;  // in instances(cell, pass)
  Shape shape;   // time, batch, groups, hidden, time_major, reverse, bidirectional
  int teams;
  const char* controls =
      "";           // of core/controls.h: "lengths" (and nothing but the states kept), "all"
  int max_sms = 0;  // for the planner; 0: all
};

// Layers of a stack, all at once.
inline bool is_stack(const std::string& cell) { return cell.ends_with("_stack"); }
inline std::span<const Instance> instances(const Case& c, const CellSpec& cell) {
  if (!is_stack(c.cell)) return instances(cell.kind, c.pass, cell.norm.is_there);
  return instances_of_stack(pass_sizes(cell.kind, c.pass, true).products);
}

inline CellSpec cell_spec(const std::string& name) {
  if (name == "rnn_stack") return {CellKind::kRnnTanh, 0.25f, 0.0f};
  if (name == "rnn_tanh") return {CellKind::kRnnTanh, 0.25f, 0.0f};
  if (name == "rnn_relu") return {CellKind::kRnnRelu, 0.0f, 0.9f};
  if (name == "gru" || name == "gru_stack") return {CellKind::kGru, 0, 0};
  // Hard sigmoids, as Keras 2 has them, and ELUs.
  constexpr AnyActivation kHard{ActivationKind::kClipped, 0.2f, 0.5f, 0.0f, 1.0f};
  constexpr AnyActivation kElu{ActivationKind::kElu, 0.5f, 0.0f, 0.0f, 0.0f};
  constexpr ChosenActivations kChosen{kHard, kElu, kTanh};
  constexpr Clip kBounds{true, {0.3f, 0.6f}, {-0.2f, 0.3f}, {-0.3f, 0.4f}, {-0.5f, 0.5f}, {}};
  if (name == "general_rnn") return {CellKind::kGeneralRnn, 0.25f, 0, kChosen};
  if (name == "gru_before") return {CellKind::kGruResetBefore, 0, 0, kChosen, false, {}, kBounds};
  if (name == "general_gru") return {CellKind::kGeneralGru, 0, 0, kChosen};
  if (name == "general_lstm") return {CellKind::kGeneralLstm, 0, 0, kChosen, true, {}, kBounds};
  if (name == "slstm") return {CellKind::kSlstm, 0, 0};
  CellSpec lstm{CellKind::kLstm, 0, 0}, gru{CellKind::kGru, 0, 0};
  if (name == "normed_lstm") lstm.norm = {true, false, false, InnerNorm::kOutput, 1e-5f};
  if (name == "normed_lstm_sum") lstm.norm = {true, true, true, InnerNorm::kState, 1e-3f};
  if (name == "normed_lstm_gate") lstm.norm = {true, false, true, InnerNorm::kNone, 1e-5f};
  if (name == "normed_gru") gru.norm = {true, false, false, InnerNorm::kNone, 1e-5f};
  if (name == "normed_gru_gate") gru.norm = {true, false, true, InnerNorm::kNone, 1e-5f};
  return name.starts_with("normed_gru") ? gru : lstm;
}

inline Plan plan_of(const Case& c) {
  const CellSpec cell = cell_spec(c.cell);
  const CudaCall call{c.pass, cell, c.number, c.shape, {}, {}, nullptr, {}, is_stack(c.cell)};
  if (c.instance != kPlanned) {
    const auto list = instances(c, cell);
    return emulator::plan_by_hand(call, list[static_cast<std::size_t>(c.instance)], c.teams);
  }
  const Planning planning =
      plan({cell.kind, c.pass, c.number, c.shape, c.max_sms, call.is_stack, cell.norm},
           *find_device("NVIDIA H200"));
  return planning.best.value();
}

inline std::string name_of(const Case& c, const Plan& plan) {
  char sizes[80];
  std::snprintf(sizes, sizeof sizes, "%s%s-T%d-B%d-G%d-H%d", *c.controls == '\0' ? "" : "-",
                c.controls, static_cast<int>(c.shape.time), static_cast<int>(c.shape.batch),
                static_cast<int>(c.shape.groups), static_cast<int>(c.shape.hidden));
  const auto list = instances(c, cell_spec(c.cell));
  const Name name = name_of(c.cell, c.pass, c.number, list, {plan.exchange, plan.tile});
  return std::string(name) + sizes;
}

inline std::vector<Case> cases() {
  constexpr Number kNumbers[] = {Number::kBfloat16, Number::kFloat16, Number::kTf32,
                                 Number::kFloat32};
  std::vector<Case> out;
  for (const char* cell : {"rnn_tanh", "rnn_relu", "general_rnn", "lstm", "general_lstm", "slstm",
                           "gru", "general_gru", "gru_before", "normed_lstm", "normed_lstm_sum",
                           "normed_lstm_gate", "normed_gru", "normed_gru_gate"})
    for (const PassKind pass : {PassKind::kForward, PassKind::kBackward})
      for (const Number number : kNumbers) {
        const CellSpec spec = cell_spec(cell);
        const int count = static_cast<int>(instances(spec.kind, pass, spec.norm.is_there).size());
        for (int i = 0; i < count; ++i) {
          const int odd = i % 2, teams = 1 + (i + static_cast<int>(pass)) % 2;
          // Rows and units that fill no tile, in rows that are multiples of 16 bytes and that are
          // none; both directions; several jobs for a team, of one group or of two; a number of
          // steps that is even or odd.
          const int hidden = odd != 0 ? 43 : 40;
          out.push_back({cell,
                         pass,
                         number,
                         i,
                         {3 + odd, 14, 2, hidden, i % 3 == 0, i % 2 == 0, true},
                         teams});
          // Small, for many schedules. Several blocks to a team where the tile allows it.
          out.push_back({cell, pass, number, i, {3, 3, 2, hidden, i % 3 == 0, false, false}, 2});
          // A job of rows that all end early, one of rows of no length.
          Shape bent{6 + odd, 11, 2, hidden, i % 3 == 1, i % 2 == 0, i % 3 != 0};
          out.push_back({cell, pass, number, i, bent, teams, "lengths"});
          // Rows of the first instance do not turn: what needs a mailbox is the other controls.
          bent.reverse = i % 2 != 0;
          bent.bidirectional = i % 3 == 2;
          out.push_back({cell, pass, number, i, bent, teams, "all"});
        }
      }
  // Weights that overflow into shared memory; one row, one unit, one step; many jobs for a team.
  const auto forward = PassKind::kForward, backward = PassKind::kBackward;
  for (const Number number : {Number::kBfloat16, Number::kTf32}) {
    out.push_back({"lstm", backward, number, 4, {3, 3, 1, 100, false, false, false}, 1});
    out.push_back({"gru", forward, number, 4, {3, 3, 1, 128, true, true, false}, 1});
    out.push_back({"lstm", forward, number, 1, {1, 1, 1, 1, false, false, false}, 1});
    out.push_back({"gru", backward, number, 0, {5, 1, 3, 17, false, true, false}, 1});
    out.push_back({"rnn_tanh", forward, number, 2, {3, 50, 2, 64, true, false, false}, 3});
    out.push_back({"lstm", forward, number, 3, {6, 20, 3, 72, false, false, false}, 2});
  }
  // Streamed weights: some k blocks of each panel stay in shared memory, others do not.
  constexpr int kStreamed = 5, kStreamedFloat32 = 6;
  for (const Number number : {Number::kBfloat16, Number::kTf32}) {
    out.push_back({"lstm", forward, number, kStreamed, {3, 18, 2, 330, true, {}, true}, 1});
    out.push_back({"gru", backward, number, kStreamed, {2, 9, 1, 200, false, true, {}}, 1, "all"});
    out.push_back({"gru_before", forward, number, 3, {2, 9, 1, 200, true, {}, {}}, 1, "all"});
    out.push_back({"gru_before", backward, number, 3, {2, 9, 1, 200, true, {}, {}}, 1});
  }
  // The same as planned, with blocks that have a panel less than others, and all in shared memory,
  // of two teams.
  const auto kBfloat16 = Number::kBfloat16;
  out.push_back({"lstm", backward, kBfloat16, kPlanned, {2, 3, 1, 300, true, {}, {}}, 1, "", 3});
  out.push_back({"gru", backward, kBfloat16, kPlanned, {3, 20, 2, 142, true, {}, true}, 1, "", 4});
  out.push_back({"gru", backward, kBfloat16, kPlanned, {4, 20, 2, 142, {}, true, {}}, 1, "all", 4});
  out.push_back(
      {"rnn_tanh", backward, Number::kFloat32, kStreamedFloat32, {3, 9, 1, 400, {}, {}, {}}, 1});
  // Granules that are whole while rows of 16 bytes are not; more teams than jobs.
  out.push_back({"lstm", forward, Number::kBfloat16, 0, {3, 3, 1, 44, false, false, false}, 1});
  out.push_back({"lstm", forward, Number::kBfloat16, 3, {2, 5, 1, 40, false, false, false}, 3});
  out.push_back({"lstm", forward, Number::kTf32, 2, {3, 18, 1, 650, false, false, false}, 1});
  out.push_back({"rnn_relu", forward, Number::kFloat32, 1, {2, 9, 1, 1400, true, false, false}, 1});
  out.push_back({"gru", backward, Number::kTf32, 1, {3, 8, 1, 500, false, false, false}, 1});
  out.push_back({"gru", forward, Number::kTf32, 2, {3, 9, 1, 650, false, false, false}, 1});
  out.push_back({"rnn_relu", forward, Number::kTf32, 2, {3, 9, 1, 1030, true, false, false}, 1});
  // Layers of a stack at once: two and three; slices of the batch one after the other, or of a team
  // each; the last steps of one beside the first of another; planned, on all of the chip.
  for (const char* cell : {"rnn_stack", "lstm_stack", "gru_stack"})
    for (const PassKind pass : {forward, backward})
      for (const Number number : kNumbers)
        for (int i = 0; i < 3; ++i) {
          const int odd = i % 2, hidden = odd != 0 ? 43 : 40;
          out.push_back({cell, pass, number, i, {3, 3, 2, hidden, i != 0, false, false}, 2});
          out.push_back(
              {cell, pass, number, i, {4 + odd, 30, 3, hidden, i == 0, i == 1, false}, 6});
          out.push_back({cell, pass, number, i, {1 + odd, 9, 3, 40, i == 2, odd != 0, false}, 3});
        }
  for (const PassKind pass : {forward, backward}) {
    out.push_back({"lstm_stack", pass, kBfloat16, kPlanned, {7, 16, 5, 256, true, {}, {}}, 1});
    out.push_back({"lstm_stack", pass, Number::kTf32, kPlanned, {3, 4, 3, 72, {}, {}, {}}, 1});
  }
  // Rows with units in so many blocks that a lane reads of several, and reads twice.
  for (const PassKind pass : {forward, backward}) {
    out.push_back({"normed_lstm", pass, kBfloat16, 0, {3, 9, 1, 330, true, {}, {}}, 1});
    out.push_back({"normed_gru_gate", pass, kBfloat16, 0, {2, 2, 1, 1060, {}, true, {}}, 1, "all"});
    out.push_back({"normed_lstm", pass, kBfloat16, 0, {2, 1, 1, 1060, {}, {}, {}}, 1});
    out.push_back({"normed_lstm_sum", pass, Number::kTf32, 0, {2, 9, 2, 310, {}, {}, true}, 2});
    out.push_back({"normed_gru", pass, kBfloat16, kPlanned, {3, 20, 1, 16, {}, {}, {}}, 1});
  }
  // As large as a layer gets.
  out.push_back({"lstm", forward, Number::kBfloat16, kPlanned, {3, 8, 1, 2048, true, {}, {}}, 1});
  out.push_back({"lstm", backward, Number::kBfloat16, kPlanned, {2, 8, 1, 2048, true, {}, {}}, 1});
  return out;
}

}  // namespace prnn
