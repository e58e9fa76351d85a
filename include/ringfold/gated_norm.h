// Gated RMSNorm on the mixer's output.
#pragma once

#include <string_view>

#include "ringfold/status.h"
#include "ringfold/tensor_view.h"

namespace ringfold {

/// y = x / sqrt(mean(x^2) + eps) * weight * gate(z) per head, in fp32, rounded once. gate is silu(z) = z * sigmoid(z)
/// (Qwen) or sigmoid(z) (Kimi). The sum over V has the canonical order of docs/math.md.
struct GatedNormArgs {
  TensorView x;       ///< float [tokens,HV,V]; read
  TensorView z;       ///< float [tokens,HV,V]; read
  TensorView weight;  ///< float [V]; read
  TensorView out;     ///< float [tokens,HV,V]; written; may be x
  NormGate gate = NormGate::silu;
  float eps = 1e-6f;
  std::string_view impl = {};
  void* stream = nullptr;  ///< cudaStream_t of calls on CUDA tensors; null: the default stream
};

Status gated_norm(const GatedNormArgs& args);

}  // namespace ringfold
