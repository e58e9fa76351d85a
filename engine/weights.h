// The tensors of a checkpoint, checked against its configuration and mapped into memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/matmul.h"
#include "io/safetensors.h"
#include "ringfold/tensor_view.h"

namespace ringfold::engine {

/// One decoder layer. Matrices and views point into the mapped files; vectors are copies in fp32.
struct LayerWeights {
  std::vector<float> input_norm;  ///< 1 + input_layernorm.weight [hidden]
  std::vector<float> post_norm;   ///< 1 + post_attention_layernorm.weight [hidden]
  Matrix gate_proj, up_proj;      ///< [intermediate, hidden]
  Matrix down_proj;               ///< [hidden, intermediate]

  // linear attention
  Matrix in_qkv, in_z, in_a, in_b;    ///< [conv channels, hidden], [value dim, hidden], [HV, hidden] twice
  Matrix out_proj;                    ///< [hidden, value dim]
  TensorView conv_weight;             ///< [conv channels, width]
  std::vector<float> A_log, dt_bias;  ///< [HV]
  std::vector<float> mixer_norm;      ///< linear_attn.norm.weight as it is [V]

  // full attention
  Matrix q_proj;                      ///< [heads * 2 * head_dim, hidden]: per head the query, then its output gate
  Matrix k_proj, v_proj;              ///< [kv heads * head_dim, hidden]
  Matrix o_proj;                      ///< [hidden, heads * head_dim]
  std::vector<float> q_norm, k_norm;  ///< 1 + weight [head_dim]
};

struct Weights {
  std::vector<std::unique_ptr<io::SafetensorsFile>> files;
  Matrix embedding;               ///< [vocab, hidden]
  Matrix head;                    ///< [vocab, hidden]; the embedding where tied
  std::vector<float> final_norm;  ///< 1 + norm.weight [hidden]
  std::vector<LayerWeights> layers;
};

/// Opens `dir`/model.safetensors, or the files that model.safetensors.index.json names. Names may start with "model."
/// or "model.language_model."; tensors that the text model does not have (vision, multi-token prediction) are ignored.
/// Errors: not_found (no file), invalid_argument (the message names the tensor, the shape or dtype expected and found).
Status load_weights(const std::string& dir, const ModelConfig& config, Weights* weights);

/// Element i of a packed float view, as fp32.
float widen(const TensorView& view, int64_t i);

}  // namespace ringfold::engine
