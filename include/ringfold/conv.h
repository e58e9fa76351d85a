// The causal short convolution before the mixer, with the same verify / commit discipline as the state.
#pragma once

#include <string_view>

#include "ringfold/mixer.h"
#include "ringfold/status.h"
#include "ringfold/tensor_view.h"

namespace ringfold {

/// y[t,c] = silu(bias[c] + sum_j weight[c,j] * x[t-(W-1)+j, c]), products and sum in fp32 as one fma chain in ascending
/// j that starts from bias (or 0), SiLU x * sigmoid(x), rounded once to the dtype of `out`. Inputs before the window's
/// first token come from `conv_state`. Formula: Mamba / Qwen3-Next causal_conv1d.
struct ConvArgs {
  TensorView x;          ///< [B,T,C] or [tokens,C], raw projections before the conv; read
  TensorView weight;     ///< f32, bf16 or f16 [C,W], W = 2..4; read
  TensorView bias = {};  ///< optional, any float dtype [C]
  bool silu = true;
  TensorView conv_state;       ///< [slots,C,W-1] in the dtype of x, oldest first; the two inner strides are free
  TensorView conv_ring = {};   ///< [slots,rows,C] in the dtype of x; conv_verify records the raw inputs here
  TensorView ring_ids = {};    ///< optional; i32 [B]: rings keyed by request row (Window); conv_ring is [rings,rows,C]
  TensorView out;              ///< like x in shape, any float dtype; written; zeros for null and refused rows
  TensorView slot_ids;         ///< i32 [B]
  TensorView cu_seqlens = {};  ///< i32 [B+1], ragged only
  TensorView pending = {};     ///< optional; i32 [slots]; set as verify and decode set theirs; the conv's own
  RingOwners owners = {};      ///< with `pending` and ring_ids; the conv's own
  TensorView row_status = {};  ///< optional; i32 [B]
  std::string_view impl = {};
  void* stream = nullptr;  ///< cudaStream_t of calls on CUDA tensors; null: the default stream
};

/// Outputs of the window; `conv_state` is left as it was. `conv_ring` may be absent (then nothing can be committed).
Status conv_verify(const ConvArgs& args);

/// Outputs, and `conv_state` moved on over all tokens. `conv_ring`, ring_ids and owners are ignored.
Status conv_decode(const ConvArgs& args);

struct ConvCommitArgs {
  TensorView conv_state;        ///< [slots,C,W-1] or [layers,slots,C,W-1]; read and written
  TensorView conv_ring;         ///< [slots,rows,C] or [layers,slots,rows,C]; read
  TensorView slot_ids;          ///< i32 [B]
  TensorView num_accepted;      ///< i32 [B]; any count from 0 to rows, also more than W-1
  TensorView ring_ids = {};     ///< optional; i32 [B]: rings keyed by request row
  TensorView track_slots = {};  ///< optional, as in FoldArgs
  TensorView track_steps = {};
  TensorView row_status = {};  ///< optional; i32 [B]
  std::string_view impl = {};
  void* stream = nullptr;  ///< cudaStream_t of calls on CUDA tensors; null: the default stream
};

/// The new window is the last W-1 inputs of (old window + accepted rows).
Status conv_commit(const ConvCommitArgs& args);

}  // namespace ringfold
