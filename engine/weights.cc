#include "engine/weights.h"

#include <bit>
#include <filesystem>
#include <fstream>
#include <set>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace ringfold::engine {

float widen(const TensorView& view, int64_t i) {
  if (view.dtype == DType::f32) return static_cast<const float*>(view.data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(view.data)[i];
  if (view.dtype == DType::bf16) return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = bits >> 10 & 31u, fraction = bits & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float small = static_cast<float>(fraction) * 0x1p-24f;
  return sign ? -small : small;
}

namespace {

/// Finds tensors by name and checks them; remembers the first error.
class Loader {
 public:
  explicit Loader(const std::vector<std::unique_ptr<io::SafetensorsFile>>& files) : files_(files) {
    for (const char* prefix : {"model.language_model.", "language_model.model.", "model.", ""}) {
      prefix_ = prefix;
      if (find(prefix_ + "embed_tokens.weight")) return;
    }
    prefix_ = "model.";
  }

  const Status& status() const { return status_; }
  std::string name(const std::string& tail) const { return prefix_ + tail; }

  TensorView tensor(const std::string& name, const std::vector<int64_t>& shape) {
    if (!status_.ok()) return {};
    const io::StoredTensor* stored = find(name);
    if (!stored) return fail(name, "a tensor", "none");
    if (stored->shape != shape) {
      return fail(name, fmt::format("shape [{}]", fmt::join(shape, ",")),
                  fmt::format("[{}]", fmt::join(stored->shape, ",")));
    }
    const std::optional<TensorView> view = stored->view();
    if (!view || !is_float(view->dtype)) return fail(name, "dtype F32, BF16 or F16", stored->dtype);
    if (reinterpret_cast<uintptr_t>(view->data) % size_of(view->dtype) != 0) {
      return fail(name, fmt::format("data aligned to {} bytes", size_of(view->dtype)), "another offset");
    }
    return *view;
  }

  Matrix matrix(const std::string& name, int64_t rows, int64_t cols) {
    const TensorView view = tensor(name, {rows, cols});
    return {view.data, view.dtype, rows, cols};
  }

  /// [n] as fp32 with `offset` added.
  std::vector<float> vector(const std::string& name, int64_t n, float offset = 0.0f) {
    const TensorView view = tensor(name, {n});
    std::vector<float> values;
    for (int64_t i = 0; !view.empty() && i < n; ++i) values.push_back(widen(view, i) + offset);
    return values;
  }

 private:
  const io::StoredTensor* find(const std::string& name) const {
    for (const auto& file : files_) {
      if (const io::StoredTensor* stored = file->find(name)) return stored;
    }
    return nullptr;
  }

  TensorView fail(const std::string& name, const std::string& expected, const std::string& found) {
    status_ = {Code::invalid_argument, fmt::format("{}: expected {}, found {}", name, expected, found)};
    return {};
  }

  const std::vector<std::unique_ptr<io::SafetensorsFile>>& files_;
  std::string prefix_;
  Status status_;
};

Status file_names(const std::string& dir, std::set<std::string>* names) {
  std::error_code ignored;
  if (std::filesystem::exists(dir + "/model.safetensors", ignored)) {
    names->insert("model.safetensors");
    return {};
  }
  const std::string path = dir + "/model.safetensors.index.json";
  std::ifstream in(path);
  if (!in) {
    return {Code::not_found,
            fmt::format("{}: expected model.safetensors or model.safetensors.index.json, found neither", dir)};
  }
  const nlohmann::json index = nlohmann::json::parse(in, nullptr, false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return {Code::invalid_argument,
            fmt::format("{}: weight_map: expected an object of tensor names, found none", path)};
  }
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos) {
      return {Code::invalid_argument,
              fmt::format("{}: weight_map: {}: expected a file name, found {}", path, tensor, file.dump())};
    }
    names->insert(file.get<std::string>());
  }
  return {};
}

void load_linear(Loader& load, const std::string& at, const ModelConfig& c, LayerWeights* w) {
  const int64_t hidden = c.hidden_size, heads = c.linear_num_value_heads;
  const std::string mixer = at + "linear_attn.";
  w->in_qkv = load.matrix(mixer + "in_proj_qkv.weight", c.conv_channels(), hidden);
  w->in_z = load.matrix(mixer + "in_proj_z.weight", c.value_dim(), hidden);
  w->in_b = load.matrix(mixer + "in_proj_b.weight", heads, hidden);
  w->in_a = load.matrix(mixer + "in_proj_a.weight", heads, hidden);
  w->out_proj = load.matrix(mixer + "out_proj.weight", hidden, c.value_dim());
  const TensorView conv = load.tensor(mixer + "conv1d.weight", {c.conv_channels(), 1, c.linear_conv_kernel_dim});
  w->conv_weight = TensorView(conv.data, conv.dtype, {c.conv_channels(), c.linear_conv_kernel_dim});
  w->A_log = load.vector(mixer + "A_log", heads);
  w->dt_bias = load.vector(mixer + "dt_bias", heads);
  w->mixer_norm = load.vector(mixer + "norm.weight", c.linear_value_head_dim);
}

void load_attention(Loader& load, const std::string& at, const ModelConfig& c, LayerWeights* w) {
  const std::string mixer = at + "self_attn.";
  w->q_proj = load.matrix(mixer + "q_proj.weight", c.num_attention_heads * 2 * c.head_dim, c.hidden_size);
  w->k_proj = load.matrix(mixer + "k_proj.weight", c.num_key_value_heads * c.head_dim, c.hidden_size);
  w->v_proj = load.matrix(mixer + "v_proj.weight", c.num_key_value_heads * c.head_dim, c.hidden_size);
  w->o_proj = load.matrix(mixer + "o_proj.weight", c.hidden_size, c.num_attention_heads * c.head_dim);
  w->q_norm = load.vector(mixer + "q_norm.weight", c.head_dim, 1.0f);
  w->k_norm = load.vector(mixer + "k_norm.weight", c.head_dim, 1.0f);
}

}  // namespace

Status load_weights(const std::string& dir, const ModelConfig& c, Weights* weights) {
  std::set<std::string> names;
  if (Status s = file_names(dir, &names); !s.ok()) return s;
  Weights w;
  for (const std::string& name : names) {
    if (Status s = io::SafetensorsFile::open(dir + "/" + name, &w.files.emplace_back()); !s.ok()) return s;
  }
  Loader load(w.files);
  w.embedding = load.matrix(load.name("embed_tokens.weight"), c.vocab_size, c.hidden_size);
  w.head = c.tie_word_embeddings ? w.embedding : load.matrix("lm_head.weight", c.vocab_size, c.hidden_size);
  w.final_norm = load.vector(load.name("norm.weight"), c.hidden_size, 1.0f);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const std::string at = load.name(fmt::format("layers.{}.", i));
    LayerWeights& layer = w.layers.emplace_back();
    layer.input_norm = load.vector(at + "input_layernorm.weight", c.hidden_size, 1.0f);
    layer.post_norm = load.vector(at + "post_attention_layernorm.weight", c.hidden_size, 1.0f);
    layer.gate_proj = load.matrix(at + "mlp.gate_proj.weight", c.intermediate_size, c.hidden_size);
    layer.up_proj = load.matrix(at + "mlp.up_proj.weight", c.intermediate_size, c.hidden_size);
    layer.down_proj = load.matrix(at + "mlp.down_proj.weight", c.hidden_size, c.intermediate_size);
    if (c.full_attention[static_cast<size_t>(i)]) {
      load_attention(load, at, c, &layer);
    } else {
      load_linear(load, at, c, &layer);
    }
  }
  if (!load.status().ok()) return {load.status().code(), dir + ": " + load.status().message()};
  *weights = std::move(w);
  return {};
}

}  // namespace ringfold::engine
