// The device that calls run on: the calling thread's current one.
#pragma once

namespace ringfold::cuda {

/// Why this machine cannot run the kernels ("needs an NVIDIA driver.."); null: it can. Asked once for each process.
const char* unavailable();

/// What tile choices and the cost model look at. A plain value, so that choices for any device can be tested anywhere.
struct DeviceProperties {
  int major = 9, minor = 0;
  int sms = 132;
  int shared_bytes_per_sm = 228 * 1024;
  int shared_bytes_per_block = 227 * 1024;  ///< with opt-in
  int clock_khz = 1'980'000;                ///< the highest; 0: not known
  int memory_khz = 3'201'000;               ///< of the memory, which moves twice as many words; 0: not known
  int memory_bits = 6144;                   ///< of the memory's bus
  bool operator==(const DeviceProperties&) const = default;
};

/// Of the current device; cached for each ordinal.
const DeviceProperties& current_device();

/// Whether kernels can be started on the current device while the ones ahead of them end (start.cuh), in captured
/// graphs too: from compute capability 9.0 and drivers of 12.3 on.
bool kernels_start_early();

}  // namespace ringfold::cuda
