// fold: replay accepted ring rows into the checkpoint.
#pragma once

#include <span>
#include <string_view>

#include "ringfold/mixer.h"
#include "ringfold/status.h"

namespace ringfold {

struct FoldArgs {
  bool qk_l2norm = true;  ///< as in the verify that wrote the ring
  /// With ring.a alone: the gate of the verify that wrote the ring. Its views have a leading [layers] where `state` has
  /// it: A_log [layers?,HV], dt_bias [layers?,HV,K]. `scale` and `qk_l2norm` of it are not read.
  Mixer mixer = {};
  TensorView state;                      ///< [slots,HV,V,K] or [layers,slots,HV,V,K]; read and written
  Ring ring;                             ///< with a leading [layers] where `state` has it; only read
  std::span<const int32_t> layers = {};  ///< which layers, in any order, none twice; empty: all. CUDA: at most 512
  TensorView slot_ids;                   ///< i32 [B]; negative: null row
  TensorView num_accepted;               ///< i32 [B]; 0 .. rows (of the pending window where `pending` is given)
  TensorView track_slots = {};           ///< optional; i32 [B]; where to store a snapshot; negative: none for this row
  TensorView track_steps = {};           ///< with track_slots; i32 [B]; ring row t after which the snapshot is taken
                                         ///< (0: after the first token); negative: none. Must be < num_accepted
  TensorView pending = {};               ///< optional; i32 [slots] or [layers,slots]; rows done are set to kNoWindow
  TensorView ring_ids = {};              ///< optional; i32 [B]: rings keyed by request row, see Window
  RingOwners owners = {};                ///< with `pending` and ring_ids, and only then; read
  History history = {};                  ///< fold policies other than on_commit: folded before the window, and emptied
  TensorView row_status = {};            ///< optional; i32 [B], written; see VerifyArgs
  StateRounding state_rounding = StateRounding::per_commit;
  std::string_view impl = {};
  void* stream = nullptr;  ///< cudaStream_t of calls on CUDA tensors; null: the default stream
};

/// Bit for bit the state after num_accepted tokens of the recurrence. num_accepted = 0 leaves the state untouched, a
/// history apart (and consumes the window). A row that is refused is refused for all layers, and nothing of it changes.
///
/// Row errors: slot_out_of_range, duplicate_slot (CPU only; also a track slot that another row writes),
/// accept_out_of_range, no_pending_window, slot_not_acquired, track_out_of_range, ring_out_of_range,
/// window_not_in_ring.
Status fold(const FoldArgs& args);

}  // namespace ringfold
