#include "cli/case_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "cli/case_description.h"
#include "cli/commands.h"
#include "io/safetensors.h"

namespace ringfold::cli {
namespace {

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

  const std::string& path() const { return path_; }

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
    size_ring();
  }

 private:
  /// With on_commit a window, otherwise a window and a history of another one at most, unless the file says.
  void size_ring() {
    PoolConfig& pool = case_.pool;
    if (pool.fold_policy == FoldPolicy::on_commit) {
      if (pool.ring_rows == 0) pool.ring_rows = longest_window_;
      return;
    }
    const int64_t longest = std::max<int64_t>(1, longest_window_);
    if (pool.ring_rows == 0) pool.ring_rows = std::min<int64_t>(kMaxWindow, 2 * longest);
    if (pool.ring_rows < 2) {
      throw CommandError(fmt::format("{}: key 'ring_rows': expected 2 or more with fold_policy {}, found {}",
                                     tensors_.path(), to_string(pool.fold_policy), pool.ring_rows));
    }
    pool.max_window = std::min(longest, pool.ring_rows - 1);
  }

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
    if (case_.pool.ring_rows == 0 && longest > kMaxWindow) {
      tensors_.refuse(prefix_ + "q", fmt::format("at most {} tokens per row", kMaxWindow), fmt::format("{}", longest));
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
  const auto found = file->metadata().find(kCaseMetadataKey);
  if (found == file->metadata().end()) {
    throw CommandError(
        fmt::format("{}: metadata '{}': expected the description of a case, found none", path, kCaseMetadataKey));
  }
  Case result;
  read_description(path, found->second, &result);
  Tensors tensors(path, *file);
  TensorReader(tensors, result).read();
  result.unused = tensors.unused();
  return result;
}

}  // namespace ringfold::cli
