// Timing a rig's calls beside its twins, on one device.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/bench.h"
#include "bench/pool_rig.h"
#include "bench/rig.h"

namespace ringfold::bench {

/// What the calls of a case cost, by their plans: one call of the whole case.
struct Work {
  int64_t bytes_read = 0, bytes_written = 0, fmas = 0;
};

class Timer {
 public:
  virtual ~Timer() = default;
  /// What the tensors' copies and the calls are ordered in.
  virtual void* stream() const = 0;
  /// How many sets of slots keep consecutive calls out of the caches.
  virtual int64_t sets(const Case& c) const = 0;
  /// Fills in the row's times and its ratio.
  virtual Status measure(Rig& rig, const Work& work, Row* row) = 0;
  /// The same for steps of a pool: the mean over flush cycles, for one layer. The twin reads or updates the states as
  /// the steps of a cycle do, and on CUDA moves inputs, outputs and ring rows too.
  virtual Status measure(PoolRig& rig, const Work& work, Row* row) = 0;
};

inline constexpr size_t kLeastSamples = 15;

/// Reorders the values.
double median(std::vector<double>& values);
double least(const std::vector<double>& values);

std::unique_ptr<Timer> cpu_timer(const Options& options);
/// Errors: unsupported (no CUDA backend in this build, no GPU in this machine).
Status cuda_timer(const Options& options, std::unique_ptr<Timer>* timer);

}  // namespace ringfold::bench
