// The loop: prompt, then tokens, one at a time or in windows of drafts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/drafter.h"
#include "engine/engine.h"
#include "engine/sampling.h"

namespace ringfold::engine {

struct GenerationOptions {
  SamplerOptions sampler;
  int64_t drafts = 4;  ///< most drafts per step, below the engine's max_window
  /// Token sequences that end the text, the model's own stop tokens among them where wanted. They stay in the text.
  std::vector<std::vector<int32_t>> stops;
};

/// Counts of one text. Times are wall-clock.
struct GenerationStats {
  int64_t tokens = 0;   ///< generated
  int64_t steps = 0;    ///< forward passes of the main model after the prompt
  int64_t drafted = 0;  ///< drafts that were verified
  double prompt_seconds = 0;
  double seconds = 0;  ///< after the prompt, drafting included
  /// Tokens per step, the bonus token included.
  double mean_accepted() const { return steps > 0 ? static_cast<double>(tokens) / static_cast<double>(steps) : 0; }
  double tokens_per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

/// One text in the making. At every return the sequence holds all tokens but the last (which the next step feeds),
/// whatever was drafted and however the text ended, so that run() can simply go on.
class Generation {
 public:
  /// `drafter` null: plain decoding, one token per step, through decode alone. Both must outlive this object.
  Generation(Engine* engine, Drafter* drafter, const GenerationOptions& options);

  /// Feeds the prompt. Errors: invalid_argument for an empty prompt or one past the context, and those of the engine.
  Status start(std::span<const int32_t> prompt);

  /// Up to `most` further tokens; ends early at a stop or when the context is full. `on_token` (optional) sees each as
  /// it is accepted.
  Status run(int64_t most, const std::function<void(int32_t)>& on_token = {});

  /// Prompt and everything generated.
  const std::vector<int32_t>& tokens() const { return tokens_; }
  std::span<const int32_t> generated() const { return std::span(tokens_).subspan(prompt_size_); }
  /// Whether the last run ended at a stop.
  bool stopped() const { return stopped_; }
  const GenerationStats& stats() const { return stats_; }
  const Sequence& sequence() const { return *sequence_; }

 private:
  bool at_stop() const;

  Engine* engine_;
  Drafter* drafter_;
  GenerationOptions options_;
  Sampler sampler_;
  std::unique_ptr<Sequence> sequence_;
  std::vector<int32_t> tokens_, window_, drafts_;
  size_t prompt_size_ = 0;
  bool stopped_ = false;
  GenerationStats stats_;
};

}  // namespace ringfold::engine
