#include "cli/step_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands.h"

namespace ringfold::cli {
namespace {

bool same_way(const StepCost& a, const StepCost& b) {
  return a.policy == b.policy && a.ring_u == b.ring_u && a.numerics == b.numerics;
}

std::vector<StepCost> best_of_each_way(const StepTable& table) {
  std::vector<StepCost> best;
  for (const StepCost& c : table.costs) {
    const auto at = std::find_if(best.begin(), best.end(), [&](const StepCost& b) { return same_way(b, c); });
    if (at == best.end()) {
      best.push_back(c);
    } else if (*at != table.chosen && (c == table.chosen || c.us < at->us)) {
      *at = c;
    }
  }
  return best;
}

}  // namespace

std::string known_machines() {
  std::string names;
  for (const std::string_view name : machine_names()) names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  return names;
}

StepTable make_step_table(const Desc& desc, double accepted, int64_t layers, const std::string& machine_name,
                          int64_t most_ring_bytes) {
  StepTable table;
  table.desc = desc;
  table.accepted = std::min(accepted, static_cast<double>(desc.window));
  table.layers = layers;
  Status status;
  if (machine_name.empty()) {
    status = machine(desc.device, &table.machine);
  } else {
    const std::optional<Machine> named = machine(machine_name);
    if (!named) throw CommandError(fmt::format("--machine: expected {}, found '{}'", known_machines(), machine_name));
    table.machine = *named;
    table.desc.device = named->device;
  }
  if (status.ok()) status = choose(table.desc, table.accepted, layers, table.machine, &table.chosen, most_ring_bytes);
  if (status.ok()) table.costs = step_costs(table.desc, table.accepted, layers, table.machine);
  // A question that names a machine, or a bound, is about this table.
  if (!machine_name.empty() || most_ring_bytes > 0) require(status, "");
  table.why_none = status.message();
  return table;
}

nlohmann::json to_json(const StepTable& table) {
  if (table.costs.empty()) return {{"error", table.why_none}};
  nlohmann::json ways = nlohmann::json::array();
  for (const StepCost& c : table.costs) {
    ways.push_back({{"policy", to_string(c.policy)},
                    {"ring_rows", c.ring_rows},
                    {"ring_u", c.ring_u},
                    {"numerics", to_string(c.numerics)},
                    {"ring_bytes", c.ring_bytes},
                    {"bytes", c.bytes},
                    {"us", c.us},
                    {"verify_impl", c.verify_impl},
                    {"fold_impl", c.fold_impl},
                    {"chosen", c == table.chosen}});
  }
  return {{"machine", table.machine.name}, {"accepted", table.accepted},  {"layers", table.layers},
          {"rows", table.desc.rows},       {"window", table.desc.window}, {"ways", ways}};
}

void print_text(const StepTable& table) {
  if (table.costs.empty()) {
    fmt::print("steps       not predicted: {}\n", table.why_none);
    return;
  }
  fmt::print("machine     {}\n", to_string(table.machine));
  fmt::print("a step of one layer, {} rows, {:g} of {} tokens accepted, {} layers (predicted)\n", table.desc.rows,
             table.accepted, table.desc.window, table.layers);
  fmt::print("  {:<22} {:>9} {:>8} {:>14} {:>14} {:>10}   {}\n", "policy", "ring rows", "numerics", "held by slot",
             "bytes moved", "us", "verify, fold");
  for (const StepCost& c : best_of_each_way(table)) {
    const std::string policy = fmt::format("{}{}", to_string(c.policy), c.ring_u ? ", with u" : "");
    fmt::print("{} {:<22} {:>9} {:>8} {:>14} {:>14.0f} {:>10.1f}   {}, {}\n", c == table.chosen ? "*" : " ", policy,
               c.ring_rows, to_string(c.numerics), c.ring_bytes, c.bytes, c.us, c.verify_impl, c.fold_impl);
  }
}

}  // namespace ringfold::cli
