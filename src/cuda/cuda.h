// The CUDA backend's table of implementations, and its memory.
#pragma once

#include <span>

#include "core/device_memory.h"
#include "core/implementation.h"

namespace ringfold::cuda {

/// Best first.
std::span<const detail::Implementation> implementations();
const detail::DeviceMemory& memory();

}  // namespace ringfold::cuda
