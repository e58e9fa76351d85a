// Checkpoints that cannot be read are refused by name.
#include <bit>
#include <fstream>

#include <gtest/gtest.h>

#include "tiny_model.h"

namespace ringfold::engine {
namespace {

using testing::TinyModel;

/// The message with which loading fails.
std::string refusal(const TinyModel& model, Code code) {
  model.write();
  std::unique_ptr<Engine> engine;
  const Status s = Engine::load(model.dir(), {}, &engine);
  EXPECT_FALSE(engine);
  EXPECT_EQ(s.code(), code) << s.message();
  EXPECT_EQ(s.message().find('\n'), std::string::npos);
  return s.message();
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Config, ReadsWhatItNeeds) {
  TinyModel model;
  model.config["eos_token_id"] = {0, 7};
  model.write();
  ModelConfig c;
  const Status s = read_config(model.dir(), &c);
  ASSERT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(c.hidden_size, 44);
  EXPECT_EQ(c.linear_layers(), 3);
  EXPECT_EQ(c.attention_layers(), 1);
  EXPECT_TRUE(c.full_attention[1]);
  EXPECT_EQ(c.rotary_dim, 10);
  EXPECT_EQ(c.rope_theta, 10000.0f);
  EXPECT_EQ(c.conv_channels(), 2 * 2 * 12 + 4 * 18);
  EXPECT_TRUE(c.tie_word_embeddings);
  EXPECT_TRUE(c.byte_level());
  EXPECT_EQ(c.eos_token_ids, (std::vector<int32_t>{0, 7}));
}

TEST(Config, EntersANestedTextConfigAndDerivesLayerTypes) {
  TinyModel model;
  nlohmann::json outer = {{"model_type", "qwen3_5"}, {"text_config", model.config}, {"tie_word_embeddings", true}};
  outer["text_config"].erase("tie_word_embeddings");
  outer["text_config"].erase("layer_types");
  model.config = outer;
  model.write();
  ModelConfig c;
  const Status s = read_config(model.dir(), &c);
  ASSERT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(c.full_attention, (std::vector<bool>{false, false, false, true}));
  EXPECT_TRUE(c.tie_word_embeddings);
}

TEST(Config, GenerationConfigNamesTheStopTokens) {
  TinyModel model;
  model.config["eos_token_id"] = 3;
  model.write();
  std::ofstream(model.dir() + "/generation_config.json") << R"({"eos_token_id": [5, 6]})";
  ModelConfig c;
  ASSERT_TRUE(read_config(model.dir(), &c).ok());
  EXPECT_EQ(c.eos_token_ids, (std::vector<int32_t>{5, 6}));
}

TEST(Config, RefusesByKey) {
  struct Case {
    const char* key;
    nlohmann::json value;
    Code code;
    const char* part;
  };
  const Case cases[] = {
      {"model_type", "llama", Code::unsupported,
       "model_type: expected \"qwen3_5_text\" or \"qwen3_5\", found \"llama\""},
      {"model_type", 3, Code::unsupported, "model_type"},
      {"num_experts", 64, Code::unsupported, "mixture of experts"},
      {"hidden_act", "gelu", Code::unsupported, "hidden_act"},
      {"attention_bias", true, Code::unsupported, "attention_bias"},
      {"attn_output_gate", false, Code::unsupported, "attn_output_gate"},
      {"hidden_size", "big", Code::invalid_argument, "hidden_size: expected an integer from 1"},
      {"hidden_size", -1, Code::invalid_argument, "found -1"},
      {"hidden_size", 1.5, Code::invalid_argument, "found 1.5"},
      {"vocab_size", nullptr, Code::invalid_argument, "vocab_size: expected a value, found none"},
      {"linear_conv_kernel_dim", 9, Code::invalid_argument,
       "linear_conv_kernel_dim: expected an integer from 2 to 4, found 9"},
      {"linear_key_head_dim", 512, Code::invalid_argument, "linear_key_head_dim: expected an integer from 1 to 256"},
      {"num_key_value_heads", 3, Code::invalid_argument, "divisor of num_attention_heads = 4, found 3"},
      {"linear_num_key_heads", 3, Code::invalid_argument, "divisor of linear_num_value_heads = 4, found 3"},
      {"layer_types", {"linear_attention"}, Code::invalid_argument, "num_hidden_layers = 4 names"},
      {"layer_types",
       {"linear_attention", "mamba", "full_attention", "full_attention"},
       Code::invalid_argument,
       "found \"mamba\""},
      {"rope_parameters",
       {{"rope_type", "yarn"}, {"rope_theta", 1e4}},
       Code::unsupported,
       "rope_parameters: rope_type"},
      {"rope_parameters", {{"rope_type", "default"}}, Code::invalid_argument, "rope_parameters: rope_theta"},
      {"rope_parameters",
       {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.25}},
       Code::invalid_argument,
       "partial_rotary_factor"},
      {"tie_word_embeddings", "yes", Code::invalid_argument, "tie_word_embeddings: expected true or false"},
      {"eos_token_id", 256, Code::invalid_argument, "eos_token_id"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.part);
    TinyModel model;
    model.config[c.key] = c.value;
    const std::string message = refusal(model, c.code);
    EXPECT_TRUE(has(message, c.part)) << message;
    EXPECT_TRUE(has(message, c.key)) << message;
  }
}

TEST(Config, RefusesMissingAndBrokenFiles) {
  std::unique_ptr<Engine> engine;
  EXPECT_EQ(Engine::load("/nonexistent/model", {}, &engine).code(), Code::not_found);
  TinyModel model;  // an empty directory so far
  EXPECT_EQ(Engine::load(model.dir(), {}, &engine).code(), Code::not_found);
  std::ofstream(model.dir() + "/config.json") << "{ not json";
  EXPECT_EQ(Engine::load(model.dir(), {}, &engine).code(), Code::invalid_argument);
  std::ofstream(model.dir() + "/config.json") << model.config.dump();
  Status s = Engine::load(model.dir(), {}, &engine);
  EXPECT_EQ(s.code(), Code::not_found);
  EXPECT_TRUE(has(s.message(), "model.safetensors")) << s.message();
  std::ofstream(model.dir() + "/model.safetensors") << "short";
  EXPECT_EQ(Engine::load(model.dir(), {}, &engine).code(), Code::invalid_argument);
}

TEST(Weights, RefusesMissingAndMisshapenTensors) {
  {
    TinyModel model;
    model.tensors.erase("model.layers.2.linear_attn.out_proj.weight");
    const std::string message = refusal(model, Code::invalid_argument);
    EXPECT_TRUE(has(message, "model.layers.2.linear_attn.out_proj.weight: expected a tensor, found none")) << message;
  }
  {
    TinyModel model;
    auto& t = model.tensors["model.layers.1.self_attn.q_proj.weight"];
    t.shape = {80, 88};
    const std::string message = refusal(model, Code::invalid_argument);
    EXPECT_TRUE(has(message, "self_attn.q_proj.weight: expected shape [160,44], found [80,88]")) << message;
  }
  {
    TinyModel model;
    model.config["tie_word_embeddings"] = false;
    EXPECT_TRUE(has(refusal(model, Code::invalid_argument), "lm_head.weight: expected a tensor, found none"));
  }
}

/// Logits of a short prompt.
std::vector<float> logits_of(const std::string& dir) {
  std::unique_ptr<Engine> engine;
  EngineOptions options;
  options.threads = 1;
  const Status s = Engine::load(dir, options, &engine);
  EXPECT_TRUE(s.ok()) << s.message();
  if (!engine) return {};
  std::unique_ptr<Sequence> sequence;
  EXPECT_TRUE(engine->create_sequence(&sequence).ok());
  const std::vector<int32_t> prompt = testing::tokens_of("weights");
  const StepRow row{sequence.get(), prompt};
  const float* logits = nullptr;
  EXPECT_TRUE(engine->step({&row, 1}, Mode::decode, Logits::all, &logits).ok());
  return {logits, logits + prompt.size() * 256};
}

TEST(Weights, ShardsPrefixesAndAnUntiedHeadGiveTheSameModel) {
  TinyModel plain;
  plain.write();
  const std::vector<float> expected = logits_of(plain.dir());

  TinyModel sharded;
  sharded.write(true);
  EXPECT_EQ(logits_of(sharded.dir()), expected);

  TinyModel prefixed;
  prefixed.config["tie_word_embeddings"] = false;
  std::map<std::string, testing::DraftTensor> renamed;
  for (const auto& [name, t] : prefixed.tensors) renamed["model.language_model." + name.substr(6)] = t;
  renamed["lm_head.weight"] = prefixed.tensors["model.embed_tokens.weight"];
  renamed["model.visual.patch_embed.weight"] = {{2, 2}, {1, 2, 3, 4}};
  renamed["mtp.fc.weight"] = {{1}, {1}};
  prefixed.tensors = renamed;
  prefixed.write();
  EXPECT_EQ(logits_of(prefixed.dir()), expected);

  TinyModel wide;  // the same values as fp32: what bf16 cut off is zero here too
  wide.dtype = DType::f32;
  for (auto& [name, t] : wide.tensors) {
    if (t.shape.size() < 2) continue;
    for (float& v : t.values) v = std::bit_cast<float>(std::bit_cast<uint32_t>(v) & 0xFFFF0000u);
  }
  wide.write();
  EXPECT_EQ(logits_of(wide.dir()), expected);
}

TEST(Weights, RefusesABrokenIndex) {
  TinyModel model;
  model.write(true);
  std::unique_ptr<Engine> engine;
  std::ofstream(model.dir() + "/model.safetensors.index.json")
      << R"({"weight_map": {"x": "../elsewhere.safetensors"}})";
  EXPECT_TRUE(has(Engine::load(model.dir(), {}, &engine).message(), "weight_map"));
  std::ofstream(model.dir() + "/model.safetensors.index.json") << R"({"weights": 1})";
  EXPECT_TRUE(has(Engine::load(model.dir(), {}, &engine).message(), "weight_map"));
  std::ofstream(model.dir() + "/model.safetensors.index.json") << R"({"weight_map": {"x": "absent.safetensors"}})";
  EXPECT_TRUE(has(Engine::load(model.dir(), {}, &engine).message(), "absent.safetensors"));
}

}  // namespace
}  // namespace ringfold::engine
