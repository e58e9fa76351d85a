#include "tiny_model.h"

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "engine/sampling.h"
#include "io/safetensors.h"

namespace ringfold::engine::testing {

TinyModel::TinyModel(uint64_t seed) {
  std::string name = ::testing::TempDir() + "ringfold-tiny-XXXXXX";
  dir_ = mkdtemp(name.data());
  config = {{"model_type", "qwen3_5_text"},
            {"hidden_act", "silu"},
            {"vocab_size", 256},
            {"hidden_size", 44},
            {"intermediate_size", 70},
            {"num_hidden_layers", 4},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"head_dim", 20},
            {"linear_num_key_heads", 2},
            {"linear_num_value_heads", 4},
            {"linear_key_head_dim", 12},
            {"linear_value_head_dim", 18},
            {"linear_conv_kernel_dim", 4},
            {"rms_norm_eps", 1e-6},
            {"tie_word_embeddings", true},
            {"max_position_embeddings", 1024},
            {"eos_token_id", nullptr},
            {"layer_types", {"linear_attention", "full_attention", "linear_attention", "linear_attention"}},
            {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}, {"partial_rotary_factor", 0.5}}}};
  fill(seed);
}

TinyModel::~TinyModel() {
  std::error_code ignored;
  std::filesystem::remove_all(dir_, ignored);
}

void TinyModel::fill(uint64_t seed) {
  int64_t count = 0;
  const auto size = [&](const char* key) { return config[key].get<int64_t>(); };
  // Uniform in center +- spread.
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, float spread, float center = 0) {
    DraftTensor& t = tensors[name];
    t.shape = std::move(shape);
    int64_t n = 1;
    for (int64_t s : t.shape) n *= s;
    const int32_t id = static_cast<int32_t>(++count);
    for (int64_t i = 0; i < n; ++i)
      t.values.push_back(center + spread * static_cast<float>(2 * uniform(seed, i, id) - 1));
  };
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols) {
    add(name, {rows, cols}, 2.5f / std::sqrt(static_cast<float>(cols)));
  };
  const int64_t hidden = size("hidden_size"), inner = size("intermediate_size"), dim = size("head_dim");
  const int64_t heads = size("num_attention_heads"), kv_heads = size("num_key_value_heads");
  const int64_t HV = size("linear_num_value_heads"), K = size("linear_key_head_dim"), V = size("linear_value_head_dim");
  const int64_t channels = 2 * size("linear_num_key_heads") * K + HV * V;
  add("model.embed_tokens.weight", {size("vocab_size"), hidden}, 0.7f);
  add("model.norm.weight", {hidden}, 0.3f);
  for (int64_t l = 0; l < size("num_hidden_layers"); ++l) {
    const std::string at = "model.layers." + std::to_string(l) + ".";
    add(at + "input_layernorm.weight", {hidden}, 0.3f);
    add(at + "post_attention_layernorm.weight", {hidden}, 0.3f);
    matrix(at + "mlp.gate_proj.weight", inner, hidden);
    matrix(at + "mlp.up_proj.weight", inner, hidden);
    matrix(at + "mlp.down_proj.weight", hidden, inner);
    if (config["layer_types"][static_cast<size_t>(l)] == "full_attention") {
      matrix(at + "self_attn.q_proj.weight", heads * 2 * dim, hidden);
      matrix(at + "self_attn.k_proj.weight", kv_heads * dim, hidden);
      matrix(at + "self_attn.v_proj.weight", kv_heads * dim, hidden);
      matrix(at + "self_attn.o_proj.weight", hidden, heads * dim);
      add(at + "self_attn.q_norm.weight", {dim}, 0.3f);
      add(at + "self_attn.k_norm.weight", {dim}, 0.3f);
    } else {
      matrix(at + "linear_attn.in_proj_qkv.weight", channels, hidden);
      matrix(at + "linear_attn.in_proj_z.weight", HV * V, hidden);
      matrix(at + "linear_attn.in_proj_b.weight", HV, hidden);
      matrix(at + "linear_attn.in_proj_a.weight", HV, hidden);
      matrix(at + "linear_attn.out_proj.weight", hidden, HV * V);
      add(at + "linear_attn.conv1d.weight", {channels, 1, size("linear_conv_kernel_dim")}, 0.5f);
      add(at + "linear_attn.A_log", {HV}, 1.0f);
      add(at + "linear_attn.dt_bias", {HV}, 1.0f, -2.0f);
      add(at + "linear_attn.norm.weight", {V}, 0.3f, 1.0f);
    }
  }
}

void TinyModel::write(bool sharded) const {
  std::ofstream(dir_ + "/config.json") << config.dump(2);
  std::vector<std::vector<uint16_t>> narrow;
  std::vector<io::NamedTensor> files[2];
  nlohmann::json index = {{"weight_map", nlohmann::json::object()}};
  const char* names[2] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
  size_t count = 0;
  for (const auto& [name, t] : tensors) {
    TensorView view;
    view.dtype = t.shape.size() > 1 ? dtype : DType::f32;
    view.data = const_cast<float*>(t.values.data());
    if (view.dtype == DType::bf16) {
      auto& bits = narrow.emplace_back();
      for (const float v : t.values) bits.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16));
      view.data = bits.data();
    }
    view.rank = static_cast<int>(t.shape.size());
    int64_t stride = 1;
    for (int d = view.rank; d-- > 0;) {
      view.shape[static_cast<size_t>(d)] = t.shape[static_cast<size_t>(d)];
      view.stride[static_cast<size_t>(d)] = stride;
      stride *= t.shape[static_cast<size_t>(d)];
    }
    const size_t shard = sharded ? count++ % 2 : 0;
    files[shard].push_back({name, view});
    index["weight_map"][name] = names[shard];
  }
  if (!sharded) {
    const Status s = io::write_safetensors(dir_ + "/model.safetensors", files[0], {});
    ASSERT_TRUE(s.ok()) << s.message();
    return;
  }
  for (size_t i = 0; i < 2; ++i) {
    const Status s = io::write_safetensors(dir_ + "/" + names[i], files[i], {});
    ASSERT_TRUE(s.ok()) << s.message();
  }
  std::ofstream(dir_ + "/model.safetensors.index.json") << index.dump(2);
}

std::unique_ptr<Engine> TinyModel::engine(const EngineOptions& options) const {
  write();
  std::unique_ptr<Engine> engine;
  EngineOptions own = options;
  if (own.threads == 0) own.threads = 1;  // nothing here is large enough for two
  const Status s = Engine::load(dir_, own, &engine);
  EXPECT_TRUE(s.ok()) << s.message();
  return engine;
}

std::vector<int32_t> tokens_of(const std::string& text) {
  std::vector<int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

}  // namespace ringfold::engine::testing
