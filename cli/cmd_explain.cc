// ringfold explain: what would run, why, and what it costs.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/commands.h"
#include "cli/step_table.h"
#include "ringfold/pool.h"
#include "ringfold/registry.h"

namespace ringfold::cli {
namespace {

constexpr const char* kFooter =
    R"(Traffic is bytes of state and ring per step and request, for each fold policy, next to storing
one state per draft token. --policy says which one the request has.
Bytes held count the short conv of the layer (--channels 0: it has none); bytes moved leave it out.
For a verify, what a step is predicted to cost under each policy, with the best ring for lazy; * is what the library
would choose. --machine asks for another machine than this one.
Examples:
  ringfold explain --preset qwen3.5-35b --window 4 --rows 32
  ringfold explain --op fold --mixer kda --shape 32,32,128,128 --state bf16 --act bf16
  ringfold explain --preset qwen3.5-35b --policy lazy --accepted 2.5
  ringfold explain --preset qwen3.5-35b --rows 256 --numerics fast --machine h200
  ringfold explain --preset qwen3.5-35b --slots 4096 --rows 256
  ringfold explain --preset kimi-linear --impl reference --json)";

/// Published shapes of one recurrent layer, and how many such layers the model has (1 where only the layer is
/// described).
struct Preset {
  MixerKind kind;
  int64_t H, HV, K, V;
  int64_t layers;
  const char* what;
};

const std::map<std::string, Preset>& presets() {
  static const std::map<std::string, Preset> table = {
      {"qwen3.5-35b", {MixerKind::gdn, 16, 32, 128, 128, 30, "Qwen3.5-35B-A3B, 30 recurrent layers"}},
      {"qwen3.5-27b", {MixerKind::gdn, 16, 48, 128, 128, 48, "Qwen3.5-27B, 48 recurrent layers"}},
      {"kimi-linear", {MixerKind::kda, 32, 32, 128, 128, 20, "Kimi-Linear-48B-A3B, 20 recurrent layers"}},
      {"k3-tp8", {MixerKind::kda, 12, 12, 128, 128, 1, "Kimi K3 on 8 devices, one layer of one device"}},
  };
  return table;
}

constexpr int64_t kAsShape = -1;

struct ExplainCommand {
  std::string op = "verify", mixer = "gdn", state = "f32", act = "bf16", numerics = "exact", rounding = "per_commit",
              policy = "on_commit", device = "cpu", preset, ring_a, impl, machine;
  std::vector<int64_t> shape;
  int64_t window = 4, rows = 1, ring_rows = 0, layers = 0, channels = kAsShape, conv_width = 4;
  int threads = 0;
  int64_t most_ring_bytes = 0, slots = 0, rings = 0;
  double accepted = 3.0;
  bool json = false;
};

template <class Enum>
Enum value_of(const char* option, const std::string& name, const char* expected) {
  const std::optional<Enum> value = parse<Enum>(name);
  if (!value) throw CommandError(fmt::format("{}: expected {}, found '{}'", option, expected, name));
  return *value;
}

/// q, k and v go through the conv together.
int64_t channels_of(const ExplainCommand& command, const Desc& desc) {
  return command.channels == kAsShape ? 2 * desc.H * desc.K + desc.HV * desc.V : command.channels;
}

/// The request, and the number of layers of the model in *layers.
Desc make_desc(const ExplainCommand& command, int64_t* layers) {
  Desc desc;
  desc.op =
      value_of<Op>("--op", command.op, "verify, decode, fold, conv_verify, conv_decode, conv_commit or gated_norm");
  desc.kind = value_of<MixerKind>("--mixer", command.mixer, "gdn or kda");
  desc.state_dtype = value_of<DType>("--state", command.state, "f32, bf16 or f16");
  desc.act_dtype = value_of<DType>("--act", command.act, "f32, bf16 or f16");
  desc.numerics = value_of<Numerics>("--numerics", command.numerics, "exact or fast");
  desc.state_rounding = value_of<StateRounding>("--rounding", command.rounding, "per_commit or per_token");
  desc.fold_policy = value_of<FoldPolicy>("--policy", command.policy, "on_commit, on_next_verify or lazy");
  desc.device = value_of<Device>("--device", command.device, "cpu or cuda");
  if (!command.ring_a.empty()) desc.ring_a = value_of<DType>("--ring-a", command.ring_a, "f32, bf16 or f16");
  std::array<int64_t, 4> shape = {16, 32, 128, 128};
  *layers = 1;
  if (!command.preset.empty()) {
    const auto found = presets().find(command.preset);
    if (found == presets().end()) {
      std::string names;
      for (const auto& [name, preset] : presets()) names += (names.empty() ? "" : ", ") + name;
      throw CommandError(fmt::format("--preset: expected one of {}, found '{}'", names, command.preset));
    }
    const Preset& preset = found->second;
    desc.kind = preset.kind;
    shape = {preset.H, preset.HV, preset.K, preset.V};
    *layers = preset.layers;
  }
  if (desc.ring_a && desc.kind != MixerKind::kda) throw CommandError("--ring-a: expected a mixer kda, found gdn");
  if (!command.shape.empty()) std::copy_n(command.shape.begin(), 4, shape.begin());
  if (command.layers > 0) *layers = command.layers;
  for (int64_t size : shape) {
    if (size < 1 || size > 1 << 20) {
      throw CommandError(fmt::format("--shape: expected H,HV,K,V from 1 to {}, found {}", 1 << 20, size));
    }
  }
  desc.H = shape[0];
  desc.HV = shape[1];
  desc.K = shape[2];
  desc.V = shape[3];
  desc.rows = command.rows;
  desc.window = command.window;
  if (desc.fold_policy != FoldPolicy::on_commit) {
    desc.history_rows = command.ring_rows > 0 ? command.ring_rows : std::min<int64_t>(2 * desc.window, kMaxWindow);
  } else if (command.ring_rows > 0) {
    throw CommandError("--ring-rows: expected a --policy that keeps a history, found on_commit");
  }
  const bool all_layers = desc.op == Op::fold || desc.op == Op::conv_commit;
  desc.layers = all_layers ? *layers : 1;
  const bool conv = desc.op == Op::conv_verify || desc.op == Op::conv_decode || desc.op == Op::conv_commit;
  if (conv && command.channels == 0) throw CommandError("--channels: expected 1 or more for a conv operation, found 0");
  if (is_layer(desc.op)) desc.channels = 2 * desc.H * desc.K + desc.HV * desc.V;
  if (conv) desc.channels = channels_of(command, desc);
  desc.conv_width = command.conv_width;
  desc.threads = command.threads;
  if (command.rings > 0 && command.slots == 0) throw CommandError("--rings: expected --slots beside it, found nothing");
  if (command.rings > 0 && desc.fold_policy != FoldPolicy::on_commit) {
    throw CommandError(fmt::format("--rings: expected --policy on_commit, found {}", command.policy));
  }
  if (desc.op != Op::verify && (!command.machine.empty() || command.most_ring_bytes > 0)) {
    throw CommandError(fmt::format("--machine, --most-ring-bytes: expected --op verify, found {}", command.op));
  }
  return desc;
}

/// One line of the footprint table.
struct Cost {
  const char* key;
  std::string label;
  int64_t bytes;
};

std::vector<Cost> storage_of(const Desc& desc, const Footprint& f) {
  const int64_t window = desc.window;
  const int64_t conv_ring = window * f.conv_ring_row_bytes;
  std::vector<Cost> costs = {{"state_bytes", "state, one checkpoint", f.state_bytes},
                             {"ring_row_bytes", "ring, one row", f.ring_row_bytes},
                             {"ring_bytes", fmt::format("ring, {} rows", window), f.ring_bytes}};
  if (desc.kind == MixerKind::kda) {  // the ring may keep the gate in two forms: the other one
    Desc other = desc;
    other.ring_a = desc.ring_a ? std::nullopt : std::optional(desc.act_dtype);
    const char* gate = desc.ring_a ? "g, f32" : "a";
    const std::string dtype = desc.ring_a ? "" : std::string(", ") + to_string(*other.ring_a);
    costs.push_back({desc.ring_a ? "ring_bytes_with_g" : "ring_bytes_with_a",
                     fmt::format("  were its gate kept as {}{}", gate, dtype), footprint(other).ring_bytes});
  }
  if (f.conv_ring_row_bytes > 0) {
    costs.push_back({"conv_state_bytes", "short conv, its window", f.conv_state_bytes});
    costs.push_back({"conv_ring_row_bytes", "short conv, one ring row", f.conv_ring_row_bytes});
    costs.push_back({"conv_ring_bytes", fmt::format("short conv, {} ring rows", window), conv_ring});
  }
  costs.push_back(
      {"slot_bytes", "slot: state, ring, short conv", f.state_bytes + f.ring_bytes + f.conv_state_bytes + conv_ring});
  costs.push_back(
      {"snapshot_bytes", fmt::format("instead of the ring: state per draft, {} states", window), f.snapshot_bytes});
  return costs;
}

std::vector<Cost> traffic_of(const Footprint& f) {
  return {{"on_commit", "on_commit", f.step_on_commit},
          {"on_next_verify", "on_next_verify", f.step_on_next_verify},
          {"lazy", "lazy", f.step_lazy},
          {"snapshot", "state per draft", f.step_snapshot}};
}

/// What a pool of all layers takes, with a ring for each slot, and where it may have them, with some rings.
struct PoolTable {
  int64_t slots = 0, rings = 0;
  PoolBytes by_slot;
  std::optional<PoolBytes> by_row;
};

PoolTable make_pool_table(const ExplainCommand& command, const Desc& desc, int64_t layers) {
  const bool history = desc.fold_policy != FoldPolicy::on_commit;
  PoolConfig config = {.layers = layers,
                       .slots = command.slots,
                       .H = desc.H,
                       .HV = desc.HV,
                       .K = desc.K,
                       .V = desc.V,
                       .kind = desc.kind,
                       .state_dtype = desc.state_dtype,
                       .act_dtype = desc.act_dtype,
                       .ring_rows = history ? desc.history_rows : desc.window,
                       .max_window = desc.window,
                       .conv_channels = channels_of(command, desc),
                       .conv_width = desc.conv_width,
                       .state_rounding = desc.state_rounding,
                       .fold_policy = desc.fold_policy,
                       .ring_a = desc.ring_a,
                       .device = desc.device};
  PoolTable table{
      .slots = command.slots, .rings = command.rings > 0 ? command.rings : command.rows, .by_slot = {}, .by_row = {}};
  require(pool_bytes(config, &table.by_slot), "");
  if (history) return table;
  config.rings = table.rings;
  require(pool_bytes(config, &table.by_row.emplace()), "");
  return table;
}

struct PoolLine {
  const char* key;
  size_t by_slot, by_row;
};
std::vector<PoolLine> lines_of(const PoolTable& table) {
  const PoolBytes &a = table.by_slot, b = table.by_row.value_or(PoolBytes());
  return {{"state", a.state, b.state},       {"ring", a.ring, b.ring},          {"conv", a.conv, b.conv},
          {"cursors", a.cursors, b.cursors}, {"scratch", a.scratch, b.scratch}, {"total", a.total(), b.total()}};
}

nlohmann::json to_json(const PoolTable& table) {
  nlohmann::json result = {{"slots", table.slots}}, by_slot, by_row;
  for (const PoolLine& line : lines_of(table)) by_slot[line.key] = line.by_slot, by_row[line.key] = line.by_row;
  result["ring_per_slot"] = by_slot;
  if (table.by_row) result["rings"] = table.rings, result["ring_per_row"] = by_row;
  return result;
}

void print_text(const PoolTable& table) {
  fmt::print("{:<52} {:>14} {:>16}\n", fmt::format("bytes of a pool of {} slots, all layers", table.slots),
             "a ring per slot", table.by_row ? fmt::format("{} rings", table.rings) : "");
  for (const PoolLine& line : lines_of(table)) {
    const std::string by_row = table.by_row ? fmt::format("{}", line.by_row) : "";
    fmt::print("  {:<50} {:>15} {:>16}\n", line.key, line.by_slot, by_row);
  }
}

nlohmann::json to_json(const Explanation& e, const Status& status, int64_t layers) {
  nlohmann::json candidates = nlohmann::json::array();
  for (const Candidate& c : e.candidates) {
    candidates.push_back({{"impl", c.impl}, {"serves", c.serves}, {"reason", c.reason}});
  }
  nlohmann::json result = {{"desc", to_string(e.desc)}, {"candidates", candidates}};
  if (!status.ok()) {
    result["error"] = status.message();
    return result;
  }
  result["plan"] = {
      {"impl", e.plan.impl},       {"tasks", e.plan.tasks},           {"v_parts", e.plan.v_parts},
      {"threads", e.plan.threads}, {"bytes_read", e.plan.bytes_read}, {"bytes_written", e.plan.bytes_written},
      {"fmas", e.plan.fmas}};
  nlohmann::json per_layer, per_request, traffic;
  for (const Cost& cost : storage_of(e.desc, e.footprint)) {
    per_layer[cost.key] = cost.bytes;
    per_request[cost.key] = cost.bytes * layers;
  }
  for (const Cost& cost : traffic_of(e.footprint)) traffic[cost.key] = cost.bytes * layers;
  result["layers"] = layers;
  result["per_layer"] = per_layer;
  result["per_request"] = per_request;
  result["traffic_per_step"] = traffic;
  return result;
}

void print_costs(const std::vector<Cost>& costs, int64_t layers) {
  for (const Cost& cost : costs) fmt::print("  {:<50} {:>14} {:>16}\n", cost.label, cost.bytes, cost.bytes * layers);
}

void print_text(const Explanation& e, const Status& status, int64_t layers) {
  fmt::print("request     {}\n", to_string(e.desc));
  for (size_t i = 0; i < e.candidates.size(); ++i) {
    const Candidate& c = e.candidates[i];
    fmt::print("{:<11} {:<12} {:<4} {}\n", i == 0 ? "candidates" : "", c.impl, c.serves ? "yes" : "no", c.reason);
  }
  if (!status.ok()) return;
  fmt::print("plan        {}\n\n", to_string(e.plan));
  fmt::print("{:<52} {:>14} {:>16}\n", "bytes held per request", "one layer", fmt::format("{} layers", layers));
  print_costs(storage_of(e.desc, e.footprint), layers);
  fmt::print("bytes of state and ring moved per step and request\n");
  print_costs(traffic_of(e.footprint), layers);
}

void run_command(const ExplainCommand& command) {
  int64_t layers = 1;
  Desc desc = make_desc(command, &layers);
  std::optional<StepTable> steps;
  if (desc.op == Op::verify) {
    steps = make_step_table(desc, command.accepted, layers, command.machine, command.most_ring_bytes);
    desc.device = steps->desc.device;
  }
  Explanation explanation;
  const Status status = explain(desc, command.impl, &explanation);
  // Another machine may do what this one cannot.
  const bool elsewhere = !command.machine.empty() && status.code() == Code::unsupported;
  if (!status.ok()) explanation.desc = desc;
  if (status.ok()) {
    Desc layer = desc;
    layer.channels = channels_of(command, desc);
    explanation.footprint = footprint(layer, command.accepted);
  }
  std::optional<PoolTable> pool;
  if (status.ok() && command.slots > 0) pool = make_pool_table(command, desc, layers);
  if (status.ok() || !explanation.candidates.empty()) {
    if (command.json) {
      nlohmann::json result = to_json(explanation, status, layers);
      if (pool) result["pool"] = to_json(*pool);
      if (steps && (status.ok() || elsewhere)) result["steps"] = to_json(*steps);
      fmt::print("{}\n", result.dump());
    } else {
      print_text(explanation, status, layers);
      if (pool) print_text(*pool);
      if (steps && (status.ok() || elsewhere)) print_text(*steps);
    }
    std::fflush(stdout);
  }
  if (!elsewhere) require(status, "");
}

std::string preset_help() {
  std::string text = "shape of a model's recurrent layers:";
  for (const auto& [name, preset] : presets()) text += fmt::format("\n  {}: {}", name, preset.what);
  return text;
}

}  // namespace

void add_explain(CLI::App& app, int* exit_code) {
  auto command = std::make_shared<ExplainCommand>();
  CLI::App* sub = app.add_subcommand("explain", "Candidates with reasons, the plan, bytes held and moved.");
  sub->footer(kFooter);
  sub->add_option("--op", command->op,
                  "verify, decode, fold, conv_verify, conv_decode, conv_commit, gated_norm, verify_layer, decode_layer")
      ->capture_default_str();
  sub->add_option("--preset", command->preset, preset_help());
  sub->add_option("--mixer", command->mixer, "gdn or kda")->capture_default_str();
  sub->add_option("--shape", command->shape, "H,HV,K,V; 16,32,128,128 if absent")->delimiter(',')->expected(4);
  sub->add_option("--state", command->state, "dtype of the state: f32, bf16, f16")->capture_default_str();
  sub->add_option("--act", command->act, "dtype of q, k, v: f32, bf16, f16")->capture_default_str();
  sub->add_option("--window", command->window, "tokens per step: drafts + 1")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  sub->add_option("--rows", command->rows, "requests in the batch")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  sub->add_option("--layers", command->layers, "recurrent layers of the model; the preset's, or 1, if absent")
      ->check(CLI::Range(1, 1 << 20));
  sub->add_option("--channels", command->channels, "conv channels; 2*H*K + HV*V if absent; 0: no conv")
      ->check(CLI::Range(0, 1 << 30));
  sub->add_option("--conv-width", command->conv_width, "conv width")->check(CLI::Range(1, 64))->capture_default_str();
  sub->add_option("--numerics", command->numerics, "exact or fast")->capture_default_str();
  sub->add_option("--rounding", command->rounding, "per_commit or per_token")->capture_default_str();
  sub->add_option("--policy", command->policy, "on_commit, on_next_verify or lazy")->capture_default_str();
  sub->add_option("--ring-rows", command->ring_rows, "rows of a ring that holds a history; twice the window if absent")
      ->check(CLI::Range(2, kMaxWindow));
  sub->add_option("--ring-a", command->ring_a, "KDA: dtype of the raw gate that the ring keeps in place of g")
      ->type_name("DTYPE");
  sub->add_option("--accepted", command->accepted, "mean accepted tokens per step, for traffic and predicted steps")
      ->check(CLI::Range(0.01, 1e6))
      ->capture_default_str();
  sub->add_option("--machine", command->machine,
                  "predict steps on this machine, and take its device: " + known_machines());
  sub->add_option("--most-ring-bytes", command->most_ring_bytes, "bound on the rings of a slot, all layers; 0: none")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 50));
  sub->add_option("--slots", command->slots, "show the bytes of a pool of so many slots")
      ->check(CLI::Range(int64_t{1}, int64_t{INT32_MAX}));
  sub->add_option("--rings", command->rings,
                  "its rings where they are keyed by request row; as many as --rows if absent")
      ->check(CLI::Range(int64_t{1}, int64_t{INT32_MAX}));
  sub->add_option("--device", command->device, "cpu or cuda")->capture_default_str();
  sub->add_option("--impl", command->impl, "force an implementation (see ringfold info)");
  sub->add_option("--threads", command->threads, "CPU threads; 0: all cores")->check(CLI::Range(0, 1024));
  sub->add_flag("--json", command->json, "print one JSON line");
  sub->callback([command, exit_code] {
    run_command(*command);
    *exit_code = kExitOk;
  });
}

}  // namespace ringfold::cli
