// Where drafts come from. A drafter sees the text so far and proposes what may follow; it never decides anything.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "engine/sampling.h"

namespace ringfold::engine {

/// Settings that were measured to pay on the bundled models.
inline constexpr int64_t kMinNgram = 3;      ///< prompt lookup: shortest match that is believed
inline constexpr int64_t kMaxNgram = 12;     ///< and the longest that is looked for
inline constexpr int64_t kTrustedNgram = 9;  ///< combined drafter: match from which on lookup is preferred to the model
inline constexpr float kLeastProbability = 0.2f;  ///< draft model: stops before a token that it is less sure of

class Drafter {
 public:
  virtual ~Drafter() = default;
  /// A new text follows.
  virtual void reset() = 0;
  /// Appends up to `most` proposals for what follows `tokens` to `drafts` (empty on entry); none is a valid answer.
  /// Between two resets, `tokens` only ever grows: drafts that were rejected are not in it.
  virtual Status propose(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>* drafts) = 0;
};

/// Prompt lookup: finds the latest earlier place that ends as the text does now, and proposes what followed there.
class LookupDrafter final : public Drafter {
 public:
  /// The longest match of min_ngram to max_ngram tokens counts, at its latest place. An index finds it in max_ngram
  /// look-ups.
  LookupDrafter(int64_t min_ngram, int64_t max_ngram);

  void reset() override;
  Status propose(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>* drafts) override;
  /// Tokens that the match behind the last proposal had; 0: there was none.
  int64_t match_length() const { return match_; }

 private:
  void index(std::span<const int32_t> tokens);

  int64_t min_ngram_, max_ngram_, match_ = 0, indexed_ = 0;
  /// Per n-gram length: hash of the n-gram to the position after its latest occurrence.
  std::vector<std::unordered_map<uint64_t, int64_t>> tables_;
};

/// A smaller model of the same vocabulary. Its own sequence holds accepted tokens only; drafting goes on in a trial
/// that is taken back, so there is nothing to repair after a rejection.
class ModelDrafter final : public Drafter {
 public:
  /// Drafting stops early before a token that the draft model itself gives less than `least_probability`.
  /// `sampler` are the options of the main model's sampler: the same random numbers make the same choices more often.
  /// The engine needs room for two sequences.
  ModelDrafter(std::unique_ptr<Engine> engine, const SamplerOptions& sampler, float least_probability)
      : engine_(std::move(engine)), sampler_(sampler), least_probability_(least_probability) {}

  void reset() override { sequence_.reset(); }
  Status propose(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>* drafts) override;
  const Engine& engine() const { return *engine_; }

 private:
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Sequence> sequence_;
  Sampler sampler_;
  float least_probability_;
};

/// Lookup where it finds a match of at least `trusted` tokens, else the other drafter.
class CombinedDrafter final : public Drafter {
 public:
  CombinedDrafter(std::unique_ptr<LookupDrafter> lookup, std::unique_ptr<Drafter> other, int64_t trusted)
      : lookup_(std::move(lookup)), other_(std::move(other)), trusted_(trusted) {}

  void reset() override;
  Status propose(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>* drafts) override;

 private:
  std::unique_ptr<LookupDrafter> lookup_;
  std::unique_ptr<Drafter> other_;
  int64_t trusted_;
};

/// Proposes tokens that are certain to be rejected. For checks: decoding with it must equal plain decoding all the
/// same.
class WrongDrafter final : public Drafter {
 public:
  /// `truth` is the whole text that plain decoding gives, prompt included.
  WrongDrafter(std::vector<int32_t> truth, int64_t vocab) : truth_(std::move(truth)), vocab_(vocab) {}

  void reset() override {}
  Status propose(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>* drafts) override;

 private:
  std::vector<int32_t> truth_;
  int64_t vocab_;
};

}  // namespace ringfold::engine
