// Benchmarks with twins: each row is timed beside a kernel that moves the same bytes and, on the CPU, one that does the
// same number of multiply-adds from registers, in the same run. The ratio is slower twin / kernel.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ringfold/registry.h"

namespace ringfold::bench {

struct Row {
  std::string key;  ///< "verify_exact_gdn_f32_t4_b16_h16x32" on the CPU, "verify_exact_gdn_f32_t4_b8" on CUDA
  std::string impl;
  Desc desc;
  int threads = 0;
  double us = 0;             ///< median of one call
  double min_us = 0;         ///< the fastest one
  double bytes = 0;          ///< moved per call (states, rings, inputs, outputs)
  double bytes_twin_us = 0;  ///< twin that moves the same bytes
  double fma_twin_us = 0;    ///< CPU: twin that does the same number of multiply-adds from registers
  double chain_us = 0;       ///< a whole layer: median of conv, mixer and norm by three calls, in turns with it
  std::string chain_impl;    ///< whose mixer that was: whom dispatch picks for it, whoever is forced
  double ratio = 0;          ///< max of the twins / us
  std::string twin;          ///< CUDA: the launch shape that was the fastest, "256 threads x 8 loads"
  std::string skipped;       ///< why nothing was timed: nothing serves it, or not enough memory
  std::string failed;        ///< how its results differ from the reference's; not timed then
};

struct Options {
  Device device = Device::cpu;
  std::vector<std::string> filters;  ///< run rows whose key contains one of these; empty: the standard set
  std::string impl;                  ///< force an implementation
  int threads = 0;                   ///< 0: all
  double seconds_per_row = 0.4;
  bool list_only = false;  ///< rows with keys, nothing timed
  std::function<void(int done, int total, const Row& last)> progress;
};

/// Each row's outputs and states are checked against the plain reference before it is timed. A row that differs has
/// `failed` set, one that cannot run `skipped`, and the others go on. Any other error ends the run; `rows` holds what
/// was done until then.
Status run(const Options& options, std::vector<Row>* rows);

}  // namespace ringfold::bench
