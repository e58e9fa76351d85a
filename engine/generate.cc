#include "engine/generate.h"

#include <algorithm>
#include <chrono>

#include <fmt/core.h>

namespace ringfold::engine {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Generation::Generation(Engine* engine, Drafter* drafter, const GenerationOptions& options)
    : engine_(engine), drafter_(drafter), options_(options), sampler_(options.sampler) {}

Status Generation::start(std::span<const int32_t> prompt) {
  if (Status s = check(options_.sampler); !s.ok()) return s;
  const int64_t most_drafts = engine_->options().max_window - 1;
  if (options_.drafts < 0 || options_.drafts > most_drafts) {
    return {Code::invalid_argument, fmt::format("drafts: expected 0 to {}, found {}", most_drafts, options_.drafts)};
  }
  if (prompt.empty()) return {Code::invalid_argument, "prompt: expected at least one token, found none"};
  if (static_cast<int64_t>(prompt.size()) > engine_->max_context()) {
    return {Code::invalid_argument,
            fmt::format("prompt: expected at most {} tokens, found {}", engine_->max_context(), prompt.size())};
  }
  const auto start = std::chrono::steady_clock::now();
  sequence_.reset();
  if (Status s = engine_->create_sequence(&sequence_); !s.ok()) return s;
  if (drafter_) drafter_->reset();
  tokens_.assign(prompt.begin(), prompt.end());
  prompt_size_ = prompt.size();
  stopped_ = false;
  stats_ = {};
  for (auto rest = prompt.first(prompt.size() - 1); !rest.empty();) {
    const StepRow row{sequence_.get(), rest.first(std::min<size_t>(rest.size(), kMaxWindow))};
    if (Status s = engine_->step({&row, 1}, Mode::decode, Logits::none, nullptr); !s.ok()) return s;
    rest = rest.subspan(row.tokens.size());
  }
  stats_.prompt_seconds = seconds_since(start);
  return {};
}

/// Whether the text, the last token included, ends with a stop that lies in the generated part.
bool Generation::at_stop() const {
  const auto text = generated();
  for (const auto& stop : options_.stops) {
    if (!stop.empty() && stop.size() <= text.size() &&
        std::equal(stop.begin(), stop.end(), text.end() - static_cast<int64_t>(stop.size()))) {
      return true;
    }
  }
  return false;
}

Status Generation::run(int64_t most, const std::function<void(int32_t)>& on_token) {
  const auto start = std::chrono::steady_clock::now();
  stopped_ = false;
  Status status;
  std::span<const float> logits;
  const size_t vocab = static_cast<size_t>(engine_->config().vocab_size);
  for (int64_t done = 0; done < most && !stopped_;) {
    const int64_t room = engine_->max_context() - sequence_->length();
    if (room < 1) break;
    window_.assign(1, tokens_.back());
    if (drafter_) {
      drafts_.clear();
      const int64_t drafts = std::min({options_.drafts, most - done - 1, room - 1});
      if (drafts > 0) status = drafter_->propose(tokens_, drafts, &drafts_);
      if (!status.ok()) break;
      window_.insert(window_.end(), drafts_.begin(), drafts_.end());
    }
    const StepRow row{sequence_.get(), window_};
    const float* all = nullptr;
    status = engine_->step({&row, 1}, drafter_ ? Mode::verify : Mode::decode, Logits::all, &all);
    if (!status.ok()) break;
    // Row i of the logits follows window_[i]. It counts as long as all drafts up to window_[i] were what would have
    // been chosen.
    int32_t accepted = 0;
    for (bool agree = true; agree && !stopped_;) {
      logits = {all + static_cast<size_t>(accepted) * vocab, vocab};
      const int32_t token = sampler_.pick(logits, static_cast<int64_t>(tokens_.size()));
      tokens_.push_back(token);
      ++accepted;
      stopped_ = at_stop();
      if (on_token) on_token(token);
      agree = static_cast<size_t>(accepted) < window_.size() && window_[static_cast<size_t>(accepted)] == token;
    }
    if (drafter_) {
      Sequence* const sequence = sequence_.get();
      status = engine_->commit({&sequence, 1}, {&accepted, 1});
      if (!status.ok()) break;
    }
    done += accepted;
    stats_.tokens += accepted;
    stats_.drafted += static_cast<int64_t>(window_.size()) - 1;
    ++stats_.steps;
  }
  stats_.seconds += seconds_since(start);
  return status;
}

}  // namespace ringfold::engine
