// Versions, names, implementations, threads, plans, and the last error of each thread.
#include <gmock/gmock.h>

#include <atomic>
#include <limits>
#include <thread>

#include "capi/bridge.h"

namespace ringfold::test {
namespace {

TEST(Registry, Versions) {
  EXPECT_EQ(ringfold_abi_version(), RINGFOLD_ABI_VERSION);
  EXPECT_EQ(ringfold_version(), version());
}

TEST(Registry, NamesAreThoseOfTheCppApi) {
  for (int32_t i = 0; i <= 5; ++i) EXPECT_STREQ(ringfold_status_name(i), to_string(static_cast<Code>(i)));
  for (int32_t i = 0; i <= 13; ++i) EXPECT_STREQ(ringfold_row_status_name(i), to_string(static_cast<RowStatus>(i)));
  for (const int32_t other : {-1, 6, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
    EXPECT_STREQ(ringfold_status_name(other), "unknown");
  }
  for (const int32_t other : {-1, 14, 77}) EXPECT_STREQ(ringfold_row_status_name(other), "unknown");
}

TEST(Registry, Implementations) {
  for (const Device device : {Device::cpu, Device::cuda}) {
    const auto want = implementations(device);
    for (size_t i = 0; i <= want.size() + 1; ++i) {
      const char* name = "unset";
      ASSERT_TRUE(done(ringfold_implementation(static_cast<int32_t>(device), i, &name)));
      if (i < want.size()) {
        EXPECT_EQ(name, want[i]);
      } else {
        EXPECT_EQ(name, nullptr);
      }
    }
  }
  const char* name = nullptr;
  EXPECT_TRUE(refused(ringfold_implementation(2, 0, &name), RINGFOLD_INVALID_ARGUMENT, "device: expected 0 .. 1"));
  EXPECT_TRUE(refused(ringfold_implementation(0, 0, nullptr), RINGFOLD_INVALID_ARGUMENT, "name: "));
}

TEST(Registry, Threads) {
  const int32_t all = ringfold_num_threads();
  EXPECT_GE(all, 1);
  ASSERT_TRUE(done(ringfold_set_num_threads(3)));
  EXPECT_EQ(ringfold_num_threads(), 3);
  for (const int32_t bad : {-1, 1025, std::numeric_limits<int32_t>::max()}) {
    EXPECT_TRUE(refused(ringfold_set_num_threads(bad), RINGFOLD_INVALID_ARGUMENT, "threads: expected 0 .. 1024"));
    EXPECT_EQ(ringfold_num_threads(), 3);
  }
  ASSERT_TRUE(done(ringfold_set_num_threads(0)));
  EXPECT_EQ(ringfold_num_threads(), all);
}

ringfold_desc small_desc() {
  auto desc = made<ringfold_desc>();
  desc.kind = RINGFOLD_KDA;
  desc.state_dtype = RINGFOLD_BF16;
  desc.act_dtype = RINGFOLD_F16;
  desc.H = 2, desc.HV = 4, desc.K = 64, desc.V = 32;
  desc.rows = 3, desc.window = 4;
  desc.channels = 10;
  desc.threads = 2;
  return desc;
}

Desc small_cpp_desc() {
  return {.kind = MixerKind::kda,
          .state_dtype = DType::bf16,
          .act_dtype = DType::f16,
          .H = 2,
          .HV = 4,
          .K = 64,
          .V = 32,
          .rows = 3,
          .window = 4,
          .channels = 10,
          .threads = 2};
}

void expect_footprint(const ringfold_footprint& got, const Footprint& want) {
  EXPECT_EQ(got.state_bytes, want.state_bytes);
  EXPECT_EQ(got.ring_row_bytes, want.ring_row_bytes);
  EXPECT_EQ(got.ring_bytes, want.ring_bytes);
  EXPECT_EQ(got.conv_state_bytes, want.conv_state_bytes);
  EXPECT_EQ(got.conv_ring_row_bytes, want.conv_ring_row_bytes);
  EXPECT_EQ(got.snapshot_bytes, want.snapshot_bytes);
  EXPECT_EQ(got.step_on_commit, want.step_on_commit);
  EXPECT_EQ(got.step_on_next_verify, want.step_on_next_verify);
  EXPECT_EQ(got.step_lazy, want.step_lazy);
  EXPECT_EQ(got.step_snapshot, want.step_snapshot);
}

/// A plan beside what the C++ API explains.
void expect_plan(const ringfold_plan* plan, const Explanation& want) {
  auto info = made<ringfold_plan_info>();
  ASSERT_TRUE(done(ringfold_plan_get_info(plan, &info)));
  if (want.plan.impl.empty()) {
    EXPECT_EQ(info.impl, nullptr);
    EXPECT_EQ(info.threads, 0);
  } else {
    ASSERT_NE(info.impl, nullptr);
    EXPECT_EQ(info.impl, want.plan.impl);
    EXPECT_EQ(info.threads, want.plan.threads);
  }
  EXPECT_EQ(info.tasks, want.plan.impl.empty() ? 0 : want.plan.tasks);
  EXPECT_EQ(info.v_parts, want.plan.impl.empty() ? 0 : want.plan.v_parts);
  EXPECT_EQ(info.bytes_read, want.plan.bytes_read);
  EXPECT_EQ(info.bytes_written, want.plan.bytes_written);
  EXPECT_EQ(info.fmas, want.plan.fmas);
  ASSERT_EQ(info.candidates, static_cast<int32_t>(want.candidates.size()));
  const char* text = nullptr;
  ASSERT_TRUE(done(ringfold_plan_get_text(plan, &text)));
  EXPECT_THAT(text, ::testing::HasSubstr(to_string(want.desc)));
  for (size_t i = 0; i < want.candidates.size(); ++i) {
    auto candidate = made<ringfold_candidate>();
    ASSERT_TRUE(done(ringfold_plan_get_candidate(plan, i, &candidate)));
    EXPECT_EQ(candidate.impl, want.candidates[i].impl);
    EXPECT_EQ(candidate.reason, want.candidates[i].reason);
    EXPECT_EQ(candidate.serves, want.candidates[i].serves ? 1 : 0);
    EXPECT_THAT(text, ::testing::AllOf(::testing::HasSubstr(candidate.impl), ::testing::HasSubstr(candidate.reason)));
  }
  auto candidate = made<ringfold_candidate>();
  EXPECT_TRUE(refused(ringfold_plan_get_candidate(plan, want.candidates.size(), &candidate), RINGFOLD_INVALID_ARGUMENT,
                      "index: expected 0 .. "));
  auto footprint = made<ringfold_footprint>();
  ASSERT_TRUE(done(ringfold_plan_get_footprint(plan, &footprint)));
  expect_footprint(footprint, want.footprint);
}

TEST(Registry, Explain) {
  const ringfold_desc desc = small_desc();
  for (const char* impl : {static_cast<const char*>(nullptr), "reference"}) {
    Explanation want;
    ASSERT_TRUE(succeeded(explain(small_cpp_desc(), impl == nullptr ? "" : impl, &want)));
    ringfold_plan* plan = nullptr;
    ASSERT_TRUE(done(ringfold_explain(&desc, impl, &plan)));
    expect_plan(plan, want);
    const char* text = nullptr;
    ASSERT_TRUE(done(ringfold_plan_get_text(plan, &text)));
    EXPECT_THAT(text, ::testing::HasSubstr(to_string(want.plan)));
    ringfold_plan_destroy(plan);
  }
}

TEST(Registry, ExplainWhatNothingServes) {
  ringfold_desc desc = small_desc();
  desc.window = 33;
  Desc cpp = small_cpp_desc();
  cpp.window = 33;
  Explanation want;
  EXPECT_EQ(explain(cpp, "", &want).code(), Code::unsupported);
  ringfold_plan* plan = nullptr;
  EXPECT_TRUE(refused(ringfold_explain(&desc, "", &plan), RINGFOLD_UNSUPPORTED, "nothing serves verify cpu"));
  ASSERT_NE(plan, nullptr);
  expect_plan(plan, want);
  ringfold_plan_destroy(plan);

  desc.window = 4;
  EXPECT_TRUE(refused(ringfold_explain(&desc, "nosuch", &plan), RINGFOLD_NOT_FOUND, "impl: expected one of "));
  ASSERT_NE(plan, nullptr);
  ringfold_plan_destroy(plan);
}

TEST(Registry, ExplainRefuses) {
  ringfold_plan* plan = reinterpret_cast<ringfold_plan*>(8);
  EXPECT_TRUE(refused(ringfold_explain(nullptr, nullptr, &plan), RINGFOLD_INVALID_ARGUMENT, "desc: expected a struct"));
  EXPECT_EQ(plan, nullptr);
  ringfold_desc desc = small_desc();
  EXPECT_TRUE(refused(ringfold_explain(&desc, nullptr, nullptr), RINGFOLD_INVALID_ARGUMENT, "plan: "));
  desc.K = -1;
  EXPECT_TRUE(refused(ringfold_explain(&desc, nullptr, &plan), RINGFOLD_INVALID_ARGUMENT, "K: expected 0 .. "));
  desc.K = INT64_MAX;
  EXPECT_TRUE(refused(ringfold_explain(&desc, nullptr, &plan), RINGFOLD_INVALID_ARGUMENT, "K: expected sizes whose "));
  desc.K = 1 << 20, desc.V = 1 << 20, desc.HV = 1 << 20;
  EXPECT_TRUE(refused(ringfold_explain(&desc, nullptr, &plan), RINGFOLD_INVALID_ARGUMENT, "V: expected sizes whose "));
  desc = small_desc();
  for (int32_t* field : {&desc.op, &desc.device, &desc.kind, &desc.numerics, &desc.state_rounding, &desc.fold_policy,
                         &desc.state_dtype, &desc.act_dtype, &desc.spaced_rows, &desc.snapshots, &desc.ring_u}) {
    const int32_t before = *field;
    for (const int32_t bad : {-1, 9}) {
      *field = bad;
      EXPECT_TRUE(refused(ringfold_explain(&desc, nullptr, &plan), RINGFOLD_INVALID_ARGUMENT, ""));
      EXPECT_EQ(plan, nullptr);
    }
    *field = before;
  }
  EXPECT_TRUE(done(ringfold_explain(&desc, nullptr, &plan)));
  ringfold_plan_destroy(plan);
  ringfold_plan_destroy(nullptr);
  auto info = made<ringfold_plan_info>();
  EXPECT_TRUE(refused(ringfold_plan_get_info(nullptr, &info), RINGFOLD_INVALID_ARGUMENT, "plan: expected a handle"));
  EXPECT_TRUE(refused(ringfold_plan_get_text(nullptr, nullptr), RINGFOLD_INVALID_ARGUMENT, "plan: expected a handle"));
}

TEST(Registry, ExplainOfZeros) {  // every operation, nothing else set: no crash, and a status
  for (int32_t op = 0; op <= RINGFOLD_OP_DECODE_LAYER; ++op) {
    auto desc = made<ringfold_desc>();
    desc.op = op;
    ringfold_plan* plan = nullptr;
    EXPECT_TRUE(done(ringfold_explain(&desc, nullptr, &plan)));
    ringfold_plan_destroy(plan);
    auto footprint = made<ringfold_footprint>();
    EXPECT_TRUE(done(ringfold_footprint_of(&desc, 0, &footprint)));
    EXPECT_EQ(footprint.state_bytes, 0);
  }
}

TEST(Registry, Footprint) {
  const ringfold_desc desc = small_desc();
  auto footprint_c = made<ringfold_footprint>();
  ASSERT_TRUE(done(ringfold_footprint_of(&desc, 0, &footprint_c)));
  expect_footprint(footprint_c, footprint(small_cpp_desc()));
  ASSERT_TRUE(done(ringfold_footprint_of(&desc, 1.5, &footprint_c)));
  expect_footprint(footprint_c, footprint(small_cpp_desc(), 1.5));
  for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(
        refused(ringfold_footprint_of(&desc, bad, &footprint_c), RINGFOLD_INVALID_ARGUMENT, "accepted_per_step: "));
  }
}

TEST(LastError, BelongsToItsThread) {
  EXPECT_TRUE(
      refused(ringfold_set_num_threads(-5), RINGFOLD_INVALID_ARGUMENT, "threads: expected 0 .. 1024, found -5"));
  const std::string mine = ringfold_last_error();
  std::string at_first = "unset", other, after;
  std::thread thread([&] {
    at_first = ringfold_last_error();
    (void)ringfold_verify(nullptr);
    other = ringfold_last_error();
    const char* name = nullptr;
    (void)ringfold_implementation(RINGFOLD_DEVICE_CPU, 0, &name);
    after = ringfold_last_error();
  });
  thread.join();
  EXPECT_EQ(at_first, "");
  EXPECT_EQ(other, "args: expected a struct, found NULL");
  EXPECT_EQ(after, "");  // a call that succeeds leaves none
  EXPECT_EQ(ringfold_last_error(), mine);
}

}  // namespace
}  // namespace ringfold::test
