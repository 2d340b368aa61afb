#include "cuda/planner.h"

#include <algorithm>
#include <string>

#include "cuda/call.h"
#include "cuda/cost.h"
#include "cuda/plan_words.h"

namespace prnn {
namespace {

// That which asks least of the device first.
constexpr Exchange kPreferred[] = {Exchange::kBlock, Exchange::kCluster, Exchange::kGrid};
constexpr int kLeastComputeCapability = 80;
constexpr int kMostPanels = 1024;
// Exchanges whose times differ by less are equal: the model is no better.
constexpr double kPreference = 1.1;

// ---- what is to be held ----

std::span<const Instance> instances(const Request& request) {
  if (!request.is_stack) return instances(request.cell, request.pass, request.norm.is_there);
  return instances_of_stack(pass_sizes(request.cell, request.pass, request.is_stack).products);
}

int usable_sms(const Request& request, const Device& device) {
  const int sms = request.max_sms == 0 ? device.sms : request.max_sms;
  return request.norm.is_there ? std::min(sms, kMostBlocksOfNorms) : sms;
}

// Divides the panels of a streamed tile among so many blocks, with as many k blocks in shared
// memory as it has room for.
void divide(const Request& request, const Device& device, std::int64_t blocks, Plan& plan) {
  const StepWork work(request);
  const std::int64_t all = ceil_div(work.padded, plan.units), count = ceil_div(all, blocks);
  Panels& panels = plan.panels;
  panels = panels_in(request.cell, plan.tile, plan.units, static_cast<int>(count));
  plan.blocks = static_cast<int>(blocks);
  plan.k_blocks = panels.count * k_blocks(plan.tile, work.depth(), request.number);
  const auto bytes = [&](std::int64_t held) {
    panels.held = static_cast<int>(held);
    return SharedLayout::of(plan.tile, plan.exchange, work.depth(), request.number, panels).bytes;
  };
  // What loading passes through is there, even if nothing stays.
  const std::int64_t room = device.shared_bytes - bytes(1);
  const std::int64_t of_each = kWarps * SharedLayout::k_block_bytes(plan.tile);
  plan.shared_bytes =
      bytes(std::min<std::int64_t>(plan.k_blocks, room < 0 ? 0 : 1 + room / of_each));
  plan.shared_k_blocks = panels.held;
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
  plan.k_blocks = k_blocks(tile, work.depth(), request.number);
  plan.panels = {};
  std::int64_t blocks = ceil_div(work.padded, plan.units);
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
  const int sms = usable_sms(request, device);
  if (tile.is_streamed()) {
    if (request.shape.hidden <= kAlwaysHeld) return refuse("is for larger layers");
    if (blocks > std::int64_t{kMostPanels} * sms) return refuse(needs("too many for their panels"));
    divide(request, device, std::min<std::int64_t>(blocks, sms), plan);
  } else {
    const std::int64_t layers = request.is_stack ? request.shape.groups : 1;
    if (blocks * layers > sms)
      return refuse(needs(text(layers > 1 ? "for each layer, an SM for each: there are %d"
                                          : "an SM for each: there are %d",
                               sms)));
    plan.blocks = static_cast<int>(blocks);
    plan.shared_k_blocks = std::max(0, plan.k_blocks - tile.register_blocks);
    plan.shared_bytes = SharedLayout::of(tile, exchange, work.depth(), request.number).bytes;
  }
  if (plan.shared_bytes > device.shared_bytes)
    return refuse("needs " + kilobytes(plan.shared_bytes) + " of shared memory per block, " +
                  kilobytes(device.shared_bytes) + " are there");
  plan.jobs = request.shape.groups * ceil_div(request.shape.batch, tile.columns());
  return true;
}

// ---- what is chosen ----

// The fastest of plans that have their blocks: as many teams as there is room for, or fewer where
// that takes no more rounds, or where the teams would be in each other's way. Those of a stack are
// all there, and the jobs of each are one layer's.
void take_fastest(const Request& request, const Device& device, Plan plan,
                  std::optional<Plan>& best) {
  std::int64_t room = std::min<std::int64_t>(plan.jobs, usable_sms(request, device) / plan.blocks);
  if (plan.exchange == Exchange::kCluster)
    room = std::min<std::int64_t>(room, device.clusters[static_cast<std::size_t>(plan.blocks)]);
  if (plan.streamed_k_blocks() > 0) room = 1;  // the workspace is for the weights of one
  const std::int64_t layers = request.is_stack ? request.shape.groups : 1;
  for (std::int64_t teams = layers; teams <= room; teams += layers) {
    if (layers > 1 && plan.jobs % teams != 0) continue;
    plan.rounds = ceil_div(plan.jobs, teams);
    plan.teams = static_cast<int>(teams);
    set_times(request, device, plan);
    if (!best || plan.call_us < best->call_us) best = plan;
  }
}

// The instance's fastest plan, or why it has none.
Candidate consider(const Request& request, const Device& device, const Instance& instance) {
  Candidate out{instance, std::nullopt, ""};
  Plan plan;
  if (!hold_weights(request, device, out, plan)) return out;
  if (!instance.tile.is_streamed()) {
    take_fastest(request, device, plan, out.plan);
    return out;
  }
  for (int blocks = plan.blocks; blocks > 0; --blocks) {
    divide(request, device, blocks, plan);
    if (plan.panels.count > kMostPanels || plan.shared_bytes > device.shared_bytes) break;
    take_fastest(request, device, plan, out.plan);
  }
  return out;
}

// Of the plans that may be chosen: streamed tiles are for layers that nothing else is for. (By the
// model, which knows nothing of plain kernels, they would sometimes win elsewhere, too.) Null where
// there is none, or none that is `of` this exchange.
const Plan* fastest(const std::vector<Candidate>& candidates,
                    std::optional<Exchange> of = std::nullopt) {
  const bool streams = std::none_of(candidates.begin(), candidates.end(), [](const Candidate& c) {
    return c.plan && !c.instance.tile.is_streamed();
  });
  const Plan* best = nullptr;
  for (const Candidate& candidate : candidates)
    if (candidate.plan && (!of || candidate.plan->exchange == *of) &&
        (streams || !candidate.instance.tile.is_streamed()) &&
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

// Whether any instance is for it; `on_chip`: any that is not streamed.
bool fits(const Request& request, const Device& device, bool on_chip = false) {
  const auto all = instances(request);
  return std::any_of(all.begin(), all.end(), [&](const Instance& instance) {
    Candidate candidate{instance, std::nullopt, ""};
    Plan plan;
    return is_compiled(instance, request.number) && !(on_chip && instance.tile.is_streamed()) &&
           hold_weights(request, device, candidate, plan);
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
  if (request.is_stack) {
    const CellSpec cell{.kind = request.cell, .skip = 0, .cap = 0, .norm = request.norm};
    if (!visit(cell, [](auto c) { return kHasStackKernels<decltype(c)>; }))
      return text("%s: no kernel runs layers of a stack at once.", op(request.cell));
    if (!has_small_indices(cell, request.number, request.shape, true))
      return text("%s: a stack at once has arrays of fewer than 2^31 values.", op(request.cell));
  }
  if (request.cell == CellKind::kProjectedLstm || request.cell == CellKind::kGeneralProjectedLstm)
    return text(
        "lstm: a projection (w_hr) has no CUDA kernel yet, for a step with it is two products of "
        "different sizes in series; %s",
        kScan);
  if (device.compute_capability < kLeastComputeCapability)
    return text("%s: %s has compute capability %d.%d, and the CUDA engine needs %d.%d; %s",
                op(request.cell), device.name.c_str(), device.compute_capability / 10,
                device.compute_capability % 10, kLeastComputeCapability / 10,
                kLeastComputeCapability % 10, kScan);
  return "";
}

std::int64_t largest_fit(Request request, const Device& device, bool on_chip) {
  request.shape = {1, 1, request.is_stack ? request.shape.groups : 1, 1, false, false, false};
  if (!invalid(request, device).empty() || !unsupported(request, device).empty()) return 0;
  // Every instance holds all sizes up to its largest.
  std::int64_t fit = 0, least_unfit = std::int64_t{1} << 20;
  while (least_unfit - fit > 1) {
    request.shape.hidden = (fit + least_unfit) / 2;
    (fits(request, device, on_chip) ? fit : least_unfit) = request.shape.hidden;
  }
  return fit;
}

// Why nothing that is compiled is for it.
std::string too_large(const Request& request, const Device& device) {
  const std::string start =
      text("%s: no persistent plan%s on %s: hidden_size=%lld in %s", op(request.cell),
           request.pass == PassKind::kForward ? "" : " for the backward pass",
           place(request, device).c_str(), static_cast<long long>(request.shape.hidden),
           name(request.number));

  const auto largest = static_cast<long long>(largest_fit(request, device, false));
  if (request.is_stack)
    return start + text(
                       " has no room for %lld layers at once, with hidden_size=%lld it has; where "
                       "the program is made, "
                       "PRNN_CUDA_STACKS=0 has them run one after the other.",
                       static_cast<long long>(request.shape.groups), largest);
  Device cooperative = device;
  cooperative.cooperative = true;
  if (!device.cooperative && fits(request, cooperative))
    return start + text(
                       " needs a cooperative launch, which this device or process does not have "
                       "(MPS and MIG may take it away); without one hidden_size=%lld fits; %s",
                       largest, kScan);
  if (request.norm.is_there)
    return start + text(
                       " with layer norm is run where the chip holds all weights; "
                       "hidden_size=%lld fits; %s",
                       largest, kScan);
  return start + text(
                     " needs more shared memory per block, even where the weights are streamed; "
                     "hidden_size=%lld fits; %s",
                     largest, kScan);
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
  if (best.streamed_k_blocks() > 0)
    out += text("; the chip has no room for all weights (%s): %s are read in each step%s",
                megabytes(weight_bytes(request, request.shape.hidden)).c_str(),
                megabytes(std::min(streamed_bytes(request, best),
                                   weight_bytes(request, request.shape.hidden)))
                    .c_str(),
                from_l2(request, device, best) ? ", from L2" : "");
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
  for (const Instance& instance : instances(request))
    if (is_compiled(instance, request.number))
      out.candidates.push_back(consider(request, device, instance));
  out.best = choose(out.candidates);
  out.reason = out.best ? chosen_because(request, device, out) : too_large(request, device);
  return out;
}

std::int64_t largest_hidden(const Request& request, const Device& device) {
  return largest_fit(request, device, true);
}

std::string describe(const Planning& planning) {
  std::string out = planning.reason + "\n";
  if (planning.candidates.empty()) return out;
  // k blocks of a warp: those in registers, or streamed, and those in shared memory.
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
