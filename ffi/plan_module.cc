#include "ffi/plan_module.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "cuda/elementwise_plan.h"
#include "cuda/planner.h"
#include "ffi/attributes.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace prnn {
namespace {

constexpr std::pair<const char*, double ModelConstants::*> kConstants[] = {
    {"block_exchange", &ModelConstants::block_exchange},
    {"cluster_exchange", &ModelConstants::cluster_exchange},
    {"cluster_bytes", &ModelConstants::cluster_bytes},
    {"grid_exchange", &ModelConstants::grid_exchange},
    {"l2_latency", &ModelConstants::l2_latency},
    {"l2_port_bytes", &ModelConstants::l2_port_bytes},
    {"polled_again", &ModelConstants::polled_again},
    {"shared_bytes", &ModelConstants::shared_bytes},
    {"conversions", &ModelConstants::conversions},
    {"reduce", &ModelConstants::reduce},
    {"pointwise", &ModelConstants::pointwise},
    {"per_value", &ModelConstants::per_value},
    {"further_unit", &ModelConstants::further_unit},
    {"issue", &ModelConstants::issue},
    {"issue_per_product", &ModelConstants::issue_per_product},
    {"overlapped", &ModelConstants::overlapped},
    {"stage_latency", &ModelConstants::stage_latency},
    {"launch_us", &ModelConstants::launch_us},
};

nb::dict to_dict(const Device& device) {
  nb::dict out;
  out["name"] = device.name;
  out["compute_capability"] = device.compute_capability;
  out["sms"] = device.sms;
  out["shared_bytes"] = device.shared_bytes;
  out["clusters"] = device.clusters;
  out["cooperative"] = device.cooperative;
  out["fma_per_clock"] = device.fma_per_clock;
  out["clock_ghz"] = device.clock_ghz;
  out["l2_bytes_per_s"] = device.l2_bytes_per_s;
  out["dram_bytes_per_s"] = device.dram_bytes_per_s;
  out["l2_bytes"] = device.l2_bytes;
  nb::dict model;
  model["fitted_on"] = device.model.fitted_on;
  for (const auto& [name, constant] : kConstants) model[name] = device.model.*constant;
  out["model"] = model;
  return out;
}

Device recorded(const std::string& name) {
  const Device* device = find_device(name);
  if (device == nullptr) throw nb::value_error(("no record of a device " + name).c_str());
  return *device;
}

// From its recorded name, or from a dict as to_dict makes it.
Device device_of(nb::handle from) {
  if (nb::isinstance<nb::str>(from)) return recorded(nb::cast<std::string>(from));
  const auto field = [&](const char* key) { return from[key]; };
  Device out{};
  out.name = nb::cast<std::string>(field("name"));
  out.compute_capability = nb::cast<int>(field("compute_capability"));
  out.sms = nb::cast<int>(field("sms"));
  out.shared_bytes = nb::cast<std::int64_t>(field("shared_bytes"));
  out.clusters = nb::cast<ClusterCounts>(field("clusters"));
  out.cooperative = nb::cast<bool>(field("cooperative"));
  out.fma_per_clock = nb::cast<int>(field("fma_per_clock"));
  out.clock_ghz = nb::cast<double>(field("clock_ghz"));
  out.l2_bytes_per_s = nb::cast<double>(field("l2_bytes_per_s"));
  out.dram_bytes_per_s = nb::cast<double>(field("dram_bytes_per_s"));
  out.l2_bytes = nb::cast<std::int64_t>(field("l2_bytes"));
  out.model.fitted_on = nb::cast<std::string>(field("model")["fitted_on"]);
  for (const auto& [name, constant] : kConstants)
    out.model.*constant = nb::cast<double>(field("model")[name]);
  return out;
}

// `number` is "float32" where TF32 products are wanted, "float32_exact" where not.
Request request_of(const std::string& cell, const std::string& pass, const std::string& number,
                   const Shape& shape, int max_sms) {
  Request out{};
  const auto known = cell_named(cell);
  if (!known) throw nb::value_error(("no cell named " + cell).c_str());
  out.cell = known->kind;
  out.norm = known->norm;
  if (pass != "forward" && pass != "backward")
    throw nb::value_error(("pass must be forward or backward, got " + pass).c_str());
  out.pass = pass == "forward" ? PassKind::kForward : PassKind::kBackward;
  if (number == "bfloat16")
    out.number = Number::kBfloat16;
  else if (number == "float16")
    out.number = Number::kFloat16;
  else if (number == "float32")
    out.number = Number::kTf32;
  else if (number == "float32_exact")
    out.number = Number::kFloat32;
  else
    throw nb::value_error(("the CUDA engine has no number format " + number).c_str());
  out.shape = shape;
  out.max_sms = max_sms;
  return out;
}

nb::tuple to_tuple(const Tile& tile) {
  return nb::make_tuple(tile.m_tiles, tile.register_blocks, tile.n_tiles, tile.warps_m);
}

nb::dict to_dict(const Plan& plan, std::int64_t batch) {
  nb::dict out, step;
  out["exchange"] = name(plan.exchange);
  out["rows"] = plan.tile.rows();
  out["columns"] = plan.tile.columns();
  out["tile"] = to_tuple(plan.tile);
  out["units"] = plan.units;
  out["blocks"] = plan.blocks;
  out["teams"] = plan.teams;
  out["jobs"] = plan.jobs;
  out["rounds"] = plan.rounds;
  out["grid"] = plan.grid();
  out["k_blocks"] = plan.k_blocks;
  out["shared_k_blocks"] = plan.shared_k_blocks;
  out["streamed_k_blocks"] = plan.streamed_k_blocks();
  out["panels"] = plan.panels.count;
  out["readings"] = plan.readings(batch);
  out["shared_bytes"] = plan.shared_bytes;
  step["exchange"] = plan.step.exchange;
  step["product"] = plan.step.product;
  step["load"] = plan.step.load;
  step["reduce"] = plan.step.reduce;
  step["pointwise"] = plan.step.pointwise;
  out["parts_us"] = step;
  out["step_us"] = plan.step_us();
  out["load_us"] = plan.load_us;
  out["call_us"] = plan.call_us;
  return out;
}

// {chunks, floats_per_element, call_us}: of an elementwise recurrence.
nb::dict cuda_elementwise_plan(int value_bytes, std::int64_t rows, std::int64_t steps,
                               std::int64_t width, bool constant, bool linear, nb::handle device) {
  ElementwiseRecurrence recurrence{};
  recurrence.dtype = value_bytes == 4 ? Dtype::kFloat32 : Dtype::kBfloat16;
  recurrence.rows = rows;
  recurrence.steps = steps;
  recurrence.width = width;
  recurrence.is_constant = constant;
  recurrence.is_linear = linear;
  const ElementwisePlan planned = plan(recurrence, device_of(device));
  nb::dict out;
  out["chunks"] = planned.chunks;
  out["floats_per_element"] = elementwise_workspace(planned.chunks);
  out["call_us"] = planned.call_us;
  return out;
}

// {best: dict or None, candidates: [dict], reason, is_valid, text}.
nb::dict cuda_plan(const std::string& cell, const std::string& pass, const std::string& number,
                   std::int64_t time, std::int64_t batch, std::int64_t groups, std::int64_t hidden,
                   nb::handle device, int max_sms, bool is_stack) {
  const Shape shape{time, batch, groups, hidden, false, false, false};
  Request request = request_of(cell, pass, number, shape, max_sms);
  request.is_stack = is_stack;
  const Planning planning = plan(request, device_of(device));
  nb::list candidates;
  for (const Candidate& candidate : planning.candidates) {
    nb::dict entry;
    entry["exchange"] = name(candidate.instance.exchange);
    entry["tile"] = to_tuple(candidate.instance.tile);
    entry["plan"] = candidate.plan ? nb::object(to_dict(*candidate.plan, batch)) : nb::none();
    entry["refusal"] = candidate.refusal;
    candidates.append(entry);
  }
  nb::dict out;
  out["best"] = planning.best ? nb::object(to_dict(*planning.best, batch)) : nb::none();
  out["candidates"] = candidates;
  out["reason"] = planning.reason;
  out["is_valid"] = planning.is_valid;
  out["text"] = describe(planning);
  return out;
}

std::int64_t cuda_largest_hidden(const std::string& cell, const std::string& pass,
                                 const std::string& number, nb::handle device, int max_sms) {
  return largest_hidden(request_of(cell, pass, number, {}, max_sms), device_of(device));
}

std::vector<std::string> recorded_names() {
  std::vector<std::string> names;
  for (const Device& device : recorded_devices()) names.push_back(device.name);
  return names;
}

}  // namespace

void bind_planner(nb::module_& m) {
  m.def("cuda_plan", cuda_plan, "cell"_a, "pass_"_a, "number"_a, "time"_a, "batch"_a, "groups"_a,
        "hidden"_a, "device"_a, "max_sms"_a = 0, "is_stack"_a = false);
  m.def("cuda_largest_hidden", cuda_largest_hidden, "cell"_a, "pass_"_a, "number"_a, "device"_a,
        "max_sms"_a = 0);
  m.def("cuda_elementwise_plan", cuda_elementwise_plan, "value_bytes"_a, "rows"_a, "steps"_a,
        "width"_a, "constant"_a, "linear"_a, "device"_a);
  m.def("recorded_devices", recorded_names);
  m.def(
      "estimated_device",
      [](const std::string& name, int compute_capability, int sms, std::int64_t shared_bytes) {
        Device known{};
        known.name = name;
        known.compute_capability = compute_capability;
        known.sms = sms;
        known.shared_bytes = shared_bytes;
        known.cooperative = true;
        return to_dict(estimated(known));
      },
      "name"_a, "compute_capability"_a, "sms"_a, "shared_bytes"_a = 0);
  m.def(
      "recorded_device", [](const std::string& name) { return to_dict(recorded(name)); }, "name"_a);
}

}  // namespace prnn
