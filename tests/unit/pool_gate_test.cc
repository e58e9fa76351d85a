// Pools whose rings keep KDA's raw gate input: where its parameters come from, and that nothing but bytes changes.
#include <gmock/gmock.h>

#include <cstring>

#include "support/buffers.h"
#include "trace/rig.h"
#include "unit/exported_slot.h"

namespace ringfold::test {
namespace {

using ::testing::HasSubstr;

constexpr DType kFloats[] = {DType::bf16, DType::f16, DType::f32};

RigConfig config(std::optional<DType> ring_a, FoldPolicy policy = FoldPolicy::on_commit) {
  RigConfig c;
  c.pool = {.layers = 3, .slots = 4, .H = 1, .HV = 2, .K = 9, .V = 5, .kind = MixerKind::kda, .ring_rows = 4};
  c.pool.act_dtype = DType::bf16;
  c.pool.fold_policy = policy;
  if (policy != FoldPolicy::on_commit) c.pool.max_window = 4, c.pool.ring_rows = 9;
  c.pool.ring_a = ring_a;
  return c;
}

std::unique_ptr<Pool> without_mixers(const RigConfig& c) {
  std::unique_ptr<Pool> pool;
  EXPECT_TRUE(succeeded(Pool::create(Rig(c).pool_config(), &pool)));
  return pool;
}

std::vector<Mixer> mixers_of(const Rig& rig) {
  std::vector<Mixer> all;
  for (int64_t l = 0; l < rig.layers(); ++l) all.push_back(rig.mixer(l));
  return all;
}

Status commit_one(Pool& pool, int32_t slot, int32_t accepted) {
  CommitArgs args;
  args.slot_ids = TensorView(&slot, DType::i32, {1});
  args.num_accepted = TensorView(&accepted, DType::i32, {1});
  return commit(pool, args);
}

TEST(GatePool, KeepsHalfTheBytesOfG) {
  PoolConfig c = config(std::nullopt).pool;
  PoolBytes with_g, with_a;
  ASSERT_TRUE(succeeded(pool_bytes(c, &with_g)));
  c.ring_a = DType::bf16;
  ASSERT_TRUE(succeeded(pool_bytes(c, &with_a)));
  const int64_t gates = 3 * 4 * 4 * 2 * 9, parameters = 3 * 2 * (9 + 1) * 4;  // layers, slots, rows, HV, K
  EXPECT_EQ(with_a.ring, with_g.ring - static_cast<size_t>(gates * 2) + static_cast<size_t>(parameters));
  EXPECT_EQ(with_a.state, with_g.state);
  c.ring_a = DType::f32;
  ASSERT_TRUE(succeeded(pool_bytes(c, &with_a)));
  EXPECT_EQ(with_a.ring, with_g.ring + static_cast<size_t>(parameters));
}

TEST(GatePool, ViewsAndWhatBindFillsIn) {
  const Rig rig(config(DType::f16));
  const auto pool = without_mixers(rig.config());
  EXPECT_EQ(to_string(pool->ring().a), "f16[3,4,4,2,9]");
  EXPECT_EQ(to_string(pool->ring(2).a), "f16[4,4,2,9]");
  EXPECT_TRUE(pool->ring().g.empty() && pool->ring(1).g.empty());
  VerifyArgs before, after;
  pool->bind(1, &before);
  EXPECT_TRUE(before.mixer.A_log.empty());
  ASSERT_TRUE(succeeded(pool->set_mixers(mixers_of(rig))));
  pool->bind(1, &after);
  EXPECT_TRUE(same(after.mixer.A_log, rig.mixer(1).A_log));
  EXPECT_TRUE(same(after.mixer.dt_bias, rig.mixer(1).dt_bias));
  EXPECT_NE(after.mixer.A_log.data, rig.mixer(1).A_log.data) << "not a copy";
  const auto plain = without_mixers(config(std::nullopt));
  EXPECT_TRUE(plain->ring().a.empty() && !plain->ring().g.empty());
}

TEST(GatePool, AMissingBiasIsZeros) {
  const Rig rig(config(DType::bf16));
  const auto pool = without_mixers(rig.config());
  std::vector<Mixer> mixers = mixers_of(rig);
  ASSERT_TRUE(succeeded(pool->set_mixers(mixers)));
  mixers[2].dt_bias = {};
  ASSERT_TRUE(succeeded(pool->set_mixers(mixers)));
  VerifyArgs args;
  pool->bind(2, &args);
  for (float x : floats(args.mixer.dt_bias)) EXPECT_EQ(x, 0);
  pool->bind(1, &args);
  EXPECT_TRUE(same(args.mixer.dt_bias, mixers[1].dt_bias));
}

TEST(GatePool, Refusals) {
  const Rig rig(config(DType::bf16));
  std::unique_ptr<Pool> none;
  PoolConfig gdn = rig.pool_config(), ints = gdn;
  gdn.kind = MixerKind::gdn, ints.ring_a = DType::i32;
  for (const PoolConfig& c : {gdn, ints}) {
    const Status s = Pool::create(c, &none);
    EXPECT_EQ(s.code(), Code::invalid_argument);
    EXPECT_THAT(s.message(), HasSubstr("ring_a"));
  }
  const std::vector<Mixer> good = mixers_of(rig);
  const auto plain = without_mixers(config(std::nullopt));
  EXPECT_THAT(plain->set_mixers(good).message(), HasSubstr("mixers: expected a pool with ring_a"));

  const auto pool = without_mixers(rig.config());
  const auto refused = [&](const char* word, const std::vector<Mixer>& mixers) {
    const Status s = pool->set_mixers(mixers);
    EXPECT_EQ(s.code(), Code::invalid_argument) << word;
    EXPECT_THAT(s.message(), HasSubstr(word));
  };
  refused("mixers: expected 3", {good[0], good[1]});
  const auto spoilt = [&](const auto& change) {
    std::vector<Mixer> mixers = good;
    change(mixers[1]);
    return mixers;
  };
  refused("mixers[1].kind", spoilt([](Mixer& m) { m.kind = MixerKind::gdn; }));
  refused("mixers[1].A_log", spoilt([](Mixer& m) { m.A_log = {}; }));
  refused("mixers[1].A_log", spoilt([](Mixer& m) { m.A_log.dtype = DType::bf16; }));
  refused("mixers[1].dt_bias", spoilt([](Mixer& m) { ++m.dt_bias.shape[1]; }));
  refused("mixers[1].softplus_beta", spoilt([](Mixer& m) { m.softplus_beta = 2; }));
  refused("lower_bound", spoilt([](Mixer& m) { m.lower_bound = -5.0f; }));
  refused("device", spoilt([](Mixer& m) { m.A_log.device = Device::cuda; }));
}

TEST(GatePool, NothingIsFoldedWithoutMixers) {
  for (const FoldPolicy policy : {FoldPolicy::on_commit, FoldPolicy::on_next_verify, FoldPolicy::lazy}) {
    const Rig rig(config(DType::bf16, policy));
    const auto pool = without_mixers(rig.config());
    std::vector<Slot> slots(2);
    ASSERT_TRUE(succeeded(pool->acquire(slots)));
    ASSERT_TRUE(succeeded(rig.verify(target_of(*pool), {{.slot = slots[0].id, .tokens = {1, 2, 3}}}).status));
    const Bytes state = pack(pool->state()), pending = pack(pool->pending());
    for (const Status& s : {commit_one(*pool, slots[0].id, 2), pool->materialise(slots[0], 2, slots[1])}) {
      EXPECT_EQ(s.code(), Code::invalid_argument);
      EXPECT_THAT(s.message(), HasSubstr("set_mixers"));
    }
    EXPECT_EQ(pool->settle({slots.data(), 1}).ok(), policy == FoldPolicy::on_commit);
    EXPECT_EQ(pack(pool->state()), state);
    EXPECT_EQ(pack(pool->pending()), pending);
    ASSERT_TRUE(succeeded(pool->set_mixers(mixers_of(rig))));
    EXPECT_TRUE(succeeded(commit_one(*pool, slots[0].id, 2)));
  }
}

/// Two pools, one with each form, through the same life: outputs, states, conv windows, cursors and all of the ring but
/// the gate have the same bits.
TEST(GatePool, TheFormOfTheGateChangesNoBit) {
  for (const FoldPolicy policy : {FoldPolicy::on_commit, FoldPolicy::on_next_verify, FoldPolicy::lazy}) {
    for (const bool safe : {false, true}) {
      RigConfig raw = config(DType::f32, policy), plain = config(std::nullopt, policy);
      raw.safe_gate = plain.safe_gate = safe;
      const Rig rigs[] = {Rig(raw), Rig(plain)};
      const std::unique_ptr<Pool> pools[] = {rigs[0].make_pool(), rigs[1].make_pool()};
      std::vector<Slot> slots(4);
      for (const auto& pool : pools) ASSERT_TRUE(succeeded(pool->acquire(slots)));
      const auto equal = [&](const char* when) {
        const Ring a = pools[0]->ring(), g = pools[1]->ring();
        EXPECT_TRUE(same(pools[0]->state(), pools[1]->state())) << when;
        EXPECT_TRUE(same(pools[0]->conv_state(), pools[1]->conv_state())) << when;
        EXPECT_TRUE(same(pools[0]->pending(), pools[1]->pending())) << when;
        for (const auto& [x, y] : {std::pair(a.k, g.k), std::pair(a.v, g.v), std::pair(a.beta, g.beta)}) {
          EXPECT_TRUE(same(x, y)) << when;
        }
      };
      for (int round = 0; round < 6; ++round) {
        const std::vector<Row> rows = {{.slot = slots[0].id, .tokens = {round, 3, 9}},
                                       {.slot = slots[3].id, .tokens = {5, round + 1}}};
        const StepResult got = rigs[0].verify(target_of(*pools[0]), rows);
        const StepResult want = rigs[1].verify(target_of(*pools[1]), rows);
        ASSERT_TRUE(succeeded(got.status) && succeeded(want.status));
        for (size_t l = 0; l < 3; ++l) EXPECT_TRUE(same(got.out[l].view(), want.out[l].view()));
        for (const auto& pool : pools) {
          EXPECT_TRUE(succeeded(pool->materialise(slots[0], 2, slots[1])));
          EXPECT_TRUE(succeeded(commit_one(*pool, slots[0].id, 1 + round % 3)));
          EXPECT_TRUE(succeeded(commit_one(*pool, slots[3].id, round % 3)));
          EXPECT_TRUE(succeeded(pool->copy({&slots[3], 1}, {&slots[2], 1})));
        }
        equal("after a commit");
        const std::vector<Row> last = {{.slot = slots[2].id, .tokens = {7}}};
        for (int i = 0; i < 2; ++i) ASSERT_TRUE(succeeded(rigs[i].decode(target_of(*pools[i]), last).status));
        equal("after a decode");
      }
      for (const auto& pool : pools) ASSERT_TRUE(succeeded(pool->settle(slots)));
      equal("settled");
    }
  }
}

TEST(GatePool, WindowsOfAnotherDtypeAreRefused) {
  const Rig f16(config(DType::f16));
  const auto pool = without_mixers(config(DType::bf16));
  Slot slot;
  ASSERT_TRUE(succeeded(pool->acquire(&slot)));
  const StepResult r = f16.verify(target_of(*pool), {{.slot = slot.id, .tokens = {1}}});
  EXPECT_EQ(r.status.code(), Code::invalid_argument);
  EXPECT_THAT(r.status.message(), HasSubstr("ring.a"));
}

void set_version(Bytes* bytes, uint64_t version) {
  std::memcpy(bytes->data() + 8, &version, 8);
  sign(bytes);
}

TEST(GatePool, ExportsTravelBetweenPoolsOfOneForm) {
  for (const DType dtype : kFloats) {
    const Rig rig(config(dtype, FoldPolicy::lazy));
    const auto a = rig.make_pool(), b = rig.make_pool();
    std::vector<Slot> slots(4);
    ASSERT_TRUE(succeeded(a->acquire(slots)) && succeeded(b->acquire(slots)));
    const std::vector<Row> rows = {{.slot = slots[1].id, .tokens = {4, 5, 6}}};
    ASSERT_TRUE(succeeded(rig.verify(target_of(*a), rows).status));
    ASSERT_TRUE(succeeded(commit_one(*a, slots[1].id, 2)));  // a history of two rows
    ASSERT_TRUE(succeeded(rig.verify(target_of(*a), rows).status));
    Bytes bytes(a->export_size()), again(a->export_size());
    ASSERT_TRUE(succeeded(a->export_slot(slots[1], bytes)));
    ASSERT_TRUE(succeeded(b->import_slot(bytes, slots[2])));
    ASSERT_TRUE(succeeded(b->export_slot(slots[2], again)));
    EXPECT_EQ(bytes, again);
    for (const auto& [pool, slot] : {std::pair(a.get(), slots[1]), std::pair(b.get(), slots[2])}) {
      ASSERT_TRUE(succeeded(commit_one(*pool, slot.id, 3)));
      ASSERT_TRUE(succeeded(pool->settle({&slot, 1})));
    }
    for (int64_t l = 0; l < 3; ++l) EXPECT_TRUE(same(b->state(l).at(slots[2].id), a->state(l).at(slots[1].id)));
    for (const std::optional<DType> other :
         {std::optional<DType>(), std::optional(kFloats[dtype == DType::f16 ? 0 : 1])}) {
      const auto theirs = without_mixers(config(other, FoldPolicy::lazy));
      Slot slot;
      ASSERT_TRUE(succeeded(theirs->acquire(&slot)));
      const Status s = theirs->import_slot(bytes, slot);
      EXPECT_EQ(s.code(), Code::invalid_argument);
      EXPECT_THAT(s.message(), HasSubstr("ring_a"));
    }
  }
}

TEST(GatePool, SlotsOfVersion3AreStillRead) {
  const Rig rig(config(std::nullopt));
  const auto pool = rig.make_pool();
  std::vector<Slot> slots(2);
  ASSERT_TRUE(succeeded(pool->acquire(slots)));
  ASSERT_TRUE(succeeded(rig.verify(target_of(*pool), {{.slot = slots[0].id, .tokens = {1, 2}}}).status));
  Bytes bytes(pool->export_size());
  ASSERT_TRUE(succeeded(pool->export_slot(slots[0], bytes)));
  const Bytes now = bytes;
  set_version(&bytes, 4);
  ASSERT_EQ(bytes, now) << "the test's checksum is not the library's";
  set_version(&bytes, 3);
  EXPECT_TRUE(succeeded(pool->import_slot(bytes, slots[1])));
  for (int64_t l = 0; l < 3; ++l) {
    EXPECT_TRUE(same(pool->ring(l).k.at(slots[1].id), pool->ring(l).k.at(slots[0].id)));
    EXPECT_TRUE(same(pool->ring(l).g.at(slots[1].id), pool->ring(l).g.at(slots[0].id)));
  }
  for (const uint64_t version : {uint64_t{2}, uint64_t{5}}) {
    set_version(&bytes, version);
    EXPECT_THAT(pool->import_slot(bytes, slots[1]).message(), HasSubstr("version"));
  }
  set_version(&bytes, 3);
  const auto raw = without_mixers(config(DType::bf16));
  Slot slot;
  ASSERT_TRUE(succeeded(raw->acquire(&slot)));
  EXPECT_THAT(raw->import_slot(bytes, slot).message(), HasSubstr("ring_a"));
}

}  // namespace
}  // namespace ringfold::test
