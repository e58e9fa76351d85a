// Random accept/reject traces against plain decoding, bit for bit (contract C8, C12..C14, C16, C18).
#include <gtest/gtest.h>

#include <algorithm>

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
  std::vector<Op> ops = {Op::verify, Op::decode, Op::fold, Op::conv_verify, Op::conv_decode, Op::conv_commit};
  if (config.fused) ops.insert(ops.end(), {Op::verify_layer, Op::decode_layer});
  for (Op op : ops) {
    const Desc desc = describe(config.pool, op);
    Explanation explanation;
    if (const Status status = explain(desc, impl, &explanation); !status.ok()) return status.message();
  }
  return "";
}

/// May a trace be skipped because the implementation does not serve it? Only kernels for a device that are made for
/// some shapes, dtypes and fold policies (cuda.exact: 16-bit activations), or for `fast` numerics, whose outputs no
/// trace can compare bit for bit; the device's general implementation and all of the CPU's serve every trace.
bool may_skip(const std::string& impl) { return impl == "cuda.exact" || impl == "cuda.direct" || impl == "cuda.fast"; }

/// What kernels for devices are made for, for those that serve no shape of above.
constexpr Shape kTunedShapes[] = {{1, 2, 64, 16, 5, 4}, {1, 1, 128, 32, 8, 3}, {2, 2, 64, 48, 3, 2}};

using Param = std::tuple<std::string, size_t, size_t>;

class Trace : public ::testing::TestWithParam<Param> {
 protected:
  void TearDown() override { set_num_threads(0); }
  /// `steps` acts, and more until each of `kinds` has happened, four times as many at most: a trace that skipped a kind
  /// of act proves nothing about it.
  void run(const RigConfig& config, int steps, const std::vector<std::string>& kinds,
           std::map<std::string, int>* counts);
};

RigConfig config_of(const std::string& impl, size_t gate, size_t precision) {
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
  return config;
}

void Trace::run(const RigConfig& config, int steps, const std::vector<std::string>& kinds,
                std::map<std::string, int>* counts) {
  const uint64_t seed = 1000 + config.seed;
  RecordProperty("seed", static_cast<int>(seed));
  set_num_threads(1 + static_cast<int>(seed % 3));
  Tracer tracer(config, std::get<0>(GetParam()), seed);
  const auto missing = [&](const std::string& kind) { return !tracer.counts().contains(kind); };
  for (int step = 0; step < steps || (step < 4 * steps && std::any_of(kinds.begin(), kinds.end(), missing)); ++step) {
    tracer.step(step);
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ", step " << step;
  }
  *counts = tracer.counts();
  for (const std::string& kind : kinds) EXPECT_TRUE(counts->contains(kind)) << kind << " never happened";
}

TEST_P(Trace, EqualsPlainDecoding) {
  const auto& [impl, gate, precision] = GetParam();
  const RigConfig config = config_of(impl, gate, precision);
  if (const std::string why = why_not_served(config, impl); !why.empty()) {
    ASSERT_TRUE(may_skip(impl)) << why;
    GTEST_SKIP() << why;
  }
  // On a device nothing is refused for the whole call, and duplicates are undefined.
  const bool on_device = config.pool.device != Device::cpu;
  std::vector<std::string> kinds;
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
    if (!on_device || (name != "refused call" && name != "duplicate_slot")) kinds.push_back(name);
  }
  std::map<std::string, int> counts;
  run(config, 1000, kinds, &counts);
}

/// The same under the fold policies that keep a history: outputs and logical states are still those of plain decoding,
/// so those of on_commit. Rings of several sizes: too small for two windows, so that commits have to fold; just of two;
/// and larger, so that a history of several commits is replayed.
class PolicyTrace : public Trace {};

TEST_P(PolicyTrace, EqualsPlainDecoding) {
  const auto& [impl, policy, precision] = GetParam();
  RigConfig config = config_of(impl, (precision + policy) % std::size(kGates), precision);
  PoolConfig& pool = config.pool;
  pool.fold_policy = policy == 0 ? FoldPolicy::on_next_verify : FoldPolicy::lazy;
  pool.max_window = pool.ring_rows;
  const size_t size = (precision + 2 * policy) % 3;
  pool.ring_rows = size == 0 ? pool.max_window + 1 : size == 1 ? 2 * pool.max_window : 2 * pool.max_window + 3;
  config.seed += 500 + policy * 100;
  if (const std::string why = why_not_served(config, impl); !why.empty()) {
    ASSERT_TRUE(may_skip(impl)) << why;
    GTEST_SKIP() << why;
  }
  std::vector<std::string> kinds = {"due",         "folded once", "settle", "commit tracked", "commit moved cursors",
                                    "decode",      "export",      "import", "copy",           "materialise",
                                    "window wraps"};
  if (policy == 1 && size > 0) kinds.emplace_back("not due");
  if (size == 0) kinds.emplace_back("commit folded");
  if (size > 0) kinds.emplace_back("history wraps");
  for (int64_t base = 0; base < pool.ring_rows; ++base) kinds.push_back("base " + std::to_string(base));
  std::map<std::string, int> counts;
  run(config, 600, kinds, &counts);
  EXPECT_FALSE(size > 0 && counts.contains("commit folded")) << "a commit folded in a ring of two windows";
}

/// Layers in one call each, under all fold policies: still what plain decoding by the chain of three calls gives.
class FusedTrace : public Trace {};

TEST_P(FusedTrace, EqualsPlainDecoding) {
  const auto& [impl, gate, precision] = GetParam();
  RigConfig config = config_of(impl, gate, precision);
  config.conv = config.fused = true;
  PoolConfig& pool = config.pool;
  const size_t policy = (gate + precision) % 3;
  pool.fold_policy = policy == 0 ? FoldPolicy::on_commit : policy == 1 ? FoldPolicy::on_next_verify : FoldPolicy::lazy;
  if (policy > 0) pool.max_window = pool.ring_rows, pool.ring_rows = 2 * pool.max_window + (policy == 2 ? 3 : 0);
  config.seed += 900;
  if (const std::string why = why_not_served(config, impl); !why.empty()) {
    ASSERT_TRUE(may_skip(impl)) << why;
    GTEST_SKIP() << why;
  }
  std::vector<std::string> kinds = {
      "verify", "decode",   "commit",          "copy", "materialise", "export",          "import",
      "replay", "accept 0", "window replaced", "done", "null_row",    "window_too_long", "slot_not_acquired"};
  // On a device nothing is refused for the whole call, and duplicates are undefined.
  if (pool.device == Device::cpu) kinds.insert(kinds.end(), {"refused call", "duplicate_slot"});
  std::map<std::string, int> counts;
  run(config, 400, kinds, &counts);
}

/// KDA with the raw gate in the ring, in each of its dtypes and under all fold policies: still plain decoding.
class RawGateTrace : public Trace {};

TEST_P(RawGateTrace, EqualsPlainDecoding) {
  const auto& [impl, policy, precision] = GetParam();
  RigConfig config = config_of(impl, 1 + (policy + precision) % 2, precision);
  PoolConfig& pool = config.pool;
  constexpr DType kDTypes[] = {DType::bf16, DType::f16, DType::f32};
  constexpr FoldPolicy kPolicies[] = {FoldPolicy::on_commit, FoldPolicy::on_next_verify, FoldPolicy::lazy};
  pool.ring_a = kDTypes[(precision + policy) % 3];
  pool.fold_policy = kPolicies[policy];
  if (policy > 0) pool.max_window = pool.ring_rows, pool.ring_rows = 2 * pool.max_window + (policy == 2 ? 3 : 0);
  config.seed += 1300 + policy * 100;
  if (const std::string why = why_not_served(config, impl); !why.empty()) {
    ASSERT_TRUE(may_skip(impl)) << why;
    GTEST_SKIP() << why;
  }
  std::vector<std::string> kinds = {"verify", "decode",   "commit",          "copy", "materialise", "export", "import",
                                    "replay", "accept 0", "window replaced", "done", "null_row"};
  if (policy > 0) kinds.insert(kinds.end(), {"due", "settle", "window wraps", "history wraps"});
  std::map<std::string, int> counts;
  run(config, 400, kinds, &counts);
}

/// Rings keyed by request row, fewer than slots: windows lose their rings to others, and what is committed is still
/// plain decoding. In one call and in three, with g and with `a` in the ring.
class RowRingTrace : public Trace {};

TEST_P(RowRingTrace, EqualsPlainDecoding) {
  const auto& [impl, gate, precision] = GetParam();
  RigConfig config = config_of(impl, gate, precision);
  config.pool.rings = 2 + static_cast<int64_t>(precision % 2);
  config.fused = (gate + precision) % 2 == 0;
  config.conv = config.fused || precision != 3;
  if (gate > 0 && precision % 3 == 1) config.pool.ring_a = DType::bf16;
  config.seed += 1700;
  if (const std::string why = why_not_served(config, impl); !why.empty()) {
    ASSERT_TRUE(may_skip(impl)) << why;
    GTEST_SKIP() << why;
  }
  const bool on_device = config.pool.device != Device::cpu;
  std::vector<std::string> kinds;
  for (const char* kind : {"verify",
                           "decode",
                           "commit",
                           "release",
                           "reset",
                           "copy",
                           "materialise",
                           "materialise refused",
                           "export",
                           "import",
                           "tracked",
                           "accept 0",
                           "done",
                           "window replaced",
                           "ring taken",
                           "null_row",
                           "no_pending_window",
                           "stale_generation",
                           "ring_out_of_range",
                           "window_not_in_ring",
                           "duplicate_ring"}) {
    const std::string name = kind;
    if (!on_device || name != "duplicate_ring") kinds.push_back(name);
  }
  std::map<std::string, int> counts;
  run(config, 600, kinds, &counts);
}

/// A pool whose ring keeps u, on a device: windows of `fast` numerics read it, everything else goes by the raw rows. So
/// states are those of plain decoding, and outputs near them. KDA's gates come twice: the ring has g, or the raw gate.
class FastTrace : public Trace {};
constexpr size_t kRawGates = 2;

TEST_P(FastTrace, IsNearPlainDecoding) {
  const size_t precision = std::get<2>(GetParam()), which = std::get<1>(GetParam());
  const bool raw = which >= std::size(kGates);
  const Gate& gate = kGates[raw ? which - kRawGates : which];
  RigConfig config;
  config.pool = {.layers = 2,
                 .slots = 6,
                 .H = 1,
                 .HV = 2,
                 .K = precision % 2 == 0 ? 64 : 128,
                 .V = 64,
                 .kind = gate.kind,
                 .state_dtype = kPrecisions[precision].state,
                 .act_dtype = kPrecisions[precision].act,
                 .ring_rows = precision % 2 == 0 ? 13 : 10,
                 .max_window = 5,
                 .state_rounding = StateRounding::per_commit,
                 .fold_policy = FoldPolicy::lazy,
                 .ring_u = true,
                 .device = Device::cuda};
  config.safe_gate = gate.safe;
  if (raw) config.pool.ring_a = precision % 2 == 0 ? DType::f32 : config.pool.act_dtype;
  config.seed = 900 + precision + 10 * which;
  if (implementations(Device::cuda).empty()) GTEST_SKIP() << "no implementation for a GPU runs here";
  if (const std::string why = why_not_served(config, ""); !why.empty()) {
    ASSERT_EQ(size_of(config.pool.act_dtype), 4) << why;
    GTEST_SKIP() << why;
  }
  std::vector<std::string> kinds = {
      "settle",      "commit tracked", "commit folded", "decode",  "export",          "import",  "copy",
      "materialise", "window wraps",   "history wraps", "not due", "window replaced", "release", "reset"};
  for (int64_t base = 0; base < config.pool.ring_rows; ++base) kinds.push_back("base " + std::to_string(base));
  std::map<std::string, int> counts;
  run(config, 600, kinds, &counts);
  EXPECT_FALSE(counts.contains("due")) << "a verify folded";
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

INSTANTIATE_TEST_SUITE_P(All, FusedTrace,
                         ::testing::Combine(::testing::ValuesIn(impls()),
                                            ::testing::Range(size_t{0}, std::size(kGates)),
                                            ::testing::Range(size_t{0}, std::size(kPrecisions))),
                         name_of);

INSTANTIATE_TEST_SUITE_P(All, RowRingTrace,
                         ::testing::Combine(::testing::ValuesIn(impls()),
                                            ::testing::Range(size_t{0}, std::size(kGates)),
                                            ::testing::Range(size_t{0}, std::size(kPrecisions))),
                         name_of);

std::string fast_name_of(const ::testing::TestParamInfo<Param>& trace) {
  const auto& [impl, gate, precision] = trace.param;
  const bool raw = gate >= std::size(kGates);
  return std::string("cuda_fast_") + kGates[raw ? gate - kRawGates : gate].name + (raw ? "_raw_" : "_") +
         kPrecisions[precision].name;
}

INSTANTIATE_TEST_SUITE_P(All, FastTrace,
                         ::testing::Combine(::testing::Values(std::string()),
                                            ::testing::Range(size_t{0}, std::size(kGates) + kRawGates),
                                            ::testing::Range(size_t{0}, std::size(kPrecisions))),
                         fast_name_of);

std::string policy_name_of(const ::testing::TestParamInfo<Param>& trace) {
  const auto& [impl, policy, precision] = trace.param;
  std::string name = impl + (policy == 0 ? "_on_next_verify_" : "_lazy_") + kPrecisions[precision].name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

std::string raw_gate_name_of(const ::testing::TestParamInfo<Param>& trace) {
  const auto& [impl, policy, precision] = trace.param;
  constexpr const char* kPolicies[] = {"_on_commit_", "_on_next_verify_", "_lazy_"};
  std::string name = impl + kPolicies[policy] + kPrecisions[precision].name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, RawGateTrace,
                         ::testing::Combine(::testing::ValuesIn(impls()), ::testing::Range(size_t{0}, size_t{3}),
                                            ::testing::Range(size_t{0}, std::size(kPrecisions))),
                         raw_gate_name_of);

INSTANTIATE_TEST_SUITE_P(All, PolicyTrace,
                         ::testing::Combine(::testing::ValuesIn(impls()), ::testing::Range(size_t{0}, size_t{2}),
                                            ::testing::Range(size_t{0}, std::size(kPrecisions))),
                         policy_name_of);

}  // namespace
}  // namespace ringfold::test
