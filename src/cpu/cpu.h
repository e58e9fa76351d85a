// The CPU implementations: one for each instruction set that the compiler can target.
#pragma once

#include <span>

#include "core/implementation.h"

namespace ringfold::cpu {

/// Best first. All that were compiled, also those that this machine cannot run.
std::span<const detail::Implementation> implementations();

}  // namespace ringfold::cpu
