// verify: the outputs of a window of draft tokens, with the logical state left as it was.
#pragma once

#include <string_view>

#include "ringfold/mixer.h"
#include "ringfold/status.h"

namespace ringfold {

/// Inputs of one step of one layer. Dense: the first two dimensions are [B,T], every row has T tokens.
/// Ragged (cu_seqlens present): the first dimension is [tokens], row r has tokens cu_seqlens[r] .. cu_seqlens[r+1]-1.
/// q, k, v share one float dtype (the activation dtype); a and b may each have any float dtype.
struct Window {
  TensorView q;                ///< [B,T,H,K] or [tokens,H,K], after the short conv (layer.h: before it), before l2norm
  TensorView k;                ///< like q
  TensorView v;                ///< [B,T,HV,V] or [tokens,HV,V]; value head hv reads key head hv / (HV/H)
  TensorView a;                ///< GDN [B,T,HV] or [tokens,HV]; KDA [B,T,HV,K] or [tokens,HV,K]; raw projection
  TensorView b;                ///< [B,T,HV] or [tokens,HV]; raw projection (a logit)
  TensorView slot_ids;         ///< i32 [B]; a negative id is a null row. The stride is free
  TensorView cu_seqlens = {};  ///< i32 [B+1], ascending; absent for dense. Rows of length 0 are allowed
  int64_t max_window = 0;  ///< ragged only: no row is longer (one that is gets window_too_long); 0: not known, 32. A
                           ///< bound lets a GPU reserve less; with a ring its rows are a bound too
  /// Optional; i32 [B]: the ring of each row, for rings keyed by request row; absent: by slot. No ring twice in a call.
  /// Not read by decode, or without a ring.
  TensorView ring_ids = {};
};

struct VerifyArgs {
  Mixer mixer;
  Window window;
  TensorView state = {};  ///< [slots,HV,V,K] f32, bf16 or f16; only read, but where a history is folded
  TensorView out;         ///< like v, written; dtype of v, or f32. Null and refused rows get zeros
                          ///< (not where bad_window_bounds says that their tokens are unknown)
  Ring ring = {};         ///< optional; rows 0 .. T-1 of each row's ring are written (with a history: those behind it)
  TensorView snapshots =
      {};                   ///< optional; state dtype [B,T,HV,V,K] or [tokens,HV,V,K]; state after each token, written
  TensorView pending = {};  ///< optional; i32 [slots]; with a ring: set to the window's length for each row done
  RingOwners owners = {};   ///< with `pending` and window.ring_ids, and only then; set likewise
  History history = {};     ///< fold policies other than on_commit; its cursors are only read
  /// Optional; i32 [B], written (RowStatus). Without it, on the CPU, a refused row fails the whole call, and then
  /// nothing is written. On CUDA the kernels judge the rows: a refused row is passed over, the others are done.
  TensorView row_status = {};
  Numerics numerics = Numerics::exact;
  StateRounding state_rounding = StateRounding::per_commit;
  std::string_view impl = {};  ///< force an implementation by name; empty: the best that serves
  void* stream = nullptr;      ///< cudaStream_t of calls on CUDA tensors; null: the default stream (docs/cuda.md)
};

/// Computes the outputs of every row's window from its checkpoint and records the raw inputs in the ring.
/// No byte of `state` changes. A window that was recorded before and not committed is replaced whole.
///
/// With a history its rows are replayed first. Where they are due (on_next_verify: always; lazy: where the ring might
/// not take what the next two windows bring) the checkpoint takes the state after them, and `pending` says so
/// (kFolded).
///
/// Errors: invalid_argument (a shape, dtype, stride or value contradicts the above), unsupported (nothing in this build
/// or on this machine serves it: CUDA tensors without a GPU, u in the ring of a CPU; the message names every
/// candidate's reason), not_found (`impl` is unknown), internal (CUDA refused a launch). Row errors: slot_out_of_range,
/// duplicate_slot (CPU only), window_too_long, slot_not_acquired, bad_window_bounds, ring_out_of_range, duplicate_ring
/// (CPU only).
Status verify(const VerifyArgs& args);

}  // namespace ringfold
