// Versions, implementations, threads, plans, costs.
#include "ringfold/registry.h"

#include <fmt/format.h>

#include <cmath>
#include <mutex>
#include <set>

#include "capi/arguments.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "ringfold/choose.h"

namespace ringfold::capi {
namespace {

constexpr int32_t kMostThreads = 1024;  // the OpenMP runtime ends the process where it cannot start so many

/// Names with an end that C understands, kept for the life of the process.
const std::vector<std::string>& names_of(Device device) {
  static const auto named = [](Device d) {
    const auto names = implementations(d);
    return std::vector<std::string>(names.begin(), names.end());
  };
  static const std::vector<std::string> cpu = named(Device::cpu), cuda = named(Device::cuda);
  return device == Device::cpu ? cpu : cuda;
}

/// Sizes whose product fits keep every number of bytes and operations within 63 bits; 64 is for the factors of the
/// formulas.
void check_sizes(Arguments& in, const ringfold_desc& d) {
  int64_t product = 64;
  for (const auto& [name, size] : {std::pair{"H", d.H},
                                   {"HV", d.HV},
                                   {"K", d.K},
                                   {"V", d.V},
                                   {"rows", d.rows},
                                   {"window", d.window},
                                   {"layers", d.layers},
                                   {"channels", d.channels},
                                   {"conv_width", d.conv_width}}) {
    in.in_range(name, size, INT64_MAX);
    if (__builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product)) {
      in.fail(invalid(name, "sizes whose product fits 57 bits", fmt::format("{}", size)));
      return;
    }
  }
}

Desc read(Arguments& in, const ringfold_desc* pointer) {
  const ringfold_desc d = in.required("desc", pointer);
  check_sizes(in, d);
  in.in_range("threads", d.threads, kMostThreads);
  const DType a_dtype = in.choice("a_dtype", d.a_dtype, DType::f16);
  const bool ring_a = in.flag("ring_a", d.ring_a);
  const auto or_else = [](int64_t value, int64_t if_zero) { return value != 0 ? value : if_zero; };
  return {.op = in.choice("op", d.op, Op::decode_layer),
          .device = in.choice("device", d.device, Device::cuda),
          .kind = in.choice("kind", d.kind, MixerKind::kda),
          .numerics = in.choice("numerics", d.numerics, Numerics::fast),
          .state_rounding = in.choice("state_rounding", d.state_rounding, StateRounding::per_token),
          .fold_policy = in.choice("fold_policy", d.fold_policy, FoldPolicy::lazy),
          .state_dtype = in.choice("state_dtype", d.state_dtype, DType::i32),
          .act_dtype = in.choice("act_dtype", d.act_dtype, DType::i32),
          .H = d.H,
          .HV = d.HV,
          .K = d.K,
          .V = d.V,
          .rows = or_else(d.rows, 1),
          .window = or_else(d.window, 1),
          .layers = or_else(d.layers, 1),
          .channels = d.channels,
          .conv_width = or_else(d.conv_width, 4),
          .state_alignment = or_else(d.state_alignment, 16),
          .input_alignment = or_else(d.input_alignment, 16),
          .widest_stride = d.widest_stride,
          .packed_rows = !in.flag("spaced_rows", d.spaced_rows),
          .history_rows = d.history_rows,
          .ring_u = in.flag("ring_u", d.ring_u),
          .ring_a = ring_a ? std::optional(a_dtype) : std::nullopt,
          .snapshots = in.flag("snapshots", d.snapshots),
          .threads = d.threads};
}

ringfold_footprint to_c(const Footprint& f) {
  ringfold_footprint footprint = {};
  footprint.state_bytes = f.state_bytes;
  footprint.ring_row_bytes = f.ring_row_bytes;
  footprint.ring_bytes = f.ring_bytes;
  footprint.conv_state_bytes = f.conv_state_bytes;
  footprint.conv_ring_row_bytes = f.conv_ring_row_bytes;
  footprint.snapshot_bytes = f.snapshot_bytes;
  footprint.step_on_commit = f.step_on_commit;
  footprint.step_on_next_verify = f.step_on_next_verify;
  footprint.step_lazy = f.step_lazy;
  footprint.step_snapshot = f.step_snapshot;
  return footprint;
}

std::string words(const Explanation& e, bool served) {
  std::string text = fmt::format("request     {}\n", to_string(e.desc));
  const char* title = "candidates";
  for (const Candidate& c : e.candidates) {
    text += fmt::format("{:<11} {:<12} {:<4} {}\n", title, c.impl, c.serves ? "yes" : "no", c.reason);
    title = "";
  }
  if (!served) return text;
  const Footprint& f = e.footprint;
  return text +
         fmt::format(
             "plan        {}\nheld        state {} B, ring {} B of {} B a row, conv {} B and {} B a row; a state "
             "per draft {} B\nmoved       on_commit {} B, on_next_verify {} B, lazy {} B, state per draft {} B\n",
             to_string(e.plan), f.state_bytes, f.ring_bytes, f.ring_row_bytes, f.conv_state_bytes,
             f.conv_ring_row_bytes, f.snapshot_bytes, f.step_on_commit, f.step_on_next_verify, f.step_lazy,
             f.step_snapshot);
}

/// The name with an end that C understands, for the life of the process. Few different ones are ever asked for.
const char* kept(std::string_view name) {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> names;
  const std::lock_guard lock(mutex);
  return names.emplace(name).first->c_str();
}

ringfold_step_cost to_c(const StepCost& c) {
  ringfold_step_cost cost = {};
  cost.fold_policy = static_cast<int32_t>(c.policy);
  cost.ring_u = c.ring_u ? 1 : 0;
  cost.ring_rows = c.ring_rows;
  cost.ring_bytes = c.ring_bytes;
  cost.bytes = c.bytes;
  cost.us = c.us;
  cost.verify_impl = kept(c.verify_impl);
  cost.fold_impl = kept(c.fold_impl);
  cost.numerics = static_cast<int32_t>(c.numerics);
  return cost;
}

/// The machine of that name; without one, this machine's device.
Machine read(Arguments& in, const char* name, Device device) {
  Machine found;
  if (!in.ok()) return found;
  if (text(name).empty()) {
    in.fail(machine(device, &found));
  } else if (const std::optional<Machine> named = machine(text(name))) {
    found = *named;
  } else {
    in.fail({Code::not_found,
             fmt::format("machine: expected one of {}, found {}", fmt::join(machine_names(), ", "), name)});
  }
  return found;
}

/// A call on a plan that writes to `place`.
template <class Place, class Call>
ringfold_status on(const ringfold_plan* plan, const Place* place, const Call& call) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return invalid("plan", "a handle", "NULL");
    if (place == nullptr) return invalid("result", "a place for it", "NULL");
    return call();
  });
}

}  // namespace
}  // namespace ringfold::capi

using namespace ringfold;        // NOLINT(google-build-using-namespace): this file is the border
using namespace ringfold::capi;  // NOLINT(google-build-using-namespace)

extern "C" {

uint32_t ringfold_abi_version(void) { return RINGFOLD_ABI_VERSION; }

const char* ringfold_version(void) {
  static const std::string text(version());
  return text.c_str();
}

ringfold_status ringfold_implementation(int32_t device, size_t index, const char** name) {
  return guarded([&]() -> Status {
    Arguments in;
    const Device d = in.choice("device", device, Device::cuda);
    if (name == nullptr) in.fail(invalid("name", "a place for the result", "NULL"));
    if (!in.ok()) return in.status();
    const auto& names = names_of(d);
    *name = index < names.size() ? names[index].c_str() : nullptr;
    return {};
  });
}

int32_t ringfold_num_threads(void) { return num_threads(); }

ringfold_status ringfold_set_num_threads(int32_t threads) {
  return guarded([&]() -> Status {
    Arguments in;
    in.in_range("threads", threads, kMostThreads);
    if (in.ok()) set_num_threads(threads);
    return in.status();
  });
}

ringfold_status ringfold_explain(const ringfold_desc* desc, const char* impl, ringfold_plan** plan) {
  if (plan != nullptr) *plan = nullptr;
  return guarded([&]() -> Status {
    Arguments in;
    const Desc d = read(in, desc);
    if (plan == nullptr) in.fail(invalid("plan", "a place for the result", "NULL"));
    if (!in.ok()) return in.status();
    auto handle = std::make_unique<ringfold_plan>();
    Status status = explain(d, text(impl), &handle->explanation);
    const Explanation& e = handle->explanation;
    for (const Candidate& c : e.candidates) handle->names.emplace_back(c.impl);
    handle->chosen = e.plan.impl;
    handle->text = words(e, status.ok());
    *plan = handle.release();
    return status;
  });
}

void ringfold_plan_destroy(ringfold_plan* plan) { delete plan; }

ringfold_status ringfold_plan_get_info(const ringfold_plan* plan, ringfold_plan_info* info) {
  return on(plan, info, [&]() -> Status {
    const Plan& p = plan->explanation.plan;
    ringfold_plan_info value = {};
    value.impl = plan->chosen.empty() ? nullptr : plan->chosen.c_str();
    if (value.impl != nullptr) {
      value.tasks = p.tasks;
      value.v_parts = p.v_parts;
      value.bytes_read = p.bytes_read;
      value.bytes_written = p.bytes_written;
      value.fmas = p.fmas;
      value.threads = p.threads;
    }
    value.candidates = static_cast<int32_t>(plan->names.size());
    Status status = check_writable("info", info);
    if (status.ok()) write(value, info);
    return status;
  });
}

ringfold_status ringfold_plan_get_candidate(const ringfold_plan* plan, size_t index, ringfold_candidate* candidate) {
  return on(plan, candidate, [&]() -> Status {
    const size_t count = plan->names.size();
    if (index >= count) return invalid("index", fmt::format("0 .. {}", count - 1), fmt::format("{}", index));
    const Candidate& c = plan->explanation.candidates[index];
    ringfold_candidate value = {};
    value.impl = plan->names[index].c_str();
    value.reason = c.reason.c_str();
    value.serves = c.serves ? 1 : 0;
    Status status = check_writable("candidate", candidate);
    if (status.ok()) write(value, candidate);
    return status;
  });
}

ringfold_status ringfold_plan_get_footprint(const ringfold_plan* plan, ringfold_footprint* footprint) {
  return on(plan, footprint, [&]() -> Status {
    Status status = check_writable("footprint", footprint);
    if (status.ok()) write(to_c(plan->explanation.footprint), footprint);
    return status;
  });
}

ringfold_status ringfold_plan_get_text(const ringfold_plan* plan, const char** text) {
  return on(plan, text, [&]() -> Status {
    *text = plan->text.c_str();
    return {};
  });
}

ringfold_status ringfold_footprint_of(const ringfold_desc* desc, double accepted_per_step, ringfold_footprint* place) {
  return guarded([&]() -> Status {
    Arguments in;
    const Desc d = read(in, desc);
    if (!(accepted_per_step >= 0) || std::isinf(accepted_per_step)) {
      in.fail(invalid("accepted_per_step", "a finite number, 0 or above", fmt::format("{}", accepted_per_step)));
    }
    in.fail(check_writable("footprint", place));
    if (!in.ok()) return in.status();
    write(to_c(accepted_per_step != 0 ? footprint(d, accepted_per_step) : footprint(d)), place);
    return {};
  });
}

ringfold_status ringfold_machine(size_t index, const char** name) {
  return guarded([&]() -> Status {
    if (name == nullptr) return invalid("name", "a place for the result", "NULL");
    const auto names = machine_names();
    *name = index < names.size() ? kept(names[index]) : nullptr;
    return {};
  });
}

ringfold_status ringfold_step_cost_of(const ringfold_desc* desc, double accepted_per_step, int64_t layers,
                                      const char* machine_name, size_t index, ringfold_step_cost* cost, size_t* count) {
  return guarded([&]() -> Status {
    Arguments in;
    const Desc d = read(in, desc);
    const Machine m = read(in, machine_name, d.device);
    in.fail(check_writable("cost", cost));
    if (count == nullptr) in.fail(invalid("count", "a place for the result", "NULL"));
    if (!in.ok()) return in.status();
    StepCost cheapest;  // choose says what is wrong; step_costs has no words
    if (Status s = choose(d, accepted_per_step, layers, m, &cheapest); !s.ok()) return s;
    const std::vector<StepCost> costs = step_costs(d, accepted_per_step, layers, m);
    if (index >= costs.size()) return invalid("index", fmt::format("0 .. {}", costs.size() - 1), std::to_string(index));
    *count = costs.size();
    write(to_c(costs[index]), cost);
    return {};
  });
}

ringfold_status ringfold_choose(const ringfold_desc* desc, double accepted_per_step, int64_t layers,
                                const char* machine_name, int64_t most_ring_bytes, ringfold_step_cost* cost) {
  return guarded([&]() -> Status {
    Arguments in;
    const Desc d = read(in, desc);
    const Machine m = read(in, machine_name, d.device);
    in.fail(check_writable("cost", cost));
    if (!in.ok()) return in.status();
    StepCost chosen;
    if (Status s = choose(d, accepted_per_step, layers, m, &chosen, most_ring_bytes); !s.ok()) return s;
    write(to_c(chosen), cost);
    return {};
  });
}

}  // extern "C"
