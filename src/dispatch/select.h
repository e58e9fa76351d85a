// The ordered list of implementations, and choosing from it.
#pragma once

#include <span>

#include "core/device_memory.h"
#include "core/implementation.h"

namespace ringfold::detail {

/// All implementations of this build, best first; the plain reference ends the list.
std::span<const Implementation* const> implementation_list();

/// The first that this machine can run and that serves `desc`; or the one named `impl`, if it does. An empty `impl`
/// takes the name in the environment variable RINGFOLD_IMPL, where that is set: all implementations give the same bits.
/// Errors: not_found (no such name), unsupported (with every candidate's reason). Does not allocate on success.
Status select(const Desc& desc, std::string_view impl, const Implementation** chosen);

/// Memory functions of a device that is not the CPU; null where this build has no backend for it.
const DeviceMemory* device_memory(Device device);

}  // namespace ringfold::detail
