// What can serve, how it would run, what a step costs, and the conformance kit.
#include <fmt/format.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "check/check.h"
#include "python/src/pool.h"
#include "ringfold/choose.h"
#include "ringfold/registry.h"

namespace ringfold::python {
namespace {

constexpr const char* kOpNames =
    "verify, decode, fold, conv_verify, conv_decode, conv_commit, gated_norm, verify_layer or decode_layer";

Desc desc_of(const Arguments& in) {
  Desc d;
  in.name("op", kOpNames, &d.op);
  in.name("device", kDeviceNames, &d.device);
  in.name("kind", kKindNames, &d.kind);
  in.name("numerics", kNumericsNames, &d.numerics);
  in.name("state_rounding", kRoundingNames, &d.state_rounding);
  in.name("fold_policy", kPolicyNames, &d.fold_policy);
  in.name("state_dtype", kFloatNames, &d.state_dtype);
  in.name("act_dtype", kFloatNames, &d.act_dtype);
  const std::pair<const char*, int64_t*> sizes[] = {{"H", &d.H},
                                                    {"HV", &d.HV},
                                                    {"K", &d.K},
                                                    {"V", &d.V},
                                                    {"rows", &d.rows},
                                                    {"window", &d.window},
                                                    {"layers", &d.layers},
                                                    {"channels", &d.channels},
                                                    {"conv_width", &d.conv_width},
                                                    {"state_alignment", &d.state_alignment},
                                                    {"input_alignment", &d.input_alignment},
                                                    {"widest_stride", &d.widest_stride},
                                                    {"history_rows", &d.history_rows}};
  for (const auto& [name, value] : sizes) in.integer(name, value);
  in.flag("packed_rows", &d.packed_rows);
  in.flag("snapshots", &d.snapshots);
  in.flag("ring_u", &d.ring_u);
  if (in.has("ring_a")) in.name("ring_a", kFloatNames, &d.ring_a.emplace());
  int64_t threads = 0;
  in.integer("threads", &threads);
  d.threads = static_cast<int>(threads);
  return d;
}

nb::dict as_dict(const Plan& plan) {
  nb::dict d;
  d["impl"] = std::string(plan.impl);
  d["tasks"] = plan.tasks;
  d["v_parts"] = plan.v_parts;
  d["threads"] = plan.threads;
  d["bytes_read"] = plan.bytes_read;
  d["bytes_written"] = plan.bytes_written;
  d["fmas"] = plan.fmas;
  return d;
}

nb::dict as_dict(const Footprint& f) {
  nb::dict d;
  d["state_bytes"] = f.state_bytes;
  d["ring_row_bytes"] = f.ring_row_bytes;
  d["ring_bytes"] = f.ring_bytes;
  d["conv_state_bytes"] = f.conv_state_bytes;
  d["conv_ring_row_bytes"] = f.conv_ring_row_bytes;
  d["snapshot_bytes"] = f.snapshot_bytes;
  d["step_on_commit"] = f.step_on_commit;
  d["step_on_next_verify"] = f.step_on_next_verify;
  d["step_lazy"] = f.step_lazy;
  d["step_snapshot"] = f.step_snapshot;
  return d;
}

/// A request that nothing serves is an answer too: no plan, and the library's message under "error".
nb::dict call_explain(nb::dict values) {
  Arguments in(std::move(values));
  const Desc desc = desc_of(in);
  double accepted = 3;
  in.number("accepted_per_step", &accepted);
  Explanation explanation;
  const Status status = explain(desc, in.text("impl"), &explanation);
  if (status.code() != Code::unsupported) require(status);
  nb::list candidates;
  for (const Candidate& c : explanation.candidates) {
    candidates.append(nb::make_tuple(std::string(c.impl), c.serves, c.reason));
  }
  nb::dict result;
  result["request"] = to_string(desc);
  result["candidates"] = candidates;
  result["plan"] = nb::none();
  result["plan_text"] = "";
  result["error"] = status.message();
  if (status.ok()) {
    result["plan"] = as_dict(explanation.plan);
    result["plan_text"] = to_string(explanation.plan);
  }
  result["footprint"] = as_dict(footprint(desc, accepted));
  return result;
}

std::vector<std::string> call_implementations(const std::string& device) {
  const std::optional<Device> parsed = parse<Device>(device);
  if (!parsed) refuse("device", kDeviceNames, "'" + device + "'");
  std::vector<std::string> names;
  for (const std::string_view name : implementations(*parsed)) names.emplace_back(name);
  return names;
}

nb::dict as_dict(const StepCost& c) {
  nb::dict d;
  d["fold_policy"] = to_string(c.policy);
  d["ring_rows"] = c.ring_rows;
  d["ring_u"] = c.ring_u;
  d["numerics"] = to_string(c.numerics);
  d["us"] = c.us;
  d["bytes"] = c.bytes;
  d["ring_bytes"] = c.ring_bytes;
  d["verify_impl"] = std::string(c.verify_impl);
  d["fold_impl"] = std::string(c.fold_impl);
  return d;
}

/// What the cost model is asked.
struct Step {
  Desc verify;
  Machine machine;
  int64_t layers = 1, most_ring_bytes = 0;
  double accepted = 0;
};

/// A machine that is named decides about the device.
Step step_of(Arguments& in) {
  Step step{.verify = desc_of(in)};
  const std::string_view name = in.text("machine");
  if (name.empty()) {
    require(machine(step.verify.device, &step.machine));
  } else if (const std::optional<Machine> found = machine(name)) {
    step.machine = *found;
    step.verify.device = found->device;
  } else {
    raise(Code::not_found,
          fmt::format("machine: expected one of {}, found '{}'", fmt::join(machine_names(), ", "), name));
  }
  in.number("accepted_per_step", &step.accepted);
  step.layers = step.verify.layers;
  in.integer("most_ring_bytes", &step.most_ring_bytes);
  return step;
}

nb::dict call_choose(nb::dict values) {
  Arguments in(std::move(values));
  const Step step = step_of(in);
  StepCost chosen;
  require(choose(step.verify, step.accepted, step.layers, step.machine, &chosen, step.most_ring_bytes));
  return as_dict(chosen);
}

nb::list call_step_costs(nb::dict values) {
  Arguments in(std::move(values));
  const Step step = step_of(in);
  StepCost cheapest;  // choose says what is wrong; step_costs has no words
  require(choose(step.verify, step.accepted, step.layers, step.machine, &cheapest));
  nb::list costs;
  for (const StepCost& cost : step_costs(step.verify, step.accepted, step.layers, step.machine)) {
    costs.append(as_dict(cost));
  }
  return costs;
}

std::vector<std::string> call_machines() {
  std::vector<std::string> names;
  for (const std::string_view name : machine_names()) names.emplace_back(name);
  return names;
}

nb::dict as_dict(const check::Cell& cell) {
  nb::dict d;
  d["impl"] = cell.impl;
  d["line"] = cell.line;
  d["passed"] = cell.passed;
  d["failed"] = cell.failed;
  d["skipped"] = cell.skipped;
  d["checks"] = cell.checks;
  d["seconds"] = cell.seconds;
  d["failures"] = cell.failures;
  d["reasons"] = cell.reasons;
  return d;
}

nb::list call_check(std::vector<std::string> impls, std::vector<std::string> lines, bool quick, int threads) {
  check::Options options;
  options.impls = std::move(impls);
  options.lines = std::move(lines);
  options.level = quick ? check::Level::quick : check::Level::full;
  options.threads = threads;
  check::Report report;
  {
    const nb::gil_scoped_release release;
    report = check::run(options);
  }
  nb::list cells;
  for (const check::Cell& cell : report.cells) cells.append(as_dict(cell));
  return cells;
}

std::map<std::string, std::string> contract_lines() {
  std::map<std::string, std::string> lines;
  for (const check::Line& line : check::lines()) lines[line.id] = line.what;
  return lines;
}

}  // namespace

void bind_registry(nb::module_& m) {
  using namespace nb::literals;
  m.def("explain", &call_explain, "arguments"_a);
  m.def("choose", &call_choose, "arguments"_a);
  m.def("step_costs", &call_step_costs, "arguments"_a);
  m.def("machines", &call_machines);
  m.def("implementations", &call_implementations, "device"_a);
  m.def("check", &call_check, "impls"_a, "lines"_a, "quick"_a, "threads"_a);
  m.def("contract_lines", &contract_lines);
  m.def("num_threads", &num_threads);
  m.def("set_num_threads", &set_num_threads, "threads"_a);
  m.def("version", [] { return std::string(version()); });
}

}  // namespace ringfold::python
