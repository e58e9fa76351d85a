// The bundled models against transformers: logits of fixed prompts, and the greedy text.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "engine/generate.h"
#include "io/safetensors.h"

namespace ringfold::engine {
namespace {

const std::string kRoot = RINGFOLD_SOURCE_DIR;

class GoldenTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const Status s = io::SafetensorsFile::open(kRoot + "/tests/data/golden/" + GetParam() + ".safetensors", &file_);
    ASSERT_TRUE(s.ok()) << s.message();
    engine_ = load(kRoot + "/models/" + GetParam());
    ASSERT_TRUE(engine_);
  }
  static std::unique_ptr<Engine> load(const std::string& dir) {
    EngineOptions options;
    options.threads = 1;
    std::unique_ptr<Engine> engine;
    const Status s = Engine::load(dir, options, &engine);
    EXPECT_TRUE(s.ok()) << s.message();
    return engine;
  }
  double metadata(const std::string& key) const { return std::stod(file_->metadata().at(key)); }
  int prompts() const { return static_cast<int>(metadata("prompts")); }
  template <class T>
  std::span<const T> values(int prompt, const std::string& name) const {
    const io::StoredTensor* t = file_->find(std::to_string(prompt) + "." + name);
    EXPECT_TRUE(t) << name;
    if (!t) return {};
    return {reinterpret_cast<const T*>(t->bytes.data()), t->bytes.size() / sizeof(T)};
  }
  /// Distance that is allowed between the engine's fp32 logits and those of transformers in fp32.
  ///
  /// The golden file notes d, the largest distance on these prompts between transformers in fp32 and in fp64: what fp32
  /// rounding does to this model. The engine computes the same formulas in fp32 with other orders of summation (eight
  /// partial sums, which round less often than one long chain, and exp within 2e-7), so its distance from fp64 is
  /// another sample of the same error, and the distance between both is at most the sum of the two. d is the maximum
  /// over thousands of logits; the maximum of the second sample is granted twice that, which makes 3 d.
  /// AWrongConstantShows tests that this is tight enough.
  double tolerance() const { return 3 * metadata("max_abs_fp32_minus_fp64"); }

  /// The largest distance between an engine's logits and the golden ones.
  double distance(Engine* engine) const {
    const size_t vocab = static_cast<size_t>(engine->config().vocab_size);
    double worst = 0;
    for (int p = 0; p < prompts(); ++p) {
      const auto ids = values<int32_t>(p, "ids");
      const auto golden = values<float>(p, "logits");
      EXPECT_EQ(golden.size(), ids.size() * vocab);
      std::unique_ptr<Sequence> sequence;
      EXPECT_TRUE(engine->create_sequence(&sequence).ok());
      for (size_t at = 0; at < ids.size(); at += kMaxWindow) {
        const StepRow row{sequence.get(), ids.subspan(at, std::min<size_t>(kMaxWindow, ids.size() - at))};
        const float* logits = nullptr;
        const Status s = engine->step({&row, 1}, Mode::decode, Logits::all, &logits);
        EXPECT_TRUE(s.ok()) << s.message();
        for (size_t i = 0; s.ok() && i < row.tokens.size() * vocab; ++i) {
          const double d = std::abs(static_cast<double>(logits[i]) - golden[at * vocab + i]);
          worst = d <= worst ? worst : d;  // a NaN counts
        }
      }
    }
    return worst;
  }

  std::unique_ptr<io::SafetensorsFile> file_;
  std::unique_ptr<Engine> engine_;
};

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest, ::testing::Values("hybrid-byte", "hybrid-byte-draft"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(GoldenTest, LogitsOfTransformers) {
  ASSERT_GE(prompts(), 1);
  const double worst = distance(engine_.get());
  EXPECT_LE(worst, tolerance());
  EXPECT_GT(worst, 0) << "compared with itself?";
  RecordProperty("worst", std::to_string(worst));
}

TEST_P(GoldenTest, AWrongConstantShows) {
  const std::string dir = ::testing::TempDir() + "ringfold-golden-" + std::to_string(getpid()) + "-" + GetParam();
  std::filesystem::create_directories(dir);
  const std::string model = kRoot + "/models/" + GetParam();
  std::filesystem::create_symlink(model + "/model.safetensors", dir + "/model.safetensors");
  const nlohmann::json config = nlohmann::json::parse(std::ifstream(model + "/config.json"));
  for (const char* change : {R"({"rms_norm_eps": 2e-6})", R"({"rope_parameters": {"rope_theta": 10100.0}})"}) {
    nlohmann::json wrong = config;
    wrong.merge_patch(nlohmann::json::parse(change));
    std::ofstream(dir + "/config.json") << wrong.dump();
    const auto engine = load(dir);
    ASSERT_TRUE(engine);
    EXPECT_GT(distance(engine.get()), 2 * tolerance()) << change;
  }
  std::filesystem::remove_all(dir);
}

TEST_P(GoldenTest, GreedyTextOfTransformers) {
  LookupDrafter lookup(kMinNgram, kMaxNgram);
  for (int p = 0; p < prompts(); ++p) {
    const auto golden = values<int32_t>(p, "greedy_ids");
    const auto margins = values<float>(p, "greedy_margin");
    // Where two logits are closer than the tolerance lets them move, either choice is right, and the texts may part.
    size_t certain = 0;
    while (certain < golden.size() && margins[certain] > 2 * tolerance()) ++certain;
    EXPECT_GT(certain, 10u) << "the golden file cannot tell";
    for (Drafter* drafter : {static_cast<Drafter*>(nullptr), static_cast<Drafter*>(&lookup)}) {
      Generation g(engine_.get(), drafter, {});
      ASSERT_TRUE(g.start(values<int32_t>(p, "ids")).ok());
      ASSERT_TRUE(g.run(static_cast<int64_t>(certain)).ok());
      EXPECT_TRUE(std::equal(g.generated().begin(), g.generated().end(), golden.begin())) << "prompt " << p;
      EXPECT_EQ(g.generated().size(), certain);
    }
  }
}

}  // namespace
}  // namespace ringfold::engine
