// What ringfold explain says of the fold policies: predicted bytes and microseconds of a step under each.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ringfold/choose.h"

namespace ringfold::cli {

struct StepTable {
  Desc desc;
  Machine machine;
  double accepted = 0;
  int64_t layers = 1;
  std::vector<StepCost> costs;
  StepCost chosen;
  std::string why_none;  ///< costs are empty
};

/// `machine`: a name that the library knows; empty: this machine's, of the device of `desc`. More accepted tokens than
/// the window has are taken as the window. `most_ring_bytes`: 0 for no bound. Throws CommandError for a wrong name,
/// and, where a machine is named, for whatever leaves the table empty.
StepTable make_step_table(const Desc& desc, double accepted, int64_t layers, const std::string& machine,
                          int64_t most_ring_bytes);

/// Every way that the table has.
nlohmann::json to_json(const StepTable& table);
/// One line for each policy and numerics: of lazy the cheapest ring, or the chosen one.
void print_text(const StepTable& table);

/// "h200, h100, ..", for help and errors.
std::string known_machines();

}  // namespace ringfold::cli
