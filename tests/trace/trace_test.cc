// Random accept/reject traces against plain decoding, bit for bit (contract C8, C12..C14, C16, C18).
#include <gtest/gtest.h>

#include "trace/tracer.h"

namespace ringfold::test {
namespace {

struct Gate {
  const char* name;
  MixerKind kind;
  bool safe;
};
constexpr Gate kGates[] = {
    {"gdn", MixerKind::gdn, false}, {"kda", MixerKind::kda, false}, {"kda_safe", MixerKind::kda, true}};

struct Precision {
  const char* name;
  DType state, act;
  StateRounding rounding;
};
constexpr Precision kPrecisions[] = {
    {"f32", DType::f32, DType::f32, StateRounding::per_commit},
    {"f32_act_bf16", DType::f32, DType::bf16, StateRounding::per_token},
    {"bf16_per_token", DType::bf16, DType::bf16, StateRounding::per_token},
    {"f16_per_token", DType::f16, DType::f32, StateRounding::per_token},
    {"bf16_per_commit", DType::bf16, DType::f16, StateRounding::per_commit},
    {"f16_per_commit", DType::f16, DType::f16, StateRounding::per_commit},
};

/// Small, and none a power of two throughout; HV/H = 1, 2, 3.
struct Shape {
  int64_t H, HV, K, V, rows, conv_width;
};
constexpr Shape kShapes[] = {
    {1, 1, 8, 8, 5, 4}, {1, 2, 12, 5, 3, 2}, {2, 6, 16, 20, 8, 3}, {1, 3, 9, 17, 4, 4}, {2, 2, 20, 8, 6, 3}};

void set_shape(const Shape& shape, PoolConfig* pool) {
  pool->H = shape.H, pool->HV = shape.HV, pool->K = shape.K, pool->V = shape.V;
  pool->ring_rows = shape.rows;
  pool->conv_width = shape.conv_width;
}

/// "" if the implementation serves all calls of a trace: kernels for a device may be made for some shapes.
std::string why_not_served(const RigConfig& config, const std::string& impl) {
  for (Op op : {Op::verify, Op::decode, Op::fold, Op::conv_verify, Op::conv_decode, Op::conv_commit}) {
    const Desc desc = describe(config.pool, op);
    Explanation explanation;
    if (const Status status = explain(desc, impl, &explanation); !status.ok()) return status.message();
  }
  return "";
}

/// What kernels for devices are made for, for those that serve no shape of above.
constexpr Shape kTunedShapes[] = {{1, 2, 64, 16, 5, 4}, {1, 1, 128, 32, 8, 3}, {2, 2, 64, 48, 3, 2}};

using Param = std::tuple<std::string, size_t, size_t>;

class Trace : public ::testing::TestWithParam<Param> {
 protected:
  void TearDown() override { set_num_threads(0); }
};

TEST_P(Trace, EqualsPlainDecoding) {
  const auto& [impl, gate, precision] = GetParam();
  const size_t point = gate * std::size(kPrecisions) + precision;
  RigConfig config;
  config.pool = {.layers = 2,
                 .slots = 6,
                 .kind = kGates[gate].kind,
                 .state_dtype = kPrecisions[precision].state,
                 .act_dtype = kPrecisions[precision].act,
                 .state_rounding = kPrecisions[precision].rounding,
                 .device = check::device_of(impl)};
  set_shape(kShapes[point % std::size(kShapes)], &config.pool);
  if (config.pool.device != Device::cpu && !why_not_served(config, impl).empty()) {
    set_shape(kTunedShapes[point % std::size(kTunedShapes)], &config.pool);
  }
  config.safe_gate = kGates[gate].safe;
  config.conv = precision != 3;
  config.out_dtype = precision % 2 == 0 ? DType::f32 : config.pool.act_dtype;
  config.seed = 1 + gate * 10 + precision;
  const uint64_t seed = 1000 + config.seed;
  RecordProperty("seed", static_cast<int>(seed));

  if (const std::string why = why_not_served(config, impl); !why.empty()) GTEST_SKIP() << why;
  set_num_threads(1 + static_cast<int>(seed % 3));
  constexpr int kSteps = 1000;
  Tracer tracer(config, impl, seed);
  for (int step = 0; step < kSteps; ++step) {
    tracer.step(step);
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ", step " << step;
  }
  // A trace that skipped a kind of act proves nothing about it. On a device nothing is refused for the whole call, and
  // duplicates are undefined.
  const bool on_device = config.pool.device != Device::cpu;
  for (const char* kind : {"verify",
                           "decode",
                           "commit",
                           "acquire",
                           "release",
                           "reset",
                           "copy",
                           "materialise",
                           "materialise refused",
                           "export",
                           "import",
                           "misuse",
                           "replay",
                           "tracked",
                           "accept 0",
                           "window replaced",
                           "refused call",
                           "done",
                           "null_row",
                           "slot_out_of_range",
                           "duplicate_slot",
                           "accept_out_of_range",
                           "no_pending_window",
                           "stale_generation",
                           "window_too_long",
                           "track_out_of_range",
                           "slot_not_acquired"}) {
    const std::string name = kind;
    if (on_device && (name == "refused call" || name == "duplicate_slot")) continue;
    EXPECT_TRUE(tracer.counts().contains(kind)) << kind << " never happened";
  }
}

std::vector<std::string> impls() {
  std::vector<std::string> names;
  for (std::string_view name : check::all_implementations()) names.emplace_back(name);
  return names;
}

std::string name_of(const ::testing::TestParamInfo<Param>& trace) {
  const auto& [impl, gate, precision] = trace.param;
  std::string name = impl + "_" + kGates[gate].name + "_" + kPrecisions[precision].name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Trace,
                         ::testing::Combine(::testing::ValuesIn(impls()),
                                            ::testing::Range(size_t{0}, std::size(kGates)),
                                            ::testing::Range(size_t{0}, std::size(kPrecisions))),
                         name_of);

}  // namespace
}  // namespace ringfold::test
