// Accept counts, commits and rings: public reports 4 to 12 (docs/public-faults.md).
#include <climits>

#include "faults/case.h"

namespace ringfold::test {
namespace {

using Tokens = std::vector<int>;

/// Runs `body` for every implementation and gate.
template <class Body>
void for_each_mixer(Body body) {
  for (std::string_view impl : impls()) {
    for (int gate = 0; gate < 3; ++gate) {
      SCOPED_TRACE(std::string(impl) + (gate == 0 ? " gdn" : gate == 1 ? " kda" : " kda safe"));
      body(impl, small_rig(gate == 0 ? MixerKind::gdn : MixerKind::kda, gate == 2));
    }
  }
}

TEST(Fault4, ZeroAcceptedBesideOthers) {
  for_each_mixer([](std::string_view impl, const RigConfig& config) {
    Bench p(config, 2);
    p.decode({{.slot = 0, .tokens = {1, 2}}, {.slot = 1, .tokens = {3}}}, impl);
    const Plain::State before = p.state(0);
    p.verify({{.slot = 0, .tokens = {4, 5, 6}}, {.slot = 1, .tokens = {7, 8, 9}}}, impl);
    EXPECT_EQ(p.commit({0, 1}, {0, 2}, {}, {}, impl), statuses({RowStatus::done, RowStatus::done}));
    EXPECT_EQ(p.state(0), before);
    EXPECT_EQ(p.compare(1, {3, 7, 8}), "");
    EXPECT_EQ(p.commit({0}, {0}), statuses({RowStatus::no_pending_window}));
  });
}

TEST(Fault5, AcceptCountsOutOfRangeTouchNothing) {
  for_each_mixer([](std::string_view impl, const RigConfig& config) {
    Bench p(config, 5);
    std::vector<Row> rows;
    for (int32_t slot = 0; slot < 5; ++slot) rows.push_back({.slot = slot, .tokens = {slot, slot + 1, slot + 2}});
    p.verify(rows, impl);
    const auto refused = RowStatus::accept_out_of_range;
    EXPECT_EQ(p.commit({0, 1, 2, 3, 4}, {0, 3, 4, -1, INT_MAX}, {}, {}, impl),
              statuses({RowStatus::done, RowStatus::done, refused, refused, refused}));
    EXPECT_EQ(p.compare(0, {}), "");
    EXPECT_EQ(p.compare(1, {1, 2, 3}), "");
    // The windows of the refused rows still wait for a count that makes sense.
    EXPECT_EQ(p.commit({2, 3, 4}, {3, 1, 0}, {}, {}, impl),
              statuses({RowStatus::done, RowStatus::done, RowStatus::done}));
    EXPECT_EQ(p.compare(2, {2, 3, 4}), "");
    EXPECT_EQ(p.compare(3, {3}), "");
    EXPECT_EQ(p.compare(4, {}), "");
  });
}

TEST(Fault6, AcceptBeyondTheRing) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    Case c({.B = 3, .T = 4, .slots = 3});
    ASSERT_TRUE(succeeded(ringfold::verify(c.verify(impl))));
    set_ints(c.accept.view(), {5, 4, 9});
    const Bytes before = pack(c.state.view());
    ASSERT_TRUE(succeeded(ringfold::fold(c.fold(impl))));
    EXPECT_EQ(ints(c.status.view()),
              statuses({RowStatus::accept_out_of_range, RowStatus::done, RowStatus::accept_out_of_range}));
    const Bytes after = pack(c.state.view());
    const size_t slot = before.size() / 3;
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + static_cast<int64_t>(slot), after.begin()));
    EXPECT_TRUE(std::equal(before.begin() + static_cast<int64_t>(2 * slot), before.end(),
                           after.begin() + static_cast<int64_t>(2 * slot)));
    EXPECT_NE(before, after);
    FoldArgs no_status = c.fold(impl);
    no_status.row_status = {};
    const Status s = ringfold::fold(no_status);
    EXPECT_EQ(s.code(), Code::invalid_argument);
    EXPECT_THAT(s.message(), ::testing::HasSubstr("row 0"));
    EXPECT_EQ(pack(c.state.view()), after);
    EXPECT_EQ(c.damage(), "");
  }
}

TEST(Fault7, SecondVerifyReplacesTheFirstWhole) {
  for_each_mixer([](std::string_view impl, const RigConfig& config) {
    Bench p(config, 1);
    p.verify({{.slot = 0, .tokens = {1, 2, 3, 4}}}, impl);
    p.verify({{.slot = 0, .tokens = {5, 6}}}, impl);
    EXPECT_EQ(p.commit({0}, {3}, {}, {}, impl), statuses({RowStatus::accept_out_of_range}));
    EXPECT_EQ(p.commit({0}, {2}, {}, {}, impl), statuses({RowStatus::done}));
    EXPECT_EQ(p.compare(0, {5, 6}), "");
    p.verify({{.slot = 0, .tokens = {1, 2, 3, 4}}}, impl);
    EXPECT_EQ(p.commit({0}, {0}, {}, {}, impl), statuses({RowStatus::done}));
    p.verify({{.slot = 0, .tokens = {7, 8, 9, 10}}}, impl);
    EXPECT_EQ(p.commit({0}, {3}, {}, {}, impl), statuses({RowStatus::done}));
    EXPECT_EQ(p.compare(0, {5, 6, 7, 8, 9}), "");
  });
}

TEST(Fault8, WhatIsNotServedIsAnError) {
  Bench p(small_rig(), 1);
  p.verify({{.slot = 0, .tokens = {1, 2}}});
  const Plain::State before = p.state(0);
  const int32_t slot = 0, accept = 2;
  int32_t status = 99;
  CommitArgs commit_args;
  commit_args.slot_ids = TensorView(&slot, DType::i32, {1});
  commit_args.num_accepted = TensorView(&accept, DType::i32, {1});
  commit_args.row_status = TensorView(&status, DType::i32, {1});
  commit_args.impl = "no_such_implementation";
  EXPECT_EQ(ringfold::commit(*p.pool, commit_args).code(), Code::not_found);
  EXPECT_EQ(status, 99);
  EXPECT_EQ(p.state(0), before);
  commit_args.impl = {};
  EXPECT_TRUE(succeeded(ringfold::commit(*p.pool, commit_args)));  // the window was still there

  Case c({});
  const Bytes state = pack(c.state.view());
  EXPECT_EQ(ringfold::verify(c.verify("no_such_implementation")).code(), Code::not_found);
  EXPECT_EQ(ringfold::decode(c.decode("no_such_implementation")).code(), Code::not_found);
  EXPECT_EQ(ringfold::fold(c.fold("no_such_implementation")).code(), Code::not_found);
  EXPECT_EQ(pack(c.state.view()), state);

  // A ring that keeps u is for `fast` numerics on a GPU; what does not write u must not pass for it.
  PoolConfig with_u = small_rig().pool;
  with_u.fold_policy = FoldPolicy::lazy;
  with_u.ring_rows = 8;
  with_u.max_window = 4;
  with_u.ring_u = true;
  with_u.H = with_u.HV = 1;
  with_u.K = with_u.V = 8;
  Bench q(RigConfig{.pool = with_u}, 1);
  for (const Numerics numerics : {Numerics::exact, Numerics::fast}) {
    VerifyArgs args = c.verify({});
    q.pool->bind(0, &args);
    args.numerics = numerics;
    const Status refused = ringfold::verify(args);
    EXPECT_EQ(refused.code(), Code::unsupported);
    EXPECT_NE(refused.message().find("keeps no u in the ring"), std::string::npos) << refused.message();
  }
}

TEST(Fault10, NothingButTheRealTokenIsAccepted) {
  for_each_mixer([](std::string_view impl, const RigConfig& config) {
    for (int32_t accept : {0, 1}) {
      Bench p(config, 1);
      const Ring ring = p.pool->ring();
      for (const TensorView& v : {ring.k, ring.v, ring.g, ring.beta, p.pool->conv_ring()}) fill_poison(v);
      Tokens want;
      for (int round = 0; round < 4; ++round) {
        p.verify({{.slot = 0, .tokens = {round, 10 + round, 20 + round}}}, impl);
        EXPECT_EQ(p.commit({0}, {accept}, {}, {}, impl), statuses({RowStatus::done}));
        if (accept == 1) want.push_back(round);
        EXPECT_EQ(p.compare(0, want), "");
      }
    }
  });
}

TEST(Fault11, LayersOfDifferentShapesKeepTheirOwnSizes) {
  RigConfig first = small_rig(), second = small_rig(MixerKind::kda);
  first.pool.HV = 2, first.pool.K = 16, first.pool.V = 16;
  second.pool.layers = 1, second.pool.HV = 4, second.pool.K = 8, second.pool.V = 32;
  Bench a(first, 2), b(second, 2);
  for (Bench* p : {&a, &b}) {
    p->decode({{.slot = 0, .tokens = {1, 2, 3}}});
    ASSERT_TRUE(succeeded(p->pool->copy({&p->slots[0], 1}, {&p->slots[1], 1})));
    EXPECT_EQ(p->compare(1, {1, 2, 3}), "");
    p->decode({{.slot = 1, .tokens = {4}}});
    EXPECT_EQ(p->compare(0, {1, 2, 3}), "");
    EXPECT_EQ(p->compare(1, {1, 2, 3, 4}), "");
    EXPECT_GT(p->pool->bytes().state, 0u);
  }
  Bytes parcel(a.pool->export_size());
  ASSERT_TRUE(succeeded(a.pool->export_slot(a.slots[0], parcel)));
  EXPECT_EQ(b.pool->import_slot(parcel, b.slots[0]).code(), Code::invalid_argument);
  EXPECT_EQ(b.pool->import_slot({}, b.slots[0]).code(), Code::invalid_argument);
  EXPECT_EQ(b.compare(0, {1, 2, 3}), "");
}

}  // namespace
}  // namespace ringfold::test
