// Executes a case on the public API: a pool whose slots are all acquired, one call per layer and step. On a device the
// pool is there, and each call's other tensors are uploaded and downloaded.
#pragma once

#include <string>
#include <vector>

#include "cli/case_file.h"

namespace ringfold::cli {

struct RunOptions {
  Device device = Device::cpu;
  std::string impl;  ///< force an implementation
  bool dump_ring = false;
};

struct NamedOutput {
  std::string name;
  CaseTensor tensor;
};

/// Runs every step in order and returns the output tensors of docs/case-files.md: `i.o`, `i.states`, `i.status`,
/// `state`, and with dump_ring `ring.k ring.v ring.g ring.beta`. A refused row is a code in `i.status`, not an error.
/// Throws CommandError when the library refuses a whole call; `where` starts its message.
std::vector<NamedOutput> run_case(const Case& input, const RunOptions& options, const std::string& where);

}  // namespace ringfold::cli
