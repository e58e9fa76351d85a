// A whole recurrent layer between its projections: short conv, mixer and gated norm in one call.
#pragma once

#include <string_view>

#include "ringfold/mixer.h"
#include "ringfold/status.h"
#include "ringfold/verify.h"

namespace ringfold {

/// What conv_verify, verify and gated_norm (or conv_decode, decode and gated_norm) take, but for what lies between
/// them: the conv's outputs and the mixer's never reach memory of the caller. `Pool::bind` fills in what a pool owns.
///
/// The conv's channels are those of all heads in the order q | k | v: C = 2*H*K + HV*V; q of head h has channels h*K ..
/// h*K+K-1, k those behind H*K, v those behind 2*H*K. `out` overlaps no other tensor.
struct LayerArgs {
  Mixer mixer;
  /// Projections before the conv, packed: [B,T,C], or ragged [tokens,C]; H is (C - HV*V) / (2*K). Or three views, in
  /// window.q, window.k and window.v, of any strides (heads with gaps, separate projections); errors name them in both
  /// cases.
  TensorView qkv = {};
  Window window;  ///< all but q, k and v; without `qkv` these too, before the conv here

  TensorView conv_weight;     ///< f32, bf16 or f16 [C,W], W = 2..4; read
  TensorView conv_bias = {};  ///< optional, any float dtype [C]
  bool conv_silu = true;      ///< the conv's activation
  TensorView conv_state;      ///< [slots,C,W-1] in the activation dtype (that of q, k, v), oldest first
  TensorView conv_ring = {};  ///< [slots,rows,C] likewise; verify_layer records the projections. With `ring`, or none
  TensorView conv_pending = {};  ///< i32 [slots], the conv's own cursors. With `pending`, or none
  RingOwners conv_owners = {};   ///< with `conv_pending` and window.ring_ids

  TensorView state;         ///< [slots,HV,V,K] f32, bf16 or f16; as in verify and decode
  Ring ring = {};           ///< optional; rows of the window are written; decode_layer: with a history, only read
  TensorView pending = {};  ///< optional; i32 [slots]; as in verify and decode
  RingOwners owners = {};   ///< with `pending` and window.ring_ids
  History history = {};     ///< fold policies other than on_commit

  TensorView z;  ///< gate of the norm before its activation: [B,T,HV,V] or [tokens,HV,V], any float dtype; read
  TensorView norm_weight;  ///< float [V]; read
  NormGate norm_gate = NormGate::silu;
  float norm_eps = 1e-6f;
  /// What the mixer's output is rounded to before the norm: f32 (not at all), or the activation dtype. It is the dtype
  /// that `out` of verify has where three calls are made.
  DType mixer_out = DType::f32;

  TensorView out;  ///< [B,T,HV,V] or [tokens,HV,V], any float dtype; written. Zeros for null and refused rows
                   ///< (not where bad_window_bounds says that their tokens are unknown)
  TensorView row_status = {};  ///< optional; i32 [B], written; see VerifyArgs. One verdict for conv and mixer
  Numerics numerics = Numerics::exact;
  StateRounding state_rounding = StateRounding::per_commit;
  std::string_view impl = {};
  void* stream = nullptr;  ///< cudaStream_t of calls on CUDA tensors; null: the default stream
};

/// Bit for bit what conv_verify (its output rounded to the activation dtype), verify and gated_norm give: outputs,
/// ring, conv ring, checkpoints that are due, cursors. A row that either of the two would refuse is refused for both.
/// The commit that follows is that of the two calls.
///
/// Errors as verify; arguments are named as above. No snapshots.
Status verify_layer(const LayerArgs& args);

/// Bit for bit what conv_decode, decode and gated_norm give: outputs, states, conv windows, cursors.
/// `conv_ring`, and without a history `ring`, are ignored. Errors as decode.
Status decode_layer(const LayerArgs& args);

}  // namespace ringfold
