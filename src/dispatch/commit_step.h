// The end of a step of a pool: fold and conv windows under one verdict for each row.
#pragma once

#include "core/params.h"
#include "ringfold/conv.h"
#include "ringfold/fold.h"

namespace ringfold::detail {

/// `fold` and `conv` name the same rows: slot_ids, num_accepted, track_slots, track_steps.
struct CommitStep {
  FoldArgs fold;                          ///< pending: i32 [layers,slots], or absent: nothing is judged by cursors
  ConvCommitArgs conv;                    ///< conv_state empty: there is no conv
  TensorView conv_pending;                ///< i32 [layers,slots], judged together with fold.pending; optional
  RingOwners conv_owners;                 ///< with fold.ring_ids and cursors
  TensorView generations;                 ///< i32 [B], optional: those of the handles
  TensorView current_generations;         ///< i32 [slots]: those of the slots
  CursorMove move = CursorMove::consume;  ///< other than that a row needs no pending window
  bool deferred = false;  ///< rows are folded only where their history has no room for them, or a snapshot is asked for
  TensorView due;         ///< i32 [1 + layers * slots], zeros: room for Rows::due, on a device; optional
  TensorView dst_slot_ids;  ///< i32 [B], optional: slots that are written in place of slot_ids, which are only read
};

Status commit_step(const CommitStep& step);

}  // namespace ringfold::detail
