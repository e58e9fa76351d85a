// Moves of whole slots of a pool.
#pragma once

#include "core/device_memory.h"

namespace ringfold::cuda {

/// One launch for all layers, sections and moves.
Status move_slots(const detail::SlotMoves& moves, void* stream);

}  // namespace ringfold::cuda
