// The loop: with drafts of any kind, right or wrong, the text and the state are those of plain decoding.
#include "engine/generate.h"

#include <gtest/gtest.h>

#include "tiny_model.h"

namespace ringfold::engine {
namespace {

using testing::TinyModel;
using testing::tokens_of;

constexpr int64_t kTokens = 60;

/// Proposes the right token with some gaps: a model of a good drafter.
class OracleDrafter final : public Drafter {
 public:
  explicit OracleDrafter(std::vector<int32_t> truth) : truth_(std::move(truth)) {}
  void reset() override {}
  Status propose(std::span<const int32_t> tokens, int64_t most, std::vector<int32_t>* drafts) override {
    const int64_t count = static_cast<int64_t>(tokens.size() * 7 % 11) % (most + 1);
    for (int64_t i = 0; i < count; ++i) {
      const size_t at = tokens.size() + static_cast<size_t>(i);
      drafts->push_back(at % 5 == 4 || at >= truth_.size() ? 1 : truth_[at]);
    }
    return {};
  }

 private:
  std::vector<int32_t> truth_;
};

/// The draft model of a test: the model itself, or one of other weights.
std::unique_ptr<Drafter> model_drafter(const TinyModel& model, const SamplerOptions& sampler, float least) {
  EngineOptions options;
  options.max_sequences = 2;
  options.max_window = 1;
  options.threads = 1;
  return std::make_unique<ModelDrafter>(model.engine(options), sampler, least);
}

struct Kind {
  std::string name;
  std::unique_ptr<Drafter> drafter;
};

class GenerateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.max_window = 9;
    engine_ = model_.engine(options);
    ASSERT_TRUE(engine_);
  }

  Generation start(Drafter* drafter, const GenerationOptions& options, const std::string& prompt) {
    Generation g(engine_.get(), drafter, options);
    const Status s = g.start(tokens_of(prompt));
    EXPECT_TRUE(s.ok()) << s.message();
    return g;
  }
  static void run(Generation* g, int64_t tokens) {
    const Status s = g->run(tokens);
    EXPECT_TRUE(s.ok()) << s.message();
  }
  /// Every kind of drafter, those that need the truth included.
  std::vector<Kind> drafters(const std::vector<int32_t>& truth, const SamplerOptions& sampler) {
    std::vector<Kind> runs;
    runs.push_back({"lookup", std::make_unique<LookupDrafter>(1, 6)});
    runs.push_back({"same model", model_drafter(model_, sampler, 0)});
    runs.push_back({"same model, confident", model_drafter(model_, sampler, 0.05f)});
    runs.push_back({"other model", model_drafter(other_, sampler, 0)});
    runs.push_back({"combined", std::make_unique<CombinedDrafter>(std::make_unique<LookupDrafter>(2, 6),
                                                                  model_drafter(model_, sampler, 0), 3)});
    runs.push_back({"oracle", std::make_unique<OracleDrafter>(truth)});
    runs.push_back({"wrong", std::make_unique<WrongDrafter>(truth, 256)});
    return runs;
  }

  TinyModel model_{1}, other_{2};
  std::unique_ptr<Engine> engine_;
};

/// The fold policy of an engine changes no token and no byte of its states.
TEST_F(GenerateTest, EveryFoldPolicyGivesThePlainText) {
  GenerationOptions options;
  options.sampler = {0.8f, 0, 1, 5};
  options.drafts = 5;
  Generation plain = start(nullptr, options, "In the beginning");
  run(&plain, kTokens);
  for (const FoldPolicy policy : {FoldPolicy::on_next_verify, FoldPolicy::lazy}) {
    EngineOptions engine_options;
    engine_options.max_window = 9;
    engine_options.fold_policy = policy;
    const std::unique_ptr<Engine> engine = model_.engine(engine_options);
    ASSERT_TRUE(engine);
    Generation own(engine.get(), nullptr, options);
    ASSERT_TRUE(own.start(tokens_of("In the beginning")).ok());
    run(&own, kTokens);
    EXPECT_EQ(own.tokens(), plain.tokens());
    for (Kind& r : drafters(plain.tokens(), options.sampler)) {
      Generation drafted(engine.get(), r.drafter.get(), options);
      ASSERT_TRUE(drafted.start(tokens_of("In the beginning")).ok());
      run(&drafted, kTokens);
      EXPECT_EQ(drafted.tokens(), plain.tokens()) << r.name;
      EXPECT_TRUE(engine->same_state(drafted.sequence(), own.sequence())) << r.name;
    }
  }
}

TEST_F(GenerateTest, EveryDrafterGivesThePlainText) {
  const SamplerOptions samplers[] = {{}, {0.8f, 0, 1, 5}, {1.2f, 20, 1, 6}, {0.5f, 0, 0.9f, 7}, {1, 10, 0.8f, 8}};
  for (const SamplerOptions& sampler : samplers) {
    for (const std::string prompt : {"In the beginning", "x", "abcabcabcabcabcabcabcabcabcabcabcabcabcabc"}) {
      SCOPED_TRACE(::testing::Message() << prompt << ", temperature " << sampler.temperature << " seed "
                                        << sampler.seed);
      GenerationOptions options;
      options.sampler = sampler;
      options.drafts = 5;
      Generation plain = start(nullptr, options, prompt);
      run(&plain, kTokens);
      EXPECT_EQ(plain.stats().tokens, kTokens);
      EXPECT_EQ(plain.stats().steps, kTokens);
      for (Kind& r : drafters(plain.tokens(), sampler)) {
        Generation drafted = start(r.drafter.get(), options, prompt);
        run(&drafted, kTokens);
        EXPECT_EQ(drafted.tokens(), plain.tokens()) << r.name;
        EXPECT_TRUE(engine_->same_state(drafted.sequence(), plain.sequence())) << r.name;
        EXPECT_EQ(drafted.stats().tokens, kTokens);
        if (r.name == "wrong") {
          EXPECT_EQ(drafted.stats().steps, kTokens);
          EXPECT_GT(drafted.stats().drafted, kTokens * 4);
        }
        if (r.name == "same model") {
          EXPECT_EQ(drafted.stats().steps, kTokens / 6);
        }
        if (r.name == "oracle") {
          EXPECT_LT(drafted.stats().steps, kTokens);
        }
      }
    }
  }
}

TEST_F(GenerateTest, EveryDraftLength) {
  GenerationOptions options;
  Generation plain = start(nullptr, options, "windows");
  run(&plain, 40);
  for (int64_t drafts = 0; drafts <= 8; ++drafts) {
    options.drafts = drafts;
    OracleDrafter oracle(plain.tokens());
    Generation drafted = start(&oracle, options, "windows");
    run(&drafted, 40);
    EXPECT_EQ(drafted.tokens(), plain.tokens()) << drafts;
    EXPECT_TRUE(engine_->same_state(drafted.sequence(), plain.sequence())) << drafts;
  }
  options.drafts = 9;
  Generation g(engine_.get(), nullptr, options);
  EXPECT_EQ(g.start(tokens_of("x")).code(), Code::invalid_argument);
}

TEST_F(GenerateTest, StopsInsideAWindowLeaveTextAndStateInAgreement) {
  GenerationOptions options;
  options.drafts = 7;
  Generation free_run = start(nullptr, options, "stop here");
  run(&free_run, kTokens);
  const std::vector<int32_t> truth = free_run.tokens();
  const auto text = free_run.generated();
  for (size_t at = 2; at < 40; at += 12) {
    for (const size_t length : {size_t{1}, size_t{3}}) {
      const std::vector<int32_t> stop(text.begin() + static_cast<int64_t>(at + 1 - length),
                                      text.begin() + static_cast<int64_t>(at + 1));
      options.stops = {{999}, stop};
      Generation plain = start(nullptr, options, "stop here");
      run(&plain, kTokens);
      EXPECT_TRUE(plain.stopped());
      EXPECT_LE(plain.generated().size(), at + 1);
      EXPECT_TRUE(std::equal(stop.rbegin(), stop.rend(), plain.tokens().rbegin()));
      for (Kind& r : drafters(truth, {})) {
        Generation drafted = start(r.drafter.get(), options, "stop here");
        run(&drafted, kTokens);
        EXPECT_EQ(drafted.tokens(), plain.tokens()) << r.name << " at " << at;
        EXPECT_TRUE(drafted.stopped());
        EXPECT_TRUE(engine_->same_state(drafted.sequence(), plain.sequence())) << r.name << " at " << at;
        run(&drafted, 20);  // and on, as if nothing had happened; further stops may end it again
        Generation again = start(nullptr, options, "stop here");
        run(&again, kTokens);
        run(&again, 20);
        EXPECT_EQ(drafted.tokens(), again.tokens()) << r.name << " at " << at;
      }
    }
  }
}

TEST_F(GenerateTest, RunsInPiecesEqualOneRun) {
  GenerationOptions options;
  options.sampler = {0.9f, 0, 1, 3};
  Generation whole = start(nullptr, options, "pieces");
  run(&whole, kTokens);
  LookupDrafter lookup(1, 4);
  Generation pieces = start(&lookup, options, "pieces");
  for (const int64_t n : {1, 0, 2, 13, 14, 30}) run(&pieces, n);
  EXPECT_EQ(pieces.tokens(), whole.tokens());
}

TEST_F(GenerateTest, EndsWhereTheContextEnds) {
  EngineOptions engine_options;
  engine_options.max_context = 40;
  engine_options.max_window = 6;
  const auto small = model_.engine(engine_options);
  GenerationOptions options;
  Generation plain(small.get(), nullptr, options);
  ASSERT_TRUE(plain.start(tokens_of("a full context")).ok());
  ASSERT_TRUE(plain.run(1000).ok());
  EXPECT_EQ(plain.tokens().size(), 41u);  // the last token needs no place
  WrongDrafter wrong(plain.tokens(), 256);
  OracleDrafter oracle(plain.tokens());
  for (Drafter* drafter : {static_cast<Drafter*>(&wrong), static_cast<Drafter*>(&oracle)}) {
    Generation g(small.get(), drafter, options);
    ASSERT_TRUE(g.start(tokens_of("a full context")).ok());
    ASSERT_TRUE(g.run(1000).ok());
    EXPECT_EQ(g.tokens(), plain.tokens());
    EXPECT_FALSE(g.stopped());
  }
}

TEST_F(GenerateTest, SeesEachTokenOnceInOrder) {
  LookupDrafter lookup(1, 4);
  Generation g = start(&lookup, {}, "callbacks");
  std::vector<int32_t> seen;
  ASSERT_TRUE(g.run(30, [&](int32_t token) { seen.push_back(token); }).ok());
  EXPECT_TRUE(std::equal(seen.begin(), seen.end(), g.generated().begin(), g.generated().end()));
}

TEST_F(GenerateTest, RefusesBadPromptsAndOptions) {
  Generation g(engine_.get(), nullptr, {});
  EXPECT_EQ(g.start({}).code(), Code::invalid_argument);
  EXPECT_EQ(g.start(std::vector<int32_t>(2000, 1)).code(), Code::invalid_argument);
  EXPECT_EQ(g.start(std::vector<int32_t>{1, 256, 1}).code(), Code::invalid_argument);
  GenerationOptions bad;
  bad.sampler.top_p = 0;
  Generation h(engine_.get(), nullptr, bad);
  EXPECT_EQ(h.start(tokens_of("x")).code(), Code::invalid_argument);
}

TEST(Lookup, ProposesWhatFollowedTheLatestLongestMatch) {
  LookupDrafter lookup(2, 4);
  std::vector<int32_t> drafts;
  const auto propose = [&](const std::string& text, int64_t most) {
    drafts.clear();
    EXPECT_TRUE(lookup.propose(tokens_of(text), most, &drafts).ok());
    return std::string(drafts.begin(), drafts.end());
  };
  EXPECT_EQ(propose("a", 4), "");
  EXPECT_EQ(lookup.match_length(), 0);
  EXPECT_EQ(propose("abc1 abc2 ab", 2), "c2");
  EXPECT_EQ(lookup.match_length(), 3);               // " ab", latest
  EXPECT_EQ(propose("abc1 abc2 abc1 a", 3), "bc2");  // what followed "c1 a", not what followed the later " a"
  EXPECT_EQ(lookup.match_length(), 4);
  EXPECT_EQ(propose("abc1 abc2 abc1 aq", 3), "");
  lookup.reset();
  EXPECT_EQ(propose("xyxy", 5), "xyxyx");  // a match that reaches the end of the text goes on in circles
  EXPECT_EQ(propose("xyxyQ", 0), "");
}

}  // namespace
}  // namespace ringfold::engine
