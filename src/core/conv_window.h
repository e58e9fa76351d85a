// Moving conv windows. Elements are copied as they are, so this is the same for all implementations.
#pragma once

#include "core/params.h"

namespace ringfold::detail {

/// conv_decode: window of `row`'s slot, moved on over the row's inputs, channels c0 .. c1-1.
void advance_conv_window(const ConvParams& p, int64_t row, int64_t c0, int64_t c1);

/// conv_commit: every live row of every layer; reads slot_ids[r], writes dst_slot_ids[r] (or slot_ids[r]), and the
/// snapshot after track_steps[r] to track_slots[r].
Status commit_conv_windows(const ConvParams& p);

}  // namespace ringfold::detail
