#include "cli/case_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/commands.h"
#include "io/safetensors.h"

namespace ringfold::cli {
namespace {

using nlohmann::json;

constexpr const char* kCaseKey = "ringfold_case";
constexpr int64_t kFree = -1;

/// One dimension of an expected shape: its name, and its size or kFree.
struct Dim {
  std::string name;
  int64_t size = kFree;
};

enum class Kind : uint8_t { f32, i32, any_float };

const char* name_of(Kind kind) {
  return kind == Kind::f32 ? "F32" : kind == Kind::i32 ? "I32" : "one of F32, BF16, F16";
}

std::optional<DType> dtype_of(const std::string& name) {
  if (name == "F32") return DType::f32;
  if (name == "BF16") return DType::bf16;
  if (name == "F16") return DType::f16;
  if (name == "I32") return DType::i32;
  return std::nullopt;
}

std::string describe(const std::vector<Dim>& dims) {
  std::vector<std::string> parts;
  for (const Dim& dim : dims) {
    parts.push_back(dim.size == kFree ? dim.name : fmt::format("{}={}", dim.name, dim.size));
  }
  return fmt::format("[{}]", fmt::join(parts, ","));
}

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
        fmt::format("{}: metadata '{}': expected JSON, found an error at byte {}", path, kCaseKey, error.byte));
  } catch (const json::exception&) {
    throw CommandError(fmt::format("{}: metadata '{}': expected JSON, found a number out of range", path, kCaseKey));
  }
  if (!duplicate.empty()) {
    throw CommandError(
        fmt::format("{}: metadata '{}': expected distinct keys, found '{}' twice", path, kCaseKey, duplicate));
  }
  if (!result.is_object()) {
    throw CommandError(fmt::format("{}: metadata '{}': expected an object, found {}", path, kCaseKey, shown(result)));
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

/// Takes the tensors of a file by name, and checks dtype and shape.
class Tensors {
 public:
  Tensors(std::string path, const io::SafetensorsFile& file) : path_(std::move(path)), file_(file) {}

  [[noreturn]] void refuse(const std::string& name, const std::string& expected, const std::string& found) const {
    throw CommandError(fmt::format("{}: tensor '{}': expected {}, found {}", path_, name, expected, found));
  }

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }

  /// Number of dimensions; 0 if there is no such tensor.
  size_t rank(const std::string& name) const { return has(name) ? file_.find(name)->shape.size() : 0; }

  CaseTensor take(const std::string& name, Kind kind, const std::vector<Dim>& dims) {
    const io::StoredTensor* stored = file_.find(name);
    const std::string expected = fmt::format("{} {}", name_of(kind), describe(dims));
    if (stored == nullptr) refuse(name, expected, "no such tensor");
    used_.insert(name);
    const std::string found = fmt::format("{} [{}]", stored->dtype, fmt::join(stored->shape, ","));
    const std::optional<DType> dtype = dtype_of(stored->dtype);
    const bool kind_fits = dtype && (kind == Kind::f32   ? *dtype == DType::f32
                                     : kind == Kind::i32 ? *dtype == DType::i32
                                                         : is_float(*dtype));
    if (!kind_fits || stored->shape.size() != dims.size()) refuse(name, expected, found);
    for (size_t i = 0; i < dims.size(); ++i) {
      if (dims[i].size != kFree && stored->shape[i] != dims[i].size) refuse(name, expected, found);
    }
    return CaseTensor(*dtype, stored->shape, {stored->bytes.begin(), stored->bytes.end()});
  }

  CaseTensor take_if_there(const std::string& name, Kind kind, const std::vector<Dim>& dims) {
    return has(name) ? take(name, kind, dims) : CaseTensor();
  }

  std::vector<std::string> unused() const {
    std::vector<std::string> names;
    for (const io::StoredTensor& tensor : file_.tensors()) {
      if (!used_.contains(tensor.name)) names.push_back(tensor.name);
    }
    return names;
  }

 private:
  std::string path_;
  const io::SafetensorsFile& file_;
  std::set<std::string> used_;
};

void read_description(Description& text, Case& result) {
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

/// Reads the tensors of a case whose description is already in `result`.
class TensorReader {
 public:
  TensorReader(Tensors& tensors, Case& result) : tensors_(tensors), case_(result) {}

  void read() {
    read_parameters();
    for (size_t i = 0; i < case_.steps.size(); ++i) {
      CaseStep& step = case_.steps[i];
      prefix_ = std::to_string(i) + ".";
      if (step.computes()) {
        read_window(step);
      } else if (step.op == StepOp::commit) {
        read_commit(step);
      } else if (step.op == StepOp::reset) {
        step.slot_ids = tensors_.take(prefix_ + "slot_ids", Kind::i32, {{"B"}});
        step.rows = step.slot_ids.shape()[0];
      } else {
        step.src = tensors_.take(prefix_ + "src", Kind::i32, {{"B"}});
        step.rows = step.src.shape()[0];
        step.dst = tensors_.take(prefix_ + "dst", Kind::i32, {{"B", step.rows}});
      }
    }
    if (case_.pool.H == 0) case_.pool.H = case_.pool.HV;
    if (case_.pool.ring_rows == 0) case_.pool.ring_rows = longest_window_;
  }

 private:
  std::vector<Dim> layered(std::vector<Dim> dims) const {
    if (case_.layered) dims.insert(dims.begin(), {"layers", case_.pool.layers});
    return dims;
  }

  void read_parameters() {
    PoolConfig& pool = case_.pool;
    std::vector<Dim> dims = {{"slots"}, {"HV"}, {"V"}, {"K"}};
    case_.layered = tensors_.rank("state") == 5;
    if (case_.layered) dims.insert(dims.begin(), {"layers"});
    case_.state = tensors_.take("state", Kind::any_float, dims);
    const std::vector<int64_t>& shape = case_.state.shape();
    for (size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] < 1) tensors_.refuse("state", "no empty dimension", fmt::format("[{}]", fmt::join(shape, ",")));
    }
    const size_t at = case_.layered ? 1 : 0;
    pool.layers = case_.layered ? shape[0] : 1;
    pool.slots = shape[at];
    pool.HV = shape[at + 1];
    pool.V = shape[at + 2];
    pool.K = shape[at + 3];
    pool.state_dtype = case_.state.dtype();
    case_.A_log = tensors_.take("A_log", Kind::f32, layered({{"HV", pool.HV}}));
    case_.dt_bias = tensors_.take("dt_bias", Kind::f32, layered(per_gate({{"HV", pool.HV}})));
  }

  /// KDA has one gate per key channel.
  std::vector<Dim> per_gate(std::vector<Dim> dims) const {
    if (case_.mixer.kind == MixerKind::kda) dims.push_back({"K", case_.pool.K});
    return dims;
  }

  void read_window(CaseStep& step) {
    PoolConfig& pool = case_.pool;
    step.slot_ids = tensors_.take(prefix_ + "slot_ids", Kind::i32, {{"B"}});
    step.rows = step.slot_ids.shape()[0];
    step.q = tensors_.take(prefix_ + "q", Kind::any_float,
                           layered({{"tokens"}, {"H", pool.H > 0 ? pool.H : kFree}, {"K", pool.K}}));
    const std::vector<int64_t>& shape = step.q.shape();
    const size_t at = case_.layered ? 1 : 0;
    step.tokens = shape[at];
    if (pool.H == 0) set_heads(shape[at + 1], step.q.dtype());
    step.k =
        tensors_.take(prefix_ + "k", Kind::any_float, layered({{"tokens", step.tokens}, {"H", pool.H}, {"K", pool.K}}));
    step.v = tensors_.take(prefix_ + "v", Kind::any_float,
                           layered({{"tokens", step.tokens}, {"HV", pool.HV}, {"V", pool.V}}));
    for (const auto& [name, tensor] : {std::pair{"q", &step.q}, {"k", &step.k}, {"v", &step.v}}) {
      if (tensor->dtype() != pool.act_dtype) {
        tensors_.refuse(prefix_ + name, fmt::format("{} as the other q, k and v", to_string(pool.act_dtype)),
                        to_string(tensor->dtype()));
      }
    }
    step.a =
        tensors_.take(prefix_ + "a", Kind::any_float, layered(per_gate({{"tokens", step.tokens}, {"HV", pool.HV}})));
    step.b = tensors_.take(prefix_ + "b", Kind::any_float, layered({{"tokens", step.tokens}, {"HV", pool.HV}}));
    step.cu_seqlens = tensors_.take_if_there(prefix_ + "cu_seqlens", Kind::i32, {{"B+1", step.rows + 1}});
    check_lengths(step);
    if (step.op != StepOp::decode) last_slot_ids_ = step.slot_ids;
  }

  /// H and the activation dtype are those of the first step that has them.
  void set_heads(int64_t heads, DType act_dtype) {
    if (heads < 1 || case_.pool.HV % heads != 0) {
      tensors_.refuse(prefix_ + "q", fmt::format("H that divides HV={}", case_.pool.HV), fmt::format("H={}", heads));
    }
    case_.pool.H = heads;
    case_.pool.act_dtype = act_dtype;
  }

  /// Tokens agree with the rows. Bad cu_seqlens values are refused row by row when the step runs, not here.
  void check_lengths(const CaseStep& step) {
    int64_t longest = 0;
    if (step.cu_seqlens.absent()) {
      if (step.rows < 1 || step.tokens % step.rows != 0) {
        tensors_.refuse(prefix_ + "q", fmt::format("a multiple of B={} tokens (no cu_seqlens)", step.rows),
                        fmt::format("{} tokens", step.tokens));
      }
      longest = step.tokens / step.rows;
    } else {
      for (int64_t row = 0; row < step.rows; ++row) {
        const int64_t begin = step.cu_seqlens.value(row), end = step.cu_seqlens.value(row + 1);
        if (begin >= 0 && begin <= end && end <= step.tokens) longest = std::max(longest, end - begin);
      }
    }
    if (step.op == StepOp::decode) {
      if (longest > 1) {
        tensors_.refuse(prefix_ + "q", "one token per row for decode", fmt::format("a row of {} tokens", longest));
      }
      return;
    }
    longest_window_ = std::max(longest_window_, longest);
  }

  void read_commit(CaseStep& step) {
    if (tensors_.has(prefix_ + "slot_ids") || last_slot_ids_.absent()) {
      step.slot_ids = tensors_.take(prefix_ + "slot_ids", Kind::i32, {{"B"}});
    } else {
      step.slot_ids = last_slot_ids_;
    }
    step.rows = step.slot_ids.shape()[0];
    const std::vector<Dim> rows = {{"B", step.rows}};
    step.accept = tensors_.take(prefix_ + "accept", Kind::i32, rows);
    if (tensors_.has(prefix_ + "track_slots") || tensors_.has(prefix_ + "track_steps")) {
      step.track_slots = tensors_.take(prefix_ + "track_slots", Kind::i32, rows);
      step.track_steps = tensors_.take(prefix_ + "track_steps", Kind::i32, rows);
    }
  }

  Tensors& tensors_;
  Case& case_;
  std::string prefix_;
  CaseTensor last_slot_ids_;
  int64_t longest_window_ = 1;
};

}  // namespace

const char* to_string(StepOp op) {
  switch (op) {
    case StepOp::verify: return "verify";
    case StepOp::commit: return "commit";
    case StepOp::decode: return "decode";
    case StepOp::verify_snapshot: return "verify_snapshot";
    case StepOp::reset: return "reset";
    case StepOp::copy: return "copy";
  }
  return "?";
}

int32_t CaseTensor::value(int64_t index) const {
  int32_t result = 0;
  std::memcpy(&result, bytes_.data() + index * static_cast<int64_t>(sizeof(result)), sizeof(result));
  return result;
}

TensorView CaseTensor::view() const {
  TensorView result;
  if (absent()) return result;
  result.data = const_cast<std::byte*>(bytes_.data());
  result.dtype = dtype_;
  result.rank = static_cast<int>(shape_.size());
  int64_t stride = 1;
  for (size_t i = shape_.size(); i-- > 0;) {
    result.shape[i] = shape_[i];
    result.stride[i] = stride;
    stride *= shape_[i];
  }
  return result;
}

Case read_case(const std::string& path) {
  std::unique_ptr<io::SafetensorsFile> file;
  require(io::SafetensorsFile::open(path, &file), "");
  const auto found = file->metadata().find(kCaseKey);
  if (found == file->metadata().end()) {
    throw CommandError(
        fmt::format("{}: metadata '{}': expected the description of a case, found none", path, kCaseKey));
  }
  Case result;
  Description text(path, found->second);
  read_description(text, result);
  Tensors tensors(path, *file);
  TensorReader(tensors, result).read();
  result.unused = tensors.unused();
  return result;
}

}  // namespace ringfold::cli
