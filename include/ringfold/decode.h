// decode: tokens that are certain. Outputs, and the state updated at once.
#pragma once

#include <string_view>

#include "ringfold/verify.h"

namespace ringfold {

struct DecodeArgs {
  Mixer mixer;
  Window window;            ///< one token per row, or up to 32 (a chunk of a prompt), taken whole
  TensorView state;         ///< [slots,HV,V,K] f32, bf16 or f16; read and written
  TensorView out;           ///< like v, written; dtype of v, or f32
  TensorView pending = {};  ///< optional; i32 [slots]; a pending window of a row's slot is dropped (set to kNoWindow)
  Ring ring = {};           ///< with a history: where it lies; only read
  History history = {};     ///< fold policies other than on_commit: folded before the tokens, and emptied
  TensorView row_status = {};  ///< optional; i32 [B], written; see VerifyArgs
  Numerics numerics = Numerics::exact;
  StateRounding state_rounding = StateRounding::per_commit;
  std::string_view impl = {};
  void* stream = nullptr;  ///< cudaStream_t of calls on CUDA tensors; null: the default stream
};

/// The recurrence over each row's tokens, state included: what verify + commit of all tokens gives, bit for bit.
/// Errors as verify.
Status decode(const DecodeArgs& args);

}  // namespace ringfold
