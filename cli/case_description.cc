#include "cli/case_description.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "cli/commands.h"

namespace ringfold::cli {
namespace {

using nlohmann::json;

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() > 80 ? text.substr(0, 77) + "..." : text;
}

json parse_json(const std::string& path, const std::string& text) {
  std::vector<std::set<std::string>> open_objects;
  std::string duplicate;
  const auto watch = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) {
      open_objects.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      open_objects.pop_back();
    } else if (event == json::parse_event_t::key && !open_objects.back().insert(value.get<std::string>()).second) {
      duplicate = value.get<std::string>();
    }
    return true;
  };
  json result;
  try {
    result = json::parse(text, watch);
  } catch (const json::parse_error& error) {
    throw CommandError(
        fmt::format("{}: metadata '{}': expected JSON, found an error at byte {}", path, kCaseMetadataKey, error.byte));
  } catch (const json::exception&) {
    throw CommandError(
        fmt::format("{}: metadata '{}': expected JSON, found a number out of range", path, kCaseMetadataKey));
  }
  if (!duplicate.empty()) {
    throw CommandError(
        fmt::format("{}: metadata '{}': expected distinct keys, found '{}' twice", path, kCaseMetadataKey, duplicate));
  }
  if (!result.is_object()) {
    throw CommandError(
        fmt::format("{}: metadata '{}': expected an object, found {}", path, kCaseMetadataKey, shown(result)));
  }
  return result;
}

/// The description under the metadata key, key by key.
class Description {
 public:
  Description(std::string path, const std::string& text) : path_(std::move(path)), json_(parse_json(path_, text)) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& expected, const std::string& found) const {
    throw CommandError(fmt::format("{}: key '{}': expected {}, found {}", path_, key, expected, found));
  }

  /// The value, or null if the key is absent and may be.
  const json& get(const char* key, bool required = false) {
    known_.insert(key);
    static const json null;
    const auto found = json_.find(key);
    if (found != json_.end()) return *found;
    if (required) refuse(key, "a value", "none");
    return null;
  }

  std::optional<float> number(const char* key) {
    const json& value = get(key);
    if (value.is_null()) return std::nullopt;
    if (!value.is_number()) refuse(key, "a number or null", shown(value));
    const float result = value.get<float>();
    if (!std::isfinite(result)) refuse(key, "a number within the range of float", shown(value));
    return result;
  }

  bool boolean(const char* key, bool fallback) {
    const json& value = get(key);
    if (value.is_null()) return fallback;
    if (!value.is_boolean()) refuse(key, "true or false", shown(value));
    return value.get<bool>();
  }

  int64_t integer(const char* key, int64_t low, int64_t high, int64_t fallback) {
    const json& value = get(key);
    if (value.is_null()) return fallback;
    const std::string expected = fmt::format("an integer from {} to {}, or null", low, high);
    if (!value.is_number_integer()) refuse(key, expected, shown(value));
    const bool too_big = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(high);
    if (too_big || value.get<int64_t>() < low || value.get<int64_t>() > high) refuse(key, expected, shown(value));
    return value.get<int64_t>();
  }

  /// A name of the enumeration, one of `names`.
  template <class Enum>
  Enum name(const char* key, const std::string& names, std::optional<Enum> fallback) {
    const json& value = get(key, !fallback.has_value());
    if (value.is_null() && fallback) return *fallback;
    std::optional<Enum> result;
    if (value.is_string()) result = parse<Enum>(value.get<std::string>());
    if (!result) refuse(key, names, shown(value));
    return *result;
  }

  /// Every key was asked for by now; another one is a misspelling whose effect would be missing.
  void refuse_unknown_keys() const {
    for (const auto& [key, value] : json_.items()) {
      if (!known_.contains(key)) refuse(key, fmt::format("one of {}", fmt::join(known_, ", ")), "an unknown key");
    }
  }

 private:
  std::string path_;
  json json_;
  std::set<std::string> known_;
};

std::optional<StepOp> parse_step_op(const json& value) {
  if (!value.is_string()) return std::nullopt;
  for (StepOp op :
       {StepOp::verify, StepOp::commit, StepOp::decode, StepOp::verify_snapshot, StepOp::reset, StepOp::copy}) {
    if (value.get<std::string>() == to_string(op)) return op;
  }
  return std::nullopt;
}

}  // namespace

void read_description(const std::string& path, const std::string& json_text, Case* out) {
  Case& result = *out;
  Description text(path, json_text);
  const json& number = text.get("version", true);
  if (!number.is_number_integer() || number != 1) text.refuse("version", "1", shown(number));
  result.mixer.kind = text.name<MixerKind>("mixer", "gdn or kda", std::nullopt);
  result.mixer.softplus_beta = text.number("softplus_beta").value_or(result.mixer.softplus_beta);
  result.mixer.softplus_threshold = text.number("softplus_threshold").value_or(result.mixer.softplus_threshold);
  result.mixer.lower_bound = text.number("lower_bound");
  result.mixer.scale = text.number("scale");
  result.mixer.qk_l2norm = text.boolean("qk_l2norm", true);
  result.numerics = text.name<Numerics>("numerics", "exact or fast", Numerics::exact);
  result.pool.kind = result.mixer.kind;
  result.pool.qk_l2norm = result.mixer.qk_l2norm;
  result.pool.state_rounding =
      text.name<StateRounding>("state_rounding", "per_commit or per_token", StateRounding::per_commit);
  result.pool.fold_policy =
      text.name<FoldPolicy>("fold_policy", "on_commit, on_next_verify or lazy", FoldPolicy::on_commit);
  result.pool.ring_rows = text.integer("ring_rows", 1, kMaxWindow, 0);

  const json& steps = text.get("steps", true);
  if (!steps.is_array()) text.refuse("steps", "an array of objects", shown(steps));
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string key = fmt::format("steps[{}]", i);
    if (!steps[i].is_object() || !steps[i].contains("op") || steps[i].size() != 1) {
      text.refuse(key, "an object with the key 'op' alone", shown(steps[i]));
    }
    const std::optional<StepOp> op = parse_step_op(steps[i]["op"]);
    if (!op) {
      text.refuse(key + ".op", "verify, commit, decode, verify_snapshot, reset or copy", shown(steps[i]["op"]));
    }
    result.steps.emplace_back().op = *op;
  }
  text.refuse_unknown_keys();
}

}  // namespace ringfold::cli
