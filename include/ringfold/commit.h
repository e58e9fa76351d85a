// commit: the end of a step. All layers, conv windows, snapshots and cursors together.
#pragma once

#include "ringfold/pool.h"

namespace ringfold {

/// Every view is on the device of the pool.
struct CommitArgs {
  TensorView slot_ids;          ///< i32 [B]; negative: null row
  TensorView ring_ids = {};     ///< i32 [B]: those of the verify; for pools with PoolConfig::rings, and only for them
  TensorView generations = {};  ///< optional; i32 [B]; the handles' generations; a row whose slot moved on is refused
  TensorView num_accepted;      ///< i32 [B]; 0 .. length of the pending window
  TensorView track_slots = {};  ///< optional; i32 [B]; an acquired slot that gets a snapshot; negative: none
  TensorView track_steps = {};  ///< with track_slots; i32 [B]; row after which the snapshot is taken; negative: none
  /// Optional; i32 [B], written. Without it a refused row fails the whole call on the CPU and is passed over on CUDA,
  /// where no value can be read in time.
  TensorView row_status = {};
  std::string_view impl = {};
  void* stream = nullptr;  ///< cudaStream_t of calls on CUDA tensors; null: the default stream
};

/// Consumes the pending window of every row: folds the accepted rows of all layers into the checkpoints, forms the new
/// conv windows, stores snapshots, clears the cursors. A row is committed in all of these or in none (spec C18). A
/// layer whose verify (or conv_verify, where the pool has a conv) did not run since the last commit has no pending
/// window, so the row is refused.
///
/// Row errors: slot_out_of_range, duplicate_slot, accept_out_of_range, no_pending_window, stale_generation,
/// track_out_of_range, slot_not_acquired, ring_out_of_range, window_not_in_ring.
Status commit(Pool& pool, const CommitArgs& args);

}  // namespace ringfold
