// Benchmarks with twins: each row is timed beside a kernel that moves the same bytes, and one that does the same number
// of multiply-adds from registers, in the same run. The ratio is slower twin / kernel.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ringfold/registry.h"

namespace ringfold::bench {

struct Row {
  std::string key;  ///< "verify_exact_gdn_f32_t4_b16_h16x32"
  std::string impl;
  Desc desc;
  int threads = 0;
  double us = 0;             ///< median of one call
  double bytes = 0;          ///< moved per call (states, rings, inputs, outputs)
  double bytes_twin_us = 0;  ///< twin that moves the same bytes
  double fma_twin_us = 0;    ///< twin that does the same number of multiply-adds from registers
  double ratio = 0;          ///< max of the twins / us
};

struct Options {
  std::vector<std::string> filters;  ///< run rows whose key contains one of these; empty: the standard set
  std::string impl;                  ///< force an implementation
  int threads = 0;                   ///< 0: all
  double seconds_per_row = 0.4;
  bool list_only = false;  ///< rows with keys, nothing timed
  std::function<void(int done, int total, const Row& last)> progress;
};

/// Each row's outputs and states are checked against the plain reference before it is timed; a mismatch is an error.
Status run(const Options& options, std::vector<Row>* rows);

}  // namespace ringfold::bench
