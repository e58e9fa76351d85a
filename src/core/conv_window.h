// Moving conv windows. Elements are copied as they are, so this is the same for all implementations.
#pragma once

#include "core/params.h"

namespace ringfold::detail {

/// Channels first .. first+n-1 of a row of a call on x and out.
ConvPiece conv_piece(const ConvParams& p, int64_t row, int64_t first, int n);

/// conv_decode: the conv window moved on over the inputs of these channels.
void advance_conv_window(const ConvParams& p, const ConvPiece& piece);

/// conv_commit: every live row of every layer; reads slot_ids[r], writes dst_slot_ids[r] (or slot_ids[r]), and the
/// snapshot after track_steps[r] to track_slots[r].
Status commit_conv_windows(const ConvParams& p);

}  // namespace ringfold::detail
