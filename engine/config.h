// config.json of a Qwen3.5 text checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ringfold/status.h"

namespace ringfold::engine {

/// What the engine needs to know of a model. Names are those of config.json.
struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  std::vector<bool> full_attention;  ///< per layer: full attention, else linear attention
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;  ///< head_dim * partial_rotary_factor, even
  float rope_theta = 0;
  int64_t linear_num_key_heads = 0;
  int64_t linear_num_value_heads = 0;
  int64_t linear_key_head_dim = 0;
  int64_t linear_value_head_dim = 0;
  int64_t linear_conv_kernel_dim = 0;
  float rms_norm_eps = 0;
  bool tie_word_embeddings = false;
  int64_t max_position_embeddings = 0;
  std::vector<int32_t> eos_token_ids;

  /// Layers of either kind.
  int64_t linear_layers() const;
  int64_t attention_layers() const { return num_hidden_layers - linear_layers(); }
  int64_t key_dim() const { return linear_num_key_heads * linear_key_head_dim; }
  int64_t value_dim() const { return linear_num_value_heads * linear_value_head_dim; }
  int64_t conv_channels() const { return 2 * key_dim() + value_dim(); }
  /// Token ids are bytes: there is no tokenizer, and none is needed.
  bool byte_level() const { return vocab_size == 256; }
};

/// Reads `dir`/config.json (and the stop tokens of generation_config.json, where there is one); a nested text_config is
/// entered. Errors: not_found (no such directory or file); invalid_argument (the message names the key, what was
/// expected, what was found); unsupported (a feature of the family that the engine does not have: mixture of experts,
/// other rope types, biases).
Status read_config(const std::string& dir, ModelConfig* config);

}  // namespace ringfold::engine
