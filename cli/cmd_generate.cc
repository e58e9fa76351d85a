// ringfold generate: text from a model, with drafts, and the proof that drafts change nothing.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "engine/generate.h"

namespace ringfold::cli {

namespace {

using namespace ringfold::engine;
using nlohmann::json;

constexpr const char* kFooter = R"(Examples:
  ringfold generate models/hybrid-byte --prompt "In the beginning"
  ringfold generate models/hybrid-byte --bundled-prompts --json
  ringfold generate models/hybrid-byte --draft-model models/hybrid-byte-draft --drafter combined --prompt "And he said"
  ringfold generate models/hybrid-byte --prompt "The LORD" --temperature 0.8 --top-p 0.9 --seed 7 --stop $'\n\n'

Reads Hugging Face checkpoints of the Qwen3.5 text family (config.json, model.safetensors or a sharded index).
Text goes in and out of byte-level models (256 tokens); for other vocabularies there is no tokenizer: give and get
token ids with --ids.

Drafts come from a smaller model (--draft-model, or a directory of the model's name with -draft added, where there is
one), from the text so far (lookup), or from the text where it repeats itself and else from the model (combined).

Drafts change the speed, never the text: a draft is kept only if it is the token that plain decoding would have chosen,
the random number of its position included. With --check (the default) the text is generated again without drafts and
once more with every draft wrong, and all three are compared, byte for byte, together with the states they end in.

Exit codes: 0 done, 1 a text or state differs from plain decoding, 2 bad usage, missing or malformed model.)";

struct Options {
  std::string model, draft_model, prompt_file, drafter, impl, stop, policy = "on_commit";
  std::vector<std::string> prompts;
  std::vector<int32_t> ids;
  bool bundled = false, check = true, json = false;
  int64_t max_tokens = 256;
  int64_t drafts = 5;
  int64_t rounds = 3;
  int threads = 0;
  SamplerOptions sampler;
};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in || std::filesystem::is_directory(path)) throw CommandError(path + ": cannot be read");
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> bundled_prompts(const std::string& model) {
  const std::string path = model + "/prompts.json";
  const json list = json::parse(read_file(path), nullptr, false);
  std::vector<std::string> prompts;
  for (const json& prompt : list.is_array() ? list : json()) {
    if (!prompt.is_string()) throw CommandError(path + ": expected a list of texts");
    prompts.push_back(prompt.get<std::string>());
  }
  if (prompts.empty()) throw CommandError(path + ": expected a list of texts, found none");
  return prompts;
}

std::vector<int32_t> tokens_of(const std::string& text) {
  std::vector<int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

/// What a terminal can show of one byte.
std::string printable(int32_t byte) {
  if (byte == '\n' || byte == '\t' || (byte >= 32 && byte != 127)) return std::string(1, static_cast<char>(byte));
  return fmt::format("\\x{:02x}", byte);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// Sums over all prompts.
struct Totals {
  int64_t tokens = 0, steps = 0, drafted = 0;
  double seconds = 0, baseline_seconds = 0;
  bool identical = true;
  std::vector<std::string> texts;
  json token_lists = json::array();
};

class Job {
 public:
  explicit Job(const Options& options) : o_(options) {}

  int run() {
    load();
    const auto all = prompts();
    if (o_.threads == 0) choose_threads(all.front());
    for (const auto& prompt : all) one(prompt);
    report();
    return totals_.identical ? kExitOk : kExitFailed;
  }

 private:
  void load();
  std::vector<std::vector<int32_t>> prompts() const;
  std::unique_ptr<Drafter> make_drafter();
  void choose_threads(const std::vector<int32_t>& prompt);
  bool is_eos(int32_t token) const;
  Generation generate(Drafter* drafter, const std::vector<int32_t>& prompt,
                      const std::function<void(int32_t)>& on_token = {});
  void one(const std::vector<int32_t>& prompt);
  int threads() const { return o_.threads > 0 ? o_.threads : num_threads(); }
  void report() const;

  const Options& o_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Drafter> drafter_;
  std::string drafter_name_;
  GenerationOptions generation_;
  Totals totals_;
};

std::unique_ptr<Drafter> Job::make_drafter() {
  std::string draft_model = o_.draft_model;
  if (std::string beside = without_slash(o_.model) + "-draft";
      draft_model.empty() && std::filesystem::is_directory(beside)) {
    draft_model = std::move(beside);
  }
  drafter_name_ = !o_.drafter.empty() ? o_.drafter : draft_model.empty() ? "lookup" : "combined";
  if (o_.drafts == 0) drafter_name_ = "none";
  if (drafter_name_ == "none") return nullptr;
  auto lookup = std::make_unique<LookupDrafter>(kMinNgram, kMaxNgram);
  if (drafter_name_ == "lookup") return lookup;
  if (draft_model.empty())
    throw CommandError(fmt::format("--drafter {}: expected --draft-model DIR, found none", drafter_name_));
  EngineOptions options;
  options.max_sequences = 2;
  options.max_window = 1;
  options.impl = o_.impl;
  options.threads = 1;  // a draft model is too small for more
  std::unique_ptr<Engine> engine;
  require(Engine::load(draft_model, options, &engine), "");
  if (engine->config().vocab_size != engine_->config().vocab_size) {
    throw CommandError(fmt::format("{}: vocab_size: expected {} as the main model has, found {}", draft_model,
                                   engine_->config().vocab_size, engine->config().vocab_size));
  }
  auto model = std::make_unique<ModelDrafter>(std::move(engine), o_.sampler, kLeastProbability);
  if (drafter_name_ == "model") return model;
  return std::make_unique<CombinedDrafter>(std::move(lookup), std::move(model), kTrustedNgram);
}

void Job::load() {
  require(engine::check(o_.sampler), "");
  EngineOptions options;
  options.max_window = o_.drafts + 1;
  options.max_sequences = 4;  // with drafts, without, all wrong, and one more while the next is made
  options.threads = o_.threads;
  options.impl = o_.impl;
  options.fold_policy = *parse<FoldPolicy>(o_.policy);
  require(Engine::load(o_.model, options, &engine_), "");
  const ModelConfig& config = engine_->config();
  if (!config.byte_level() && o_.ids.empty()) {
    throw CommandError(
        fmt::format("{}: vocab_size: expected 256 (bytes) for text, found {}: there is no tokenizer, give token ids "
                    "with --ids",
                    o_.model, config.vocab_size));
  }
  for (const int32_t id : o_.ids) {
    if (id < 0 || id >= config.vocab_size) {
      throw CommandError(fmt::format("--ids: expected token ids from 0 to {}, found {}", config.vocab_size - 1, id));
    }
  }
  drafter_ = make_drafter();
  generation_.sampler = o_.sampler;
  generation_.drafts = o_.drafts;
  for (const int32_t id : config.eos_token_ids) generation_.stops.push_back({id});
  if (!o_.stop.empty()) {
    if (!config.byte_level()) throw CommandError("--stop: expected a byte-level model");
    generation_.stops.push_back(tokens_of(o_.stop));
  }
}

std::vector<std::vector<int32_t>> Job::prompts() const {
  if (!o_.ids.empty()) return {o_.ids};
  std::vector<std::string> texts = o_.prompts;
  if (!o_.prompt_file.empty()) texts.push_back(read_file(o_.prompt_file));
  if (o_.bundled) {
    for (auto& text : bundled_prompts(o_.model)) texts.push_back(std::move(text));
  }
  std::vector<std::vector<int32_t>> all;
  for (const std::string& text : texts) all.push_back(tokens_of(text));
  return all;
}

/// All cores, or one where that decodes a few tokens clearly faster: a small model on a busy machine, or in a container
/// that may use less than the cores it sees, loses more by waiting for its threads than it gains. Best of three, in
/// turns.
void Job::choose_threads(const std::vector<int32_t>& prompt) {
  const int all = num_threads();
  const int candidates[] = {all, 1};
  double best[] = {1e30, 1e30};
  for (int i = 0; i < 6; ++i) {
    set_num_threads(candidates[i % 2]);
    Generation g(engine_.get(), nullptr, generation_);
    require(g.start(std::span(prompt).first(std::min<size_t>(prompt.size(), 16))), "");
    require(g.run(1), "");  // warms up
    const double before = g.stats().seconds;
    require(g.run(16), "");
    best[i % 2] = std::min(best[i % 2], g.stats().seconds - before);
  }
  const int chosen = best[1] < 0.9 * best[0] ? 1 : all;
  set_num_threads(chosen);
}

Generation Job::generate(Drafter* drafter, const std::vector<int32_t>& prompt,
                         const std::function<void(int32_t)>& on_token) {
  Generation g(engine_.get(), drafter, generation_);
  require(g.start(prompt), "");
  require(g.run(o_.max_tokens, on_token), "");
  return g;
}

bool Job::is_eos(int32_t token) const {
  const auto& ids = engine_->config().eos_token_ids;
  return std::find(ids.begin(), ids.end(), token) != ids.end();
}

void Job::one(const std::vector<int32_t>& prompt) {
  const bool text = engine_->config().byte_level() && o_.ids.empty();
  std::function<void(int32_t)> show;
  if (!o_.json) {
    show = [text](int32_t token) {
      fmt::print("{}", text ? printable(token) : fmt::format("{} ", token));
      std::fflush(stdout);
    };
    for (const int32_t token : prompt) show(token);
  }
  const auto show_token = [&](int32_t token) {
    if (!is_eos(token)) show(token);
  };
  const Generation shown = generate(drafter_.get(), prompt, show ? std::function<void(int32_t)>(show_token) : nullptr);
  if (show) fmt::print("\n\n");

  std::vector<double> with, without;
  if (!o_.check) with.push_back(shown.stats().seconds);
  if (o_.check) {
    const Generation plain = generate(nullptr, prompt);
    WrongDrafter wrong(plain.tokens(), engine_->config().vocab_size);
    const Generation rejected = generate(o_.drafts > 0 ? &wrong : nullptr, prompt);
    totals_.identical = totals_.identical && shown.tokens() == plain.tokens() && rejected.tokens() == plain.tokens() &&
                        engine_->same_state(shown.sequence(), plain.sequence()) &&
                        engine_->same_state(rejected.sequence(), plain.sequence());
  }
  // Alternating rounds, so that whatever else the machine does meets both.
  for (int64_t round = 0; o_.check && round < o_.rounds; ++round) {
    without.push_back(generate(nullptr, prompt).stats().seconds);
    with.push_back(generate(drafter_.get(), prompt).stats().seconds);
  }
  totals_.tokens += shown.stats().tokens;
  totals_.steps += shown.stats().steps;
  totals_.drafted += shown.stats().drafted;
  totals_.seconds += median(with);
  totals_.baseline_seconds += median(without);
  std::string out;
  for (const int32_t token : shown.generated()) {
    if (text && !is_eos(token)) out.push_back(static_cast<char>(token));
  }
  totals_.texts.push_back(out);
  totals_.token_lists.push_back(std::vector<int32_t>(shown.generated().begin(), shown.generated().end()));
}

void Job::report() const {
  const Totals& t = totals_;
  const auto rate = [&](double seconds) { return seconds > 0 ? static_cast<double>(t.tokens) / seconds : 0.0; };
  const double mean = t.steps > 0 ? static_cast<double>(t.tokens) / static_cast<double>(t.steps) : 0;
  const double speedup = t.seconds > 0 ? t.baseline_seconds / t.seconds : 0;
  const Footprint f = footprint(engine_->describe(o_.drafts + 1));
  const int64_t layers = engine_->config().linear_layers();
  const int64_t snapshot = layers * (f.state_bytes + f.snapshot_bytes);
  const int64_t ring = layers * (f.state_bytes + engine_->ring_rows() * f.ring_row_bytes);
  if (o_.json) {
    std::string joined;
    for (const std::string& text : t.texts) joined += (joined.empty() ? "" : "\n\n") + text;
    json line = {{"mean_accepted", mean},
                 {"tokens_per_s", rate(t.seconds)},
                 {"state_bytes_snapshot", snapshot},
                 {"state_bytes_ring", ring},
                 {"tokens", t.tokens},
                 {"steps", t.steps},
                 {"drafts", o_.drafts},
                 {"drafter", drafter_name_},
                 {"threads", threads()}};
    line["identical"] = o_.check ? json(t.identical) : json();
    line["speedup"] = o_.check ? json(speedup) : json();
    line["baseline_tokens_per_s"] = o_.check ? json(rate(t.baseline_seconds)) : json();
    if (o_.ids.empty()) {
      line["text"] = joined;
      line["texts"] = t.texts;
    } else {
      line["ids"] = t.token_lists[0];
    }
    fmt::print("{}\n", line.dump(-1, ' ', false, json::error_handler_t::replace));
    return;
  }
  const auto kib = [](int64_t bytes) { return static_cast<double>(bytes) / 1024; };
  fmt::print("tokens                      {} in {} steps, drafter {}, up to {} drafts\n", t.tokens, t.steps,
             drafter_name_, drafter_ ? o_.drafts : 0);
  fmt::print("mean accepted per step      {:.2f}\n", mean);
  if (o_.check) fmt::print("tokens/s, plain             {:.0f}\n", rate(t.baseline_seconds));
  fmt::print("tokens/s, with drafts       {:.0f}\n", rate(t.seconds));
  if (o_.check) fmt::print("speed-up                    {:.2f}x\n", speedup);
  fmt::print("state per request           {:.0f} KiB with a ring, {:.0f} KiB with a state per draft ({:.1f}x)\n",
             kib(ring), kib(snapshot), static_cast<double>(snapshot) / static_cast<double>(std::max<int64_t>(1, ring)));
  if (o_.check) fmt::print("identical to plain decoding {} (also with all drafts wrong)\n", t.identical ? "yes" : "NO");
}

}  // namespace

void add_generate(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<Options>();
  Options& o = *options;
  CLI::App* cmd = app.add_subcommand("generate", "Generate text with drafts, and compare with plain decoding");
  cmd->footer(kFooter);
  cmd->add_option("model", o.model, "Directory of a checkpoint")->required();
  auto* what = cmd->add_option_group("prompt", "What to continue");
  what->add_option("--prompt,-p", o.prompts, "Text; may be given several times")->expected(1)->take_all();
  what->add_option("--prompt-file", o.prompt_file, "File with a text");
  what->add_flag("--bundled-prompts", o.bundled, "The prompts that lie beside the model (prompts.json)");
  what->add_option("--ids", o.ids, "Token ids, separated by commas")->delimiter(',');
  what->require_option(1);
  cmd->add_option("--max-tokens,-n", o.max_tokens, "Tokens to generate for each prompt")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  cmd->add_option("--drafts", o.drafts, "Most drafts per step; 0: plain decoding")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{kMaxWindow - 1}));
  cmd->add_option("--drafter", o.drafter, "lookup, model, combined or none [combined with a draft model, else lookup]")
      ->check(CLI::IsMember({"lookup", "model", "combined", "none"}));
  cmd->add_option("--draft-model", o.draft_model,
                  "Directory of a smaller checkpoint with the same vocabulary [MODEL-draft, if there is one]");
  cmd->add_option("--temperature", o.sampler.temperature, "0: greedy")->capture_default_str();
  cmd->add_option("--top-k", o.sampler.top_k, "Sample from the k most likely tokens; 0: all")->capture_default_str();
  cmd->add_option("--top-p", o.sampler.top_p, "Sample from the most likely tokens that reach this probability")
      ->capture_default_str();
  cmd->add_option("--seed", o.sampler.seed, "Of the random numbers")->capture_default_str();
  cmd->add_option("--stop", o.stop, "End after this text (besides the model's own stop tokens)");
  cmd->add_option("--threads", o.threads, "0: all cores, or one where that is faster")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  cmd->add_option("--policy", o.policy, "Fold policy: on_commit, on_next_verify or lazy; the text is the same")
      ->capture_default_str()
      ->check(CLI::IsMember({"on_commit", "on_next_verify", "lazy"}));
  cmd->add_option("--impl", o.impl, "Force ringfold's implementation by name");
  cmd->add_flag("--check,!--no-check", o.check, "Compare with plain decoding, and time it [on]");
  cmd->add_option("--rounds", o.rounds, "Timed rounds with and without drafts, of which the median counts")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1000}));
  cmd->add_flag("--json", o.json, "One line of JSON instead of text and table");
  cmd->callback([options, exit_code] { *exit_code = Job(*options).run(); });
}

}  // namespace ringfold::cli
