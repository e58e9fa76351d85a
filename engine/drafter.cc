#include "engine/drafter.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

namespace ringfold::engine {

LookupDrafter::LookupDrafter(int64_t min_ngram, int64_t max_ngram)
    : min_ngram_(min_ngram), max_ngram_(max_ngram), tables_(static_cast<size_t>(max_ngram - min_ngram + 1)) {}

void LookupDrafter::reset() {
  for (auto& table : tables_) table.clear();
  indexed_ = match_ = 0;
}

namespace {

/// Extends the hash of a suffix by the token before it.
uint64_t extend(uint64_t hash, int32_t token) {
  return (hash ^ (static_cast<uint64_t>(token) + 1)) * 0x9E3779B97F4A7C15u + (hash >> 29);
}

}  // namespace

/// Enters all n-grams that end before the last token, each with the position after it.
void LookupDrafter::index(std::span<const int32_t> tokens) {
  const int64_t end = static_cast<int64_t>(tokens.size()) - 1;
  for (; indexed_ < end; ++indexed_) {
    uint64_t hash = 0;
    for (int64_t n = 1; n <= max_ngram_ && n <= indexed_ + 1; ++n) {
      hash = extend(hash, tokens[static_cast<size_t>(indexed_ + 1 - n)]);
      if (n >= min_ngram_) tables_[static_cast<size_t>(n - min_ngram_)][hash] = indexed_ + 1;
    }
  }
}

Status LookupDrafter::propose(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>* drafts) {
  index(tokens);
  match_ = 0;
  const int64_t size = static_cast<int64_t>(tokens.size());
  int64_t after = 0;
  uint64_t hash = 0;
  for (int64_t n = 1; n <= max_ngram_ && n <= size; ++n) {
    hash = extend(hash, tokens[static_cast<size_t>(size - n)]);
    if (n < min_ngram_) continue;
    const auto& table = tables_[static_cast<size_t>(n - min_ngram_)];
    const auto found = table.find(hash);
    if (found == table.end()) break;  // no longer one either
    const int64_t at = found->second;
    if (at < n || !std::equal(tokens.end() - n, tokens.end(), tokens.begin() + (at - n)))
      break;  // a collision of hashes
    match_ = n;
    after = at;
  }
  if (match_ == 0) return {};
  for (int64_t i = 0; i < most; ++i) {
    const int64_t at = after + i;  // past the end of the text the drafts themselves go on
    drafts->push_back(at < size ? tokens[static_cast<size_t>(at)] : (*drafts)[static_cast<size_t>(at - size)]);
  }
  return {};
}

Status ModelDrafter::propose(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>* drafts) {
  if (static_cast<int64_t>(tokens.size()) + most > engine_->max_context()) return {};
  if (!sequence_) {
    if (Status s = engine_->create_sequence(&sequence_); !s.ok()) return s;
  }
  const float* logits = nullptr;
  const size_t vocab = static_cast<size_t>(engine_->config().vocab_size);
  const auto feed = [&](std::span<const int32_t> window, Logits which) {
    const StepRow row{sequence_.get(), window};
    return engine_->step({&row, 1}, Mode::decode, which, &logits);
  };
  // What was accepted since the last call, for good. The logits of the last token give the first draft.
  for (std::span<const int32_t> rest = tokens.subspan(static_cast<size_t>(sequence_->length())); !rest.empty();) {
    const auto window = rest.first(std::min<size_t>(rest.size(), kMaxWindow));
    rest = rest.subspan(window.size());
    if (Status s = feed(window, rest.empty() ? Logits::last : Logits::none); !s.ok()) return s;
  }
  if (!logits) return {};
  for (int64_t i = 0; i < most; ++i) {
    const std::span<const float> row(logits, vocab);
    const int32_t token = sampler_.pick(row, static_cast<int64_t>(tokens.size()) + i);
    if (least_probability_ > 0) {
      double sum = 0;
      for (const float value : row) sum += std::exp(value - row[static_cast<size_t>(token)]);
      if (1 / sum < least_probability_) break;
    }
    drafts->push_back(token);
    if (i + 1 == most) break;
    if (i == 0) {
      if (Status s = engine_->begin_trial(sequence_.get()); !s.ok()) return s;
    }
    if (Status s = feed({&drafts->back(), 1}, Logits::last); !s.ok()) {
      engine_->end_trial(sequence_.get());
      return s;
    }
  }
  engine_->end_trial(sequence_.get());
  return {};
}

void CombinedDrafter::reset() {
  lookup_->reset();
  other_->reset();
}

Status CombinedDrafter::propose(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>* drafts) {
  if (Status s = lookup_->propose(tokens, most, drafts); !s.ok()) return s;
  if (lookup_->match_length() >= trusted_) return {};
  drafts->clear();
  return other_->propose(tokens, most, drafts);
}

Status WrongDrafter::propose(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>* drafts) {
  for (int64_t i = 0; i < most; ++i) {
    const size_t at = tokens.size() + static_cast<size_t>(i);
    const int64_t right = at < truth_.size() ? truth_[at] : 0;
    drafts->push_back(static_cast<int32_t>((right + 1) % vocab_));
  }
  return {};
}

}  // namespace ringfold::engine
