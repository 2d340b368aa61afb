#include "cuda/planner.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "cuda/call.h"
#include "cuda/cost.h"

namespace prnn {
namespace {

// That which asks least of the device first.
constexpr Exchange kPreferred[] = {Exchange::kBlock, Exchange::kCluster, Exchange::kGrid};
constexpr int kLeastComputeCapability = 80;
// Exchanges whose times differ by less are equal: the model is no better.
constexpr double kPreference = 1.1;

// ---- words ----

template <class... Args>
std::string text(const char* format, Args... args) {
  std::string out(static_cast<std::size_t>(std::snprintf(nullptr, 0, format, args...)), '\0');
  std::snprintf(out.data(), out.size() + 1, format, args...);
  return out;
}

std::string megabytes(double bytes) {
  const double mb = bytes * 1e-6;
  return text(mb < 9.95 ? "%.1f MB" : "%.0f MB", mb);
}

const char* op(CellKind cell) {
  switch (cell) {
    case CellKind::kLstm:
    case CellKind::kGeneralLstm:
    case CellKind::kProjectedLstm:
      return "lstm";
    case CellKind::kSlstm:
      return "slstm";
    case CellKind::kGru:
    case CellKind::kGeneralGru:
    case CellKind::kGruResetBefore:
      return "gru";
    case CellKind::kRnnTanh:
    case CellKind::kRnnRelu:
    case CellKind::kGeneralRnn:
      return "rnn";
  }
  __builtin_unreachable();
}

// "NVIDIA H200 (132 SMs)", or the part of it that the caller allows.
std::string place(const Request& request, const Device& device) {
  if (request.max_sms == 0) return text("%s (%d SMs)", device.name.c_str(), device.sms);
  return text("%s with max_sms=%d", device.name.c_str(), request.max_sms);
}

// ---- what is to be held ----

int usable_sms(const Request& request, const Device& device) {
  return request.max_sms == 0 ? device.sms : request.max_sms;
}

// Fills in what does not depend on the number of teams; false, with the refusal, where the instance
// cannot hold the weights.
bool hold_weights(const Request& request, const Device& device, Candidate& out, Plan& plan) {
  const StepWork work(request);
  const auto& [exchange, tile] = out.instance;
  plan = {};
  plan.exchange = exchange;
  plan.tile = tile;
  plan.units = units_per_block(tile, work.products, request.number);
  const std::int64_t blocks = ceil_div(work.padded, plan.units);
  const auto refuse = [&](std::string why) {
    out.refusal = std::move(why);
    return false;
  };
  const auto needs = [&](const std::string& what) {
    return text("needs %lld blocks, %s", static_cast<long long>(blocks), what.c_str());
  };

  if (exchange == Exchange::kBlock && blocks > 1) return refuse(needs("a team has one"));
  if (exchange == Exchange::kCluster) {
    if (blocks < 2) return refuse("one block is no cluster");
    if (device.clusters[2] == 0) return refuse("the device has no clusters");
    if (blocks > kMaxCluster || device.clusters[static_cast<std::size_t>(blocks)] == 0)
      return refuse(needs("clusters have fewer"));
  }
  if (exchange == Exchange::kGrid && !device.cooperative)
    return refuse("the device has no cooperative launch");
  if (blocks > usable_sms(request, device))
    return refuse(needs(text("an SM for each: there are %d", usable_sms(request, device))));

  plan.blocks = static_cast<int>(blocks);
  plan.k_blocks = k_blocks(tile, work.depth(), request.number);
  plan.shared_k_blocks = std::max(0, plan.k_blocks - tile.register_blocks);
  plan.shared_bytes = SharedLayout::of(tile, exchange, work.depth(), request.number).bytes;
  if (plan.shared_bytes > device.shared_bytes)
    return refuse(text("needs %.0f KB of shared memory per block, %.0f KB are there",
                       static_cast<double>(plan.shared_bytes) / 1024,
                       static_cast<double>(device.shared_bytes) / 1024));
  plan.jobs = request.shape.groups * ceil_div(request.shape.batch, tile.columns());
  return true;
}

// ---- what is chosen ----

// The instance's fastest plan: as many teams as there is room for, or fewer where that takes no
// more rounds, or where the teams would be in each other's way.
Candidate consider(const Request& request, const Device& device, const Instance& instance) {
  Candidate out{instance, std::nullopt, ""};
  Plan plan;
  if (!hold_weights(request, device, out, plan)) return out;
  std::int64_t room = std::min<std::int64_t>(plan.jobs, usable_sms(request, device) / plan.blocks);
  if (plan.exchange == Exchange::kCluster)
    room = std::min<std::int64_t>(room, device.clusters[static_cast<std::size_t>(plan.blocks)]);
  for (std::int64_t teams = 1; teams <= room; ++teams) {
    plan.rounds = ceil_div(plan.jobs, teams);
    plan.teams = static_cast<int>(teams);
    set_times(request, device, plan);
    if (!out.plan || plan.call_us < out.plan->call_us) out.plan = plan;
  }
  return out;
}

// Null where there is none, or none that is `of` this exchange.
const Plan* fastest(const std::vector<Candidate>& candidates,
                    std::optional<Exchange> of = std::nullopt) {
  const Plan* best = nullptr;
  for (const Candidate& candidate : candidates)
    if (candidate.plan && (!of || candidate.plan->exchange == *of) &&
        (best == nullptr || candidate.plan->call_us < best->call_us))
      best = &*candidate.plan;
  return best;
}

std::optional<Plan> choose(const std::vector<Candidate>& candidates) {
  const Plan* best = fastest(candidates);
  for (const Exchange exchange : kPreferred) {
    const Plan* plan = fastest(candidates, exchange);
    if (plan != nullptr && plan->call_us <= best->call_us * kPreference) return *plan;
  }
  return std::nullopt;
}

// ---- why ----

bool fits(const Request& request, const Device& device) {
  const auto all = instances(request.cell, request.pass);
  return std::any_of(all.begin(), all.end(), [&](const Instance& instance) {
    Candidate candidate{instance, std::nullopt, ""};
    Plan plan;
    return is_compiled(instance, request.number) && hold_weights(request, device, candidate, plan);
  });
}

constexpr const char* kScan = "implementation=\"scan\" always runs.";

// The request is wrong on any device; empty where it is not.
std::string invalid(const Request& request, const Device& device) {
  const char* cell = op(request.cell);
  const Shape& shape = request.shape;
  if (shape.time < 1 || shape.batch < 1 || shape.groups < 1 || shape.hidden < 1)
    return text(
        "%s: a plan is for time, batch, groups and hidden_size of at least 1, got %lld, "
        "%lld, %lld and %lld.",
        cell, static_cast<long long>(shape.time), static_cast<long long>(shape.batch),
        static_cast<long long>(shape.groups), static_cast<long long>(shape.hidden));
  if (request.max_sms < 0 || request.max_sms > device.sms)
    return text("%s: max_sms must be from 1 to %d, the SMs of %s, got %d; leave it out for all.",
                cell, device.sms, device.name.c_str(), request.max_sms);
  return "";
}

// What the engine as such cannot do, whatever the sizes; empty where it can.
std::string unsupported(const Request& request, const Device& device) {
  if (request.cell == CellKind::kGruResetBefore)
    return text(
        "gru: reset_after=False has no CUDA kernel yet, for its step is two products in "
        "series; reset_after=True has one, %s",
        kScan);
  if (request.cell == CellKind::kProjectedLstm)
    return text(
        "lstm: a projection (w_hr) has no CUDA kernel yet, for a step with it is two products in "
        "series; %s",
        kScan);
  if (device.compute_capability < kLeastComputeCapability)
    return text("%s: %s has compute capability %d.%d, and the CUDA engine needs %d.%d; %s",
                op(request.cell), device.name.c_str(), device.compute_capability / 10,
                device.compute_capability % 10, kLeastComputeCapability / 10,
                kLeastComputeCapability % 10, kScan);
  return "";
}

// Why nothing that is compiled holds the weights.
std::string too_large(const Request& request, const Device& device) {
  const std::string start =
      text("%s: no persistent plan%s on %s: hidden_size=%lld in %s", op(request.cell),
           request.pass == PassKind::kForward ? "" : " for the backward pass",
           place(request, device).c_str(), static_cast<long long>(request.shape.hidden),
           name(request.number));

  Device cooperative = device;
  cooperative.cooperative = true;
  if (!device.cooperative && fits(request, cooperative))
    return start + text(
                       " needs a cooperative launch, which this device or process does not have "
                       "(MPS and MIG may take it away); without one hidden_size=%lld fits; %s",
                       static_cast<long long>(largest_hidden(request, device)), kScan);

  Request all = request;
  all.max_sms = 0;
  if (request.max_sms != 0 && fits(all, device)) {
    all.max_sms = request.max_sms + 1;
    while (!fits(all, device)) ++all.max_sms;
    return start +
           text(" needs %d SMs; raise max_sms to %d, or %s", all.max_sms, all.max_sms, kScan);
  }

  const std::int64_t largest = largest_hidden(request, device);
  std::string out = start + text(" needs %s on chip, %s are usable (hidden_size=%lld). ",
                                 megabytes(weight_bytes(request, request.shape.hidden)).c_str(),
                                 megabytes(weight_bytes(request, largest)).c_str(),
                                 static_cast<long long>(largest));
  Request smaller = request;
  smaller.number = Number::kBfloat16;
  if (value_bytes(request.number) > 2 && fits(smaller, device))
    out += text("bfloat16 fits (%s); ",
                megabytes(weight_bytes(smaller, request.shape.hidden)).c_str());
  return out + kScan;
}

std::string chosen_because(const Request& request, const Device& device, const Planning& planning) {
  const Plan& best = *planning.best;
  const char* how = best.exchange == Exchange::kBlock     ? "each by itself"
                    : best.exchange == Exchange::kCluster ? "each a cluster"
                                                          : "exchanging through global memory";
  std::string out = text(
      "%s on %s: %d %s of %d %s, %s; %.2f us per step, modelled with "
      "constants fitted on an %s",
      op(request.cell), place(request, device).c_str(), best.teams,
      best.teams == 1 ? "team" : "teams", best.blocks, best.blocks == 1 ? "block" : "blocks", how,
      best.step_us(), device.model.fitted_on.c_str());
  const Plan& other = *fastest(planning.candidates);
  if (other.exchange != best.exchange)
    out += text("; a %s would be at most a tenth faster and asks more of the device",
                name(other.exchange));
  return out + ".";
}

}  // namespace

Planning plan(const Request& request, const Device& device) {
  Planning out;
  out.reason = invalid(request, device);
  out.is_valid = out.reason.empty();
  if (out.is_valid) out.reason = unsupported(request, device);
  if (!out.reason.empty()) return out;
  for (const Instance& instance : instances(request.cell, request.pass))
    if (is_compiled(instance, request.number))
      out.candidates.push_back(consider(request, device, instance));
  out.best = choose(out.candidates);
  out.reason = out.best ? chosen_because(request, device, out) : too_large(request, device);
  return out;
}

std::int64_t largest_hidden(Request request, const Device& device) {
  request.shape = {1, 1, 1, 1, false, false, false};
  if (!invalid(request, device).empty() || !unsupported(request, device).empty()) return 0;
  // Every instance holds all sizes up to its largest.
  std::int64_t fit = 0, least_unfit = std::int64_t{1} << 20;
  while (least_unfit - fit > 1) {
    request.shape.hidden = (fit + least_unfit) / 2;
    (fits(request, device) ? fit : least_unfit) = request.shape.hidden;
  }
  return fit;
}

std::string describe(const Planning& planning) {
  std::string out = planning.reason + "\n";
  if (planning.candidates.empty()) return out;
  // k blocks of a warp: those in registers, and those in shared memory.
  out += "  exchange  rows x batch  teams x blocks  rounds  k blocks  us/step   us/call\n";
  for (const Candidate& candidate : planning.candidates) {
    const auto& [exchange, tile] = candidate.instance;
    const Plan* plan = candidate.plan ? &*candidate.plan : nullptr;
    const bool is_best =
        plan != nullptr && planning.best &&
        Instance{planning.best->exchange, planning.best->tile} == candidate.instance;
    out += text("%c %-8s %5d x %-6d", is_best ? '*' : ' ', name(exchange), tile.rows(),
                tile.columns());
    if (plan == nullptr)
      out += "   " + candidate.refusal;
    else
      out += text("%6d x %-6d %7lld %5d + %-3d %7.2f %9.0f", plan->teams, plan->blocks,
                  static_cast<long long>(plan->rounds), plan->k_blocks - plan->shared_k_blocks,
                  plan->shared_k_blocks, plan->step_us(), plan->call_us);
    out += "\n";
  }
  return out;
}

const char* name(Exchange exchange) {
  switch (exchange) {
    case Exchange::kBlock:
      return "block";
    case Exchange::kCluster:
      return "cluster";
    case Exchange::kGrid:
      return "grid";
  }
  __builtin_unreachable();
}

const char* name(Number number) {
  switch (number) {
    case Number::kBfloat16:
      return "bfloat16";
    case Number::kFloat16:
      return "float16";
    case Number::kTf32:
    case Number::kFloat32:
      return "float32";
  }
  __builtin_unreachable();
}

}  // namespace prnn
