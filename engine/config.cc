#include "engine/config.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "ringfold/types.h"

namespace ringfold::engine {

namespace {

using Json = nlohmann::json;

std::string brief(const Json& value) {
  std::string text = value.dump();
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

/// Reads keys of one JSON object; remembers the first error, after which reads do nothing.
class Reader {
 public:
  Reader(const Json& object, std::string file) : object_(object), file_(std::move(file)) {}

  const Status& status() const { return status_; }

  void integer(const char* key, int64_t low, int64_t high, int64_t* out) {
    const Json* value = required(key);
    if (!value) return;
    if (!value->is_number_integer() || value->get<double>() < static_cast<double>(low) ||
        value->get<double>() > static_cast<double>(high)) {
      return fail(key, fmt::format("an integer from {} to {}", low, high), *value);
    }
    *out = value->get<int64_t>();
  }

  void number(const char* key, double low, double high, float* out) {
    const Json* value = required(key);
    if (!value) return;
    if (!value->is_number() || !(value->get<double>() >= low && value->get<double>() <= high)) {
      return fail(key, fmt::format("a number from {} to {}", low, high), *value);
    }
    *out = value->get<float>();
  }

  /// An optional key that must have this value where it is present.
  void only(const char* key, const Json& expected, const char* why) {
    if (!status_.ok() || !object_.contains(key) || object_[key].is_null() || object_[key] == expected) return;
    status_ = {Code::unsupported, fmt::format("{}: {}: expected {}, found {} ({})", file_, key, expected.dump(),
                                              brief(object_[key]), why)};
  }

  void absent(const char* key, const char* why) {
    if (!status_.ok() || !object_.contains(key) || object_[key].is_null()) return;
    if (object_[key].is_number() && object_[key].get<double>() == 0) return;
    status_ = {Code::unsupported,
               fmt::format("{}: {}: expected no such key, found {} ({})", file_, key, brief(object_[key]), why)};
  }

  const Json* required(const char* key) {
    if (!status_.ok()) return nullptr;
    if (object_.contains(key) && !object_[key].is_null()) return &object_[key];
    status_ = {Code::invalid_argument, fmt::format("{}: {}: expected a value, found none", file_, key)};
    return nullptr;
  }

  void fail(const char* key, const std::string& expected, const Json& found) {
    if (status_.ok()) {
      status_ = {Code::invalid_argument,
                 fmt::format("{}: {}: expected {}, found {}", file_, key, expected, brief(found))};
    }
  }

 private:
  const Json& object_;
  std::string file_;
  Status status_;
};

Status read_json(const std::string& path, Json* json) {
  std::ifstream in(path);
  if (!in) return {Code::not_found, fmt::format("{}: cannot be opened", path)};
  *json = Json::parse(in, nullptr, false);
  if (!json->is_object())
    return {Code::invalid_argument, fmt::format("{}: expected a JSON object, found something else", path)};
  return {};
}

void read_layer_types(const Json& json, Reader& r, ModelConfig* c) {
  if (!json.contains("layer_types") || json["layer_types"].is_null()) {
    int64_t interval = 4;
    if (json.contains("full_attention_interval")) r.integer("full_attention_interval", 1, 1024, &interval);
    for (int64_t i = 1; i <= c->num_hidden_layers; ++i) c->full_attention.push_back(i % interval == 0);
    return;
  }
  const Json& types = json["layer_types"];
  if (!types.is_array() || static_cast<int64_t>(types.size()) != c->num_hidden_layers) {
    return r.fail("layer_types", fmt::format("a list of num_hidden_layers = {} names", c->num_hidden_layers), types);
  }
  for (const Json& type : types) {
    if (type != "full_attention" && type != "linear_attention") {
      return r.fail("layer_types", "\"linear_attention\" or \"full_attention\"", type);
    }
    c->full_attention.push_back(type == "full_attention");
  }
}

/// New checkpoints nest the rope settings in rope_parameters; older ones have them at the top, where the type is in
/// rope_scaling.
Status read_rope(const Json& json, const std::string& path, ModelConfig* c) {
  const bool nested = json.contains("rope_parameters") && json["rope_parameters"].is_object();
  const Json& rope = nested ? json["rope_parameters"] : json;
  Reader r(rope, nested ? path + ": rope_parameters" : path);
  r.only("rope_type", "default", "only the plain rotary embedding is built");
  if (!nested) r.absent("rope_scaling", "only the plain rotary embedding is built");
  float factor = 0.25f;
  r.number("rope_theta", 1, 1e12, &c->rope_theta);
  if (rope.contains("partial_rotary_factor")) {
    r.number("partial_rotary_factor", 0, 1, &factor);
  } else if (json.contains("partial_rotary_factor")) {
    Reader outer(json, path);
    outer.number("partial_rotary_factor", 0, 1, &factor);
    if (!outer.status().ok()) return outer.status();
  }
  c->rotary_dim = static_cast<int64_t>(static_cast<float>(c->head_dim) * factor);
  if (r.status().ok() && c->rotary_dim % 2 != 0) {
    r.fail("partial_rotary_factor", fmt::format("an even number of rotated dimensions of head_dim = {}", c->head_dim),
           factor);
  }
  return r.status();
}

Status read_eos(const Json& json, const std::string& path, ModelConfig* c) {
  if (!json.contains("eos_token_id") || json["eos_token_id"].is_null()) return {};
  const Json& value = json["eos_token_id"];
  const std::vector<Json> ids = value.is_array() ? value.get<std::vector<Json>>() : std::vector<Json>{value};
  c->eos_token_ids.clear();
  for (const Json& id : ids) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= c->vocab_size) {
      return {Code::invalid_argument,
              fmt::format("{}: eos_token_id: expected token ids below vocab_size = {}, found {}", path, c->vocab_size,
                          brief(value))};
    }
    c->eos_token_ids.push_back(id.get<int32_t>());
  }
  return {};
}

}  // namespace

int64_t ModelConfig::linear_layers() const { return std::count(full_attention.begin(), full_attention.end(), false); }

Status read_config(const std::string& dir, ModelConfig* config) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(dir, ignored)) {
    return {Code::not_found, fmt::format("{}: expected the directory of a checkpoint, found none", dir)};
  }
  const std::string path = dir + "/config.json";
  Json whole;
  if (Status s = read_json(path, &whole); !s.ok()) return s;
  const bool nested = whole.contains("text_config") && whole["text_config"].is_object();
  const Json& json = nested ? whole["text_config"] : whole;
  const std::string type = json.value("model_type", Json()).is_string() ? json["model_type"].get<std::string>() : "";
  if (type != "qwen3_5" && type != "qwen3_5_text") {
    return {Code::unsupported, fmt::format("{}: model_type: expected \"qwen3_5_text\" or \"qwen3_5\", found {}", path,
                                           json.contains("model_type") ? brief(json["model_type"]) : "none")};
  }

  ModelConfig c;
  constexpr int64_t kMany = int64_t{1} << 24;
  Reader r(json, path);
  r.absent("num_experts", "mixture of experts is not built");
  r.only("hidden_act", "silu", "only SiLU is built");
  r.only("attention_bias", false, "projections with a bias are not built");
  r.only("attn_output_gate", true, "attention without an output gate is not built");
  r.integer("vocab_size", 2, kMany, &c.vocab_size);
  r.integer("hidden_size", 1, kMany, &c.hidden_size);
  r.integer("intermediate_size", 1, kMany, &c.intermediate_size);
  r.integer("num_hidden_layers", 1, 4096, &c.num_hidden_layers);
  r.integer("num_attention_heads", 1, 4096, &c.num_attention_heads);
  r.integer("num_key_value_heads", 1, 4096, &c.num_key_value_heads);
  r.integer("head_dim", 1, 4096, &c.head_dim);
  r.integer("linear_num_key_heads", 1, 4096, &c.linear_num_key_heads);
  r.integer("linear_num_value_heads", 1, 4096, &c.linear_num_value_heads);
  r.integer("linear_key_head_dim", 1, kMaxHeadDim, &c.linear_key_head_dim);
  r.integer("linear_value_head_dim", 1, kMaxHeadDim, &c.linear_value_head_dim);
  r.integer("linear_conv_kernel_dim", kMinConvWidth, kMaxConvWidth, &c.linear_conv_kernel_dim);
  r.number("rms_norm_eps", 0, 1, &c.rms_norm_eps);
  r.integer("max_position_embeddings", 1, int64_t{1} << 40, &c.max_position_embeddings);
  if (!r.status().ok()) return r.status();
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    r.fail("num_key_value_heads", fmt::format("a divisor of num_attention_heads = {}", c.num_attention_heads),
           c.num_key_value_heads);
  }
  if (c.linear_num_value_heads % c.linear_num_key_heads != 0) {
    r.fail("linear_num_key_heads", fmt::format("a divisor of linear_num_value_heads = {}", c.linear_num_value_heads),
           c.linear_num_key_heads);
  }
  read_layer_types(json, r, &c);
  const Json& tied = json.contains("tie_word_embeddings") ? json : whole;
  if (tied.contains("tie_word_embeddings")) {
    if (!tied["tie_word_embeddings"].is_boolean()) {
      r.fail("tie_word_embeddings", "true or false", tied["tie_word_embeddings"]);
    } else {
      c.tie_word_embeddings = tied["tie_word_embeddings"].get<bool>();
    }
  }
  if (!r.status().ok()) return r.status();
  if (Status s = read_rope(json, path, &c); !s.ok()) return s;
  if (Status s = read_eos(json, path, &c); !s.ok()) return s;
  const std::string generation = dir + "/generation_config.json";
  if (std::filesystem::exists(generation, ignored)) {
    Json more;
    if (Status s = read_json(generation, &more); !s.ok()) return s;
    if (Status s = read_eos(more, generation, &c); !s.ok()) return s;
  }
  *config = std::move(c);
  return {};
}

}  // namespace ringfold::engine
