// Dispatch, plans and footprints: pure functions.
#include "ringfold/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cpu/tiling.h"
#include "ringfold/pool.h"

namespace ringfold {
namespace {

using testing::HasSubstr;

Desc qwen() {
  Desc d;
  d.H = 16, d.HV = 32, d.K = d.V = 128;
  d.rows = 8, d.window = 4;
  d.state_dtype = DType::f32;
  d.act_dtype = DType::bf16;
  return d;
}

TEST(Registry, TheReferenceEndsTheList) {
  const auto names = implementations();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.back(), "reference");
}

TEST(Registry, EveryCandidateHasAReason) {
  Explanation e;
  ASSERT_TRUE(explain(qwen(), "", &e).ok());
  int chosen = 0;
  for (const Candidate& c : e.candidates) {
    EXPECT_FALSE(c.reason.empty());
    chosen += c.reason == "chosen" ? 1 : 0;
  }
  EXPECT_EQ(chosen, 1);
  EXPECT_EQ(e.plan.impl, implementations().front());
}

TEST(Registry, SelectingIsPure) {
  Explanation a, b;
  ASSERT_TRUE(explain(qwen(), "", &a).ok());
  ASSERT_TRUE(explain(qwen(), "", &b).ok());
  EXPECT_EQ(a.plan, b.plan);
  EXPECT_EQ(a.footprint, b.footprint);
}

TEST(Registry, ForcedNames) {
  Explanation e;
  ASSERT_TRUE(explain(qwen(), "reference", &e).ok());
  EXPECT_EQ(e.plan.impl, "reference");
  const Status unknown = explain(qwen(), "cpu.mmx", &e);
  EXPECT_EQ(unknown.code(), Code::not_found);
  EXPECT_THAT(unknown.message(), HasSubstr("cpu.mmx"));
  EXPECT_THAT(unknown.message(), HasSubstr("reference"));
}

/// Why this machine has no CUDA implementation that runs; empty: it has.
std::string why_no_cuda() {
  Explanation e;
  Desc d = qwen();
  d.device = Device::cuda;
  return explain(d, "", &e).message();
}

TEST(Registry, FoldPoliciesAreServedOnEveryDeviceButWithFastNumerics) {
  for (const FoldPolicy policy : {FoldPolicy::on_next_verify, FoldPolicy::lazy}) {
    for (const Op op : {Op::verify, Op::decode, Op::fold}) {
      Explanation e;
      Desc d = qwen();
      d.op = op;
      d.fold_policy = policy;
      EXPECT_TRUE(explain(d, "", &e).ok());
      int serve = 0;
      for (const Candidate& c : e.candidates) serve += c.serves;
      EXPECT_GE(serve, 2) << "the reference, and one more";
      d.device = Device::cuda;
      d.history_rows = 8;
      EXPECT_EQ(explain(d, "", &e).ok(), why_no_cuda().empty());
      // What is exact is near enough, but where the ring keeps u, which only cuda.fast writes.
      d.numerics = Numerics::fast;
      EXPECT_EQ(explain(d, "", &e).ok(), why_no_cuda().empty());
      d.ring_u = true;
      (void)explain(d, "", &e);
      for (const Candidate& c : e.candidates) {
        EXPECT_TRUE(!c.serves || op != Op::verify || c.impl == "cuda.fast") << c.impl << ": " << c.reason;
      }
    }
  }
}

TEST(Registry, HistoriesByUAreServedForBothMixersOnADevice) {
  if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << why;
  for (const MixerKind kind : {MixerKind::gdn, MixerKind::kda}) {
    for (const auto& a : {std::optional<DType>(), std::optional(DType::bf16)}) {
      if (a && kind == MixerKind::gdn) continue;
      Explanation e;
      Desc d = qwen();
      d.device = Device::cuda, d.kind = kind, d.act_dtype = DType::bf16, d.numerics = Numerics::fast;
      d.fold_policy = FoldPolicy::lazy, d.history_rows = 32, d.ring_u = true, d.ring_a = a;
      const Status status = explain(d, "", &e);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(e.plan.impl, "cuda.fast");
      d.input_alignment = 8;
      const Status unaligned = explain(d, "", &e);
      EXPECT_NE(unaligned.message().find("aligned to 16 bytes"), std::string::npos) << unaligned.message();
    }
  }
}

// A candidate may leave a call to another one that is faster there; by name it is had all the same.
TEST(Registry, SmallBatchesHaveAKernelOfTheirOwn) {
  if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << why;
  Explanation e;
  Desc d = qwen();
  d.device = Device::cuda, d.act_dtype = DType::bf16;
  const auto reason = [&](std::string_view impl) {
    const auto of =
        std::find_if(e.candidates.begin(), e.candidates.end(), [&](const Candidate& c) { return c.impl == impl; });
    return of == e.candidates.end() ? std::string("not listed") : of->reason;
  };
  d.rows = 1;
  ASSERT_TRUE(explain(d, "", &e).ok());
  EXPECT_EQ(e.plan.impl, "cuda.direct");
  EXPECT_EQ(reason("cuda.exact"), "serves");
  d.rows = 4096;
  ASSERT_TRUE(explain(d, "", &e).ok());
  EXPECT_EQ(e.plan.impl, "cuda.exact");
  EXPECT_EQ(reason("cuda.direct"),
            "serves, but leaves this many heads to others, got B*HV = " + std::to_string(4096 * d.HV));
  ASSERT_TRUE(explain(d, "cuda.direct", &e).ok());
  EXPECT_EQ(e.plan.impl, "cuda.direct");
  EXPECT_EQ(reason("cuda.direct"), "forced");
}

TEST(Registry, ALayerInOneCallIsTheDirectKernelsWhateverTheBatch) {
  if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << why;
  for (const Op op : {Op::verify_layer, Op::decode_layer}) {
    Desc d = qwen();
    d.op = op, d.device = Device::cuda, d.act_dtype = DType::bf16, d.channels = 2 * d.H * d.K + d.HV * d.V;
    for (const int64_t rows : {1, 4096}) {
      Explanation e;
      d.rows = rows;
      ASSERT_TRUE(explain(d, "", &e).ok());
      EXPECT_EQ(e.plan.impl, "cuda.direct");
    }
    Explanation e;
    d.window = 16;
    ASSERT_TRUE(explain(d, "", &e).ok());
    EXPECT_EQ(e.plan.impl, "cuda.general");
  }
}

TEST(Registry, FastNumericsAreServedByWhatIsFaster) {
  if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << why;
  Explanation e;
  Desc d = qwen();
  d.device = Device::cuda, d.kind = MixerKind::kda, d.H = 32, d.numerics = Numerics::fast, d.rows = 512;
  ASSERT_TRUE(explain(d, "", &e).ok());
  EXPECT_EQ(e.plan.impl, "cuda.fast");
  d.window = 2;
  ASSERT_TRUE(explain(d, "", &e).ok());
  EXPECT_EQ(e.plan.impl, "cuda.exact");
  d.packed_rows = false;  // which cuda.exact does not serve
  ASSERT_TRUE(explain(d, "", &e).ok());
  EXPECT_EQ(e.plan.impl, "cuda.fast");
}

TEST(Registry, WhatIsNotBuiltIsRefusedWithAHint) {
  Explanation e;
  Desc d = qwen();
  EXPECT_THAT(explain(d, "cuda.fast", &e).message(), HasSubstr("cuda"));
  if (const std::string why = why_no_cuda(); !why.empty()) {
    EXPECT_THAT(why, HasSubstr("cpu"));
  }
}

TEST(Registry, ThreadsHaveALimit) {
  const int before = num_threads();
  for (int many : {1025, INT32_MAX}) {
    set_num_threads(many);
    EXPECT_EQ(num_threads(), 1024);
  }
  set_num_threads(-1);
  EXPECT_EQ(num_threads(), before) << "all cores";
  Desc d = qwen();
  d.rows = 100000;
  d.threads = INT32_MAX;
  Explanation e;
  EXPECT_TRUE(explain(d, "", &e).ok());
  EXPECT_EQ(e.plan.threads, 1024);
}

// 32 heads of 128 x 128 floats; a row is v and k in bf16, g and beta in fp32.
TEST(Registry, FootprintOfQwen35) {
  const Footprint f = footprint(qwen());
  EXPECT_EQ(f.state_bytes, 32 * 128 * 128 * 4);
  EXPECT_EQ(f.ring_row_bytes, 32 * 128 * 2 + 16 * 128 * 2 + 32 * 4 + 32 * 4);
  EXPECT_EQ(f.ring_bytes, 4 * f.ring_row_bytes);
  EXPECT_EQ(f.snapshot_bytes, 4 * f.state_bytes);
  EXPECT_EQ(f.step_snapshot, 5 * f.state_bytes);
  EXPECT_GT(f.step_on_commit, f.step_on_next_verify);
  EXPECT_GT(f.step_on_next_verify, f.step_lazy);
}

TEST(Registry, KdaRingRowsHoldOneGatePerChannel) {
  Desc d = qwen();
  d.kind = MixerKind::kda;
  EXPECT_EQ(footprint(d).ring_row_bytes - footprint(qwen()).ring_row_bytes, 32 * 127 * 4);
}

TEST(Registry, RingsWithUHoldOneFloatPerValue) {
  Desc d = qwen();
  d.fold_policy = FoldPolicy::lazy;
  d.ring_u = true;
  EXPECT_EQ(footprint(d).ring_row_bytes - footprint(qwen()).ring_row_bytes, 32 * 128 * 4);
}

TEST(Registry, FootprintOfTheShortConv) {
  EXPECT_EQ(footprint(qwen()).conv_state_bytes, 0);
  EXPECT_EQ(footprint(qwen()).conv_ring_row_bytes, 0);
  Desc d = qwen();
  d.channels = 8192;
  const Footprint f = footprint(d);
  EXPECT_EQ(f.conv_ring_row_bytes, 8192 * 2);
  EXPECT_EQ(f.conv_state_bytes, 3 * 8192 * 2);
  EXPECT_EQ(f.state_bytes, footprint(qwen()).state_bytes);
  EXPECT_EQ(f.step_on_commit, footprint(qwen()).step_on_commit);
}

// A pool of one slot holds what explain says of a request.
TEST(Registry, FootprintIsThatOfAPool) {
  Desc d = qwen();
  d.channels = 8192, d.conv_width = 3;
  const Footprint f = footprint(d);
  PoolBytes bytes;
  ASSERT_TRUE(pool_bytes({.layers = 2,
                          .slots = 1,
                          .H = d.H,
                          .HV = d.HV,
                          .K = d.K,
                          .V = d.V,
                          .state_dtype = d.state_dtype,
                          .act_dtype = d.act_dtype,
                          .ring_rows = d.window,
                          .conv_channels = d.channels,
                          .conv_width = d.conv_width},
                         &bytes)
                  .ok());
  EXPECT_EQ(bytes.state, 2u * f.state_bytes);
  EXPECT_EQ(bytes.ring, 2u * f.ring_bytes);
  EXPECT_EQ(bytes.conv, 2u * (f.conv_state_bytes + d.window * f.conv_ring_row_bytes));
}

TEST(Tiling, PartsCoverVOnce) {
  for (const int V : {1, 7, 31, 32, 33, 64, 80, 128, 200, 256}) {
    for (int parts = 1; parts <= std::max(1, V / cpu::kLeastRows); ++parts) {
      EXPECT_EQ(cpu::v_part_begin(V, parts, 0), 0);
      EXPECT_EQ(cpu::v_part_begin(V, parts, parts), V);
      for (int i = 0; i < parts; ++i)
        EXPECT_LT(cpu::v_part_begin(V, parts, i), cpu::v_part_begin(V, parts, i + 1)) << V << " " << parts;
    }
  }
}

TEST(Tiling, OneHeadStillUsesAllThreads) {
  EXPECT_EQ(cpu::v_parts(1, 128, 2), 2);
  EXPECT_EQ(cpu::v_parts(1, 128, 16), 4);
  EXPECT_EQ(cpu::v_parts(2, 128, 2), 1);
  EXPECT_EQ(cpu::v_parts(1, 16, 8), 1);
}

}  // namespace
}  // namespace ringfold
