// The device that calls run on: the calling thread's current one.
#pragma once

namespace ringfold::cuda {

/// Why this machine cannot run the kernels ("needs an NVIDIA driver.."); null: it can. Asked once for each process.
const char* unavailable();

/// What tile choices look at. A plain value, so that choices for any device can be tested anywhere.
struct DeviceProperties {
  int major = 9, minor = 0;
  int sms = 132;
  int shared_bytes_per_sm = 228 * 1024;
  int shared_bytes_per_block = 227 * 1024;  ///< with opt-in
  bool operator==(const DeviceProperties&) const = default;
};

/// Of the current device; cached for each ordinal.
const DeviceProperties& current_device();

}  // namespace ringfold::cuda
