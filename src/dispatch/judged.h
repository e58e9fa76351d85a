// fold and conv_commit for callers that have judged the rows themselves (the pool).
#pragma once

#include "ringfold/conv.h"
#include "ringfold/fold.h"

namespace ringfold::detail {

/// fold() after its rows were judged. `judged` (i32 [B]) holds each row's status: only rows that are `done` are folded;
/// absent: all but null rows. `dst_slots` (i32 [B], optional): the slot that is written in place of slot_ids[r], which
/// is then only read. args.pending and args.row_status must be absent. Slots, counts and track slots of rows that are
/// `done` must be in range.
Status fold_judged(const FoldArgs& args, const TensorView& judged, const TensorView& dst_slots);

/// The same for the conv window.
Status conv_commit_judged(const ConvCommitArgs& args, const TensorView& judged, const TensorView& dst_slots);

}  // namespace ringfold::detail
