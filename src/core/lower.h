// Validation of the public arguments, in one place for all backends, and their translation into plain params.
#pragma once

#include "core/params.h"
#include "ringfold/conv.h"
#include "ringfold/decode.h"
#include "ringfold/fold.h"
#include "ringfold/gated_norm.h"
#include "ringfold/registry.h"
#include "ringfold/verify.h"

namespace ringfold::detail {

/// Each checks everything that does not depend on values in index arrays, and fills the params and the description.
Status lower(const VerifyArgs& args, RecurrenceParams* params, Desc* desc);
Status lower(const DecodeArgs& args, RecurrenceParams* params, Desc* desc);
Status lower(const FoldArgs& args, RecurrenceParams* params, Desc* desc);
Status lower_conv(Op op, const ConvArgs& args, ConvParams* params, Desc* desc);
Status lower(const ConvCommitArgs& args, ConvParams* params, Desc* desc);
Status lower(const GatedNormArgs& args, NormParams* params, Desc* desc);

/// Sizes that every operation shares: head dims 1..256, HV a multiple of H.
Status check_heads(int64_t H, int64_t HV, int64_t K, int64_t V);

}  // namespace ringfold::detail
