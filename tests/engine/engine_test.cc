// The forward pass: windows, rollback, batches and instruction sets give the bits of one-token decoding.
#include "engine/engine.h"

#include <bit>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "tiny_model.h"

namespace ringfold::engine {
namespace {

using testing::TinyModel;
using testing::tokens_of;

constexpr size_t kVocab = 256;

/// A model and the logits of one-token decoding over a text.
class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.max_window = 8;
    options.max_sequences = 6;
    engine_ = model_.engine(options);
    ASSERT_TRUE(engine_);
    text_ = tokens_of("And the evening and the morning were the first day. And then came the second.");
    plain_ = sequence();
    for (size_t i = 0; i < text_.size(); ++i) append(step(plain_.get(), i, 1, Mode::decode), 1, &expected_);
  }

  std::unique_ptr<Sequence> sequence() {
    std::unique_ptr<Sequence> s;
    const Status status = engine_->create_sequence(&s);
    EXPECT_TRUE(status.ok()) << status.message();
    return s;
  }
  const float* step(Sequence* s, size_t begin, size_t count, Mode mode) {
    return step(s,
                std::vector<int32_t>(text_.begin() + static_cast<int64_t>(begin),
                                     text_.begin() + static_cast<int64_t>(begin + count)),
                mode);
  }
  const float* step(Sequence* s, const std::vector<int32_t>& tokens, Mode mode) {
    const StepRow row{s, tokens};
    const float* logits = nullptr;
    const Status status = engine_->step({&row, 1}, mode, Logits::all, &logits);
    EXPECT_TRUE(status.ok()) << status.message();
    return logits;
  }
  void commit(Sequence* s, int32_t n) {
    const Status status = engine_->commit({&s, 1}, {&n, 1});
    EXPECT_TRUE(status.ok()) << status.message();
  }
  static void append(const float* logits, size_t rows, std::vector<float>* all) {
    all->insert(all->end(), logits, logits + rows * kVocab);
  }
  bool expected_at(const float* logits, size_t position, size_t rows) const {
    return std::memcmp(logits, expected_.data() + position * kVocab, rows * kVocab * sizeof(float)) == 0;
  }

  TinyModel model_;
  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> text_;
  std::unique_ptr<Sequence> plain_;
  std::vector<float> expected_;
};

TEST_F(EngineTest, LogitsAreFiniteAndDependOnTheText) {
  for (const float v : expected_) ASSERT_TRUE(std::isfinite(v));
  EXPECT_FALSE(expected_at(expected_.data(), 1, 1));
}

TEST_F(EngineTest, LongChunksOfAPromptEqualSingleTokens) {
  for (const size_t chunk : {2, 5, 13, 32}) {
    const auto s = sequence();
    for (size_t i = 0; i < text_.size(); i += chunk) {
      const size_t n = std::min(chunk, text_.size() - i);
      EXPECT_TRUE(expected_at(step(s.get(), i, n, Mode::decode), i, n)) << "chunk " << chunk << " at " << i;
    }
    EXPECT_TRUE(engine_->same_state(*s, *plain_)) << "chunk " << chunk;
  }
}

TEST_F(EngineTest, VerifyWithRejectedTailsEqualsDecode) {
  // Windows of every length; n tokens are right, the rest of the window is garbage that is rejected.
  const auto s = sequence();
  size_t at = 0, round = 0;
  while (at < text_.size()) {
    const size_t window = 1 + round % 8;
    const size_t right = std::min({1 + (round * 5) % window, window, text_.size() - at});
    std::vector<int32_t> tokens(text_.begin() + static_cast<int64_t>(at),
                                text_.begin() + static_cast<int64_t>(at + right));
    while (tokens.size() < window) tokens.push_back(static_cast<int32_t>(round * 31 % 256));
    const float* logits = step(s.get(), tokens, Mode::verify);
    EXPECT_TRUE(expected_at(logits, at, right)) << "window " << window << " at " << at;
    EXPECT_EQ(s->length(), static_cast<int64_t>(at));
    EXPECT_EQ(s->pending(), static_cast<int64_t>(window));
    commit(s.get(), static_cast<int32_t>(right));
    at += right;
    EXPECT_EQ(s->length(), static_cast<int64_t>(at));
    ++round;
  }
  EXPECT_TRUE(engine_->same_state(*s, *plain_));
}

TEST_F(EngineTest, VerifyAgainReplacesTheWindowAndNothingAcceptedChangesNothing) {
  const auto s = sequence();
  step(s.get(), 0, 32, Mode::decode);
  step(s.get(), tokens_of("garbage"), Mode::verify);
  EXPECT_TRUE(expected_at(step(s.get(), 32, 4, Mode::verify), 32, 4));
  commit(s.get(), 0);
  EXPECT_EQ(s->length(), 32);
  EXPECT_TRUE(expected_at(step(s.get(), 32, 4, Mode::verify), 32, 4));
  commit(s.get(), 4);
  step(s.get(), tokens_of("more"), Mode::verify);  // dropped by the decode that follows
  EXPECT_TRUE(expected_at(step(s.get(), 36, 1, Mode::decode), 36, 1));
  int32_t one = 1;
  Sequence* const p = s.get();
  EXPECT_EQ(engine_->commit({&p, 1}, {&one, 1}).code(), Code::invalid_argument);
  for (size_t i = 37; i < text_.size(); ++i) EXPECT_TRUE(expected_at(step(s.get(), i, 1, Mode::decode), i, 1));
  EXPECT_TRUE(engine_->same_state(*s, *plain_));
}

TEST_F(EngineTest, ABatchOfUnequalWindowsEqualsItsRows) {
  const auto a = sequence(), b = sequence(), c = sequence();
  step(b.get(), 0, 10, Mode::decode);
  step(c.get(), 0, 32, Mode::decode);
  const std::vector<int32_t> wa(text_.begin(), text_.begin() + 8), wb(text_.begin() + 10, text_.begin() + 11),
      wc(text_.begin() + 32, text_.begin() + 35);
  const StepRow rows[] = {{a.get(), wa}, {b.get(), wb}, {c.get(), wc}};
  const float* logits = nullptr;
  ASSERT_TRUE(engine_->step(rows, Mode::verify, Logits::all, &logits).ok());
  EXPECT_TRUE(expected_at(logits, 0, 8));
  EXPECT_TRUE(expected_at(logits + 8 * kVocab, 10, 1));
  EXPECT_TRUE(expected_at(logits + 9 * kVocab, 32, 3));
  Sequence* const all[] = {a.get(), b.get(), c.get()};
  const int32_t accepted[] = {3, 1, 2};
  ASSERT_TRUE(engine_->commit(all, accepted).ok());
  const std::vector<int32_t> na(text_.begin() + 3, text_.begin() + 4), nb(text_.begin() + 11, text_.begin() + 16),
      nc(text_.begin() + 34, text_.begin() + 36);
  const StepRow next[] = {{c.get(), nc}, {a.get(), na}, {b.get(), nb}};
  ASSERT_TRUE(engine_->step(next, Mode::decode, Logits::last, &logits).ok());
  EXPECT_TRUE(expected_at(logits, 35, 1));
  EXPECT_TRUE(expected_at(logits + kVocab, 3, 1));
  EXPECT_TRUE(expected_at(logits + 2 * kVocab, 15, 1));
}

TEST_F(EngineTest, TrialsAreTakenBack) {
  const auto s = sequence();
  step(s.get(), 0, 20, Mode::decode);
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(engine_->begin_trial(s.get()).ok());
    EXPECT_EQ(engine_->begin_trial(s.get()).code(), Code::invalid_argument);
    EXPECT_TRUE(expected_at(step(s.get(), 20, 1, Mode::decode), 20, 1));
    step(s.get(), tokens_of("elsewhere"), Mode::decode);
    engine_->end_trial(s.get());
    EXPECT_EQ(s->length(), 20);
  }
  EXPECT_TRUE(expected_at(step(s.get(), 20, 5, Mode::decode), 20, 5));
}

TEST_F(EngineTest, InstructionSetsDoNotChangeABit) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    const auto s = sequence();
    EXPECT_TRUE(expected_at(step(s.get(), 0, 24, Mode::decode), 0, 24));
    EXPECT_TRUE(expected_at(step(s.get(), 24, 3, Mode::verify), 24, 3));
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_F(EngineTest, ThreadsDoNotChangeABitAndTheSettingComesBack) {
  const int before = num_threads();
  for (const int threads : {2, 3}) {
    EngineOptions options;
    options.threads = threads;
    plain_ = nullptr;
    engine_ = model_.engine(options);
    ASSERT_TRUE(engine_);
    const auto s = sequence();
    EXPECT_TRUE(expected_at(step(s.get(), 0, 24, Mode::decode), 0, 24)) << threads;
    EXPECT_TRUE(expected_at(step(s.get(), 24, 3, Mode::verify), 24, 3)) << threads;
    commit(s.get(), 2);
    EXPECT_EQ(num_threads(), before);
  }
}

TEST_F(EngineTest, EveryImplementationOfTheLibraryGivesTheSameLogits) {
  for (const std::string_view impl : implementations()) {
    EngineOptions options;
    options.impl = impl;
    plain_ = nullptr;
    engine_ = nullptr;
    engine_ = model_.engine(options);
    ASSERT_TRUE(engine_);
    const auto s = sequence();
    EXPECT_TRUE(expected_at(step(s.get(), 0, 24, Mode::decode), 0, 24)) << impl;
    EXPECT_TRUE(expected_at(step(s.get(), 24, 3, Mode::verify), 24, 3)) << impl;
    commit(s.get(), 2);
    EXPECT_TRUE(expected_at(step(s.get(), 26, 3, Mode::verify), 26, 3)) << impl;
  }
}

TEST_F(EngineTest, RefusesBadOptions) {
  std::unique_ptr<Engine> engine;
  EngineOptions options;
  options.impl = "nonsense";
  EXPECT_EQ(Engine::load(model_.dir(), options, &engine).code(), Code::not_found);
  options = {};
  options.max_context = 1025;
  EXPECT_EQ(Engine::load(model_.dir(), options, &engine).code(), Code::invalid_argument);
  options = {};
  options.max_window = 33;
  EXPECT_EQ(Engine::load(model_.dir(), options, &engine).code(), Code::invalid_argument);
  options.max_window = 0;
  EXPECT_EQ(Engine::load(model_.dir(), options, &engine).code(), Code::invalid_argument);
  EXPECT_FALSE(engine);
}

TEST_F(EngineTest, RefusesBadSteps) {
  const auto s = sequence();
  const auto refused = [&](std::vector<StepRow> rows, Mode mode, const char* part) {
    const Status status = engine_->step(rows, mode, Logits::none, nullptr);
    EXPECT_EQ(status.code(), Code::invalid_argument) << part;
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  };
  const std::vector<int32_t> one = {65}, nine(9, 65), many(33, 65), outside = {256}, negative = {-1};
  refused({}, Mode::decode, "at least one");
  refused({{nullptr, one}}, Mode::decode, "rows[0]");
  refused({{s.get(), {}}}, Mode::decode, "found 0");
  refused({{s.get(), nine}}, Mode::verify, "1 to 8 tokens, found 9");
  refused({{s.get(), many}}, Mode::decode, "1 to 32 tokens, found 33");
  refused({{s.get(), outside}}, Mode::decode, "below 256, found 256");
  refused({{s.get(), negative}}, Mode::decode, "found -1");
  refused({{s.get(), one}, {s.get(), one}}, Mode::decode, "rows[1]");
  EXPECT_EQ(s->length(), 0);
  for (int i = 0; i < 32; ++i) step(s.get(), std::vector<int32_t>(32, 65), Mode::decode);  // 1024 tokens: full
  refused({{s.get(), one}}, Mode::decode, "1024 tokens of context, found 1025");
  step(plain_.get(), one, Mode::verify);
  for (const int32_t n : {-1, 2}) {
    Sequence* const p = plain_.get();
    EXPECT_EQ(engine_->commit({&p, 1}, {&n, 1}).code(), Code::invalid_argument);
  }
  commit(plain_.get(), 1);
}

TEST_F(EngineTest, SlotsAreLimitedAndComeBack) {
  std::vector<std::unique_ptr<Sequence>> all;
  for (int i = 0; i < 5; ++i) all.push_back(sequence());
  std::unique_ptr<Sequence> more;
  EXPECT_EQ(engine_->create_sequence(&more).code(), Code::out_of_memory);
  all.pop_back();
  const auto fresh = sequence();
  EXPECT_TRUE(expected_at(step(fresh.get(), 0, 8, Mode::verify), 0, 8));
}

}  // namespace
}  // namespace ringfold::engine
