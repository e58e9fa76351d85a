// Rings keyed by request row: which window a commit may consume, what a pool of more slots than rings holds, and what
// becomes of a window when its slot's checkpoint is replaced.
#include <gmock/gmock.h>

#include "trace/rig.h"
#include "unit/pool_helpers.h"

namespace ringfold::test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSlots = 6, kRings = 2;

RigConfig config(bool fused = false, bool conv = true) {
  RigConfig c;
  c.pool = {.layers = 3, .slots = kSlots, .H = 1, .HV = 2, .K = 9, .V = 5, .ring_rows = 4, .rings = kRings};
  c.conv = conv;
  c.fused = fused;
  return c;
}

/// Layers in calls of their own, and fused.
class RingTest : public ::testing::TestWithParam<bool> {
 protected:
  RingTest() : rig(config(GetParam())), plain(rig), pool(rig.make_pool()), slots(kSlots) {
    EXPECT_TRUE(succeeded(pool->acquire(slots)));
  }

  StepResult verify(const std::vector<Row>& rows, const StepOptions& options = {}) {
    return rig.verify(target_of(*pool), rows, options);
  }
  struct Accepted {
    int32_t slot, ring, count;
  };
  CommitArgs args_of(const std::vector<Accepted>& rows) {
    ids.clear(), rings.clear(), counts.clear();
    for (const Accepted& row : rows) ids.push_back(row.slot), rings.push_back(row.ring), counts.push_back(row.count);
    const auto B = static_cast<int64_t>(rows.size());
    status.assign(rows.size(), 99);
    CommitArgs a;
    a.slot_ids = TensorView(ids.data(), DType::i32, {B});
    a.ring_ids = TensorView(rings.data(), DType::i32, {B});
    a.num_accepted = TensorView(counts.data(), DType::i32, {B});
    a.row_status = TensorView(status.data(), DType::i32, {B});
    return a;
  }
  /// Names of the rows' statuses.
  std::vector<std::string> commit(const std::vector<Accepted>& rows) {
    EXPECT_TRUE(succeeded(ringfold::commit(*pool, args_of(rows))));
    return names(status);
  }
  static std::vector<std::string> names(const std::vector<int32_t>& statuses) {
    std::vector<std::string> all;
    for (int32_t s : statuses) all.emplace_back(to_string(static_cast<RowStatus>(s)));
    return all;
  }
  /// What slot `id` holds is what these tokens, decoded from zero, give.
  void expect(int32_t id, const std::vector<int>& tokens) {
    Plain::State want = plain.zero();
    plain.decode(&want, tokens, "reference");
    EXPECT_EQ(compare_slot(*pool, id, want), "") << "slot " << id;
  }

  using Names = std::vector<std::string>;
  Rig rig;
  Plain plain;
  std::unique_ptr<Pool> pool;
  std::vector<Slot> slots;
  std::vector<int32_t> ids, rings, counts, status;
};

INSTANTIATE_TEST_SUITE_P(All, RingTest, ::testing::Bool(), [](const auto& of) { return of.param ? "fused" : "calls"; });

TEST_P(RingTest, AnySlotMayUseAnyRing) {
  verify({{.slot = 4, .tokens = {1, 2, 3}, .ring = 1}, {.slot = 0, .tokens = {4, 5}, .ring = 0}});
  EXPECT_EQ(commit({{0, 0, 2}, {4, 1, 2}}), Names(2, "done"));
  verify({{.slot = 5, .tokens = {6, 7}, .ring = 1}, {.slot = 4, .tokens = {8}, .ring = 0}});
  EXPECT_EQ(commit({{5, 1, 1}, {4, 0, 1}}), Names(2, "done"));
  expect(0, {4, 5});
  expect(4, {1, 2, 8});
  expect(5, {6});
  expect(1, {});
  EXPECT_EQ(commit({{4, 0, 1}}), Names{"no_pending_window"});
}

// The window of slot 0 was replaced by that of slot 1: its rows are gone, whatever `pending` says of slot 0.
TEST_P(RingTest, AWindowWhoseRingWasTakenIsRefused) {
  verify({{.slot = 0, .tokens = {1, 2}, .ring = 0}});
  verify({{.slot = 1, .tokens = {3, 4}, .ring = 0}});
  EXPECT_EQ(commit({{0, 0, 2}}), Names{"window_not_in_ring"});
  expect(0, {});
  EXPECT_EQ(commit({{1, 0, 2}}), Names{"done"});
  expect(1, {3, 4});
  EXPECT_EQ(commit({{0, 0, 2}}), Names{"window_not_in_ring"});
  verify({{.slot = 0, .tokens = {5}, .ring = 0}});
  EXPECT_EQ(commit({{0, 0, 1}}), Names{"done"});
  expect(0, {5});
}

// A second window of a slot replaces the first one, though that lies untouched in another ring.
TEST_P(RingTest, AWindowThatWasReplacedElsewhereIsRefused) {
  verify({{.slot = 0, .tokens = {1, 2}, .ring = 0}});
  verify({{.slot = 0, .tokens = {3, 4}, .ring = 1}});
  EXPECT_EQ(commit({{0, 0, 2}}), Names{"window_not_in_ring"});
  expect(0, {});
  EXPECT_EQ(commit({{0, 1, 2}}), Names{"done"});
  expect(0, {3, 4});
  EXPECT_EQ(commit({{0, 0, 1}}), Names{"no_pending_window"});
}

// Each layer, and each conv, has its say.
TEST_P(RingTest, OneLayerElsewhereRefusesTheRow) {
  verify({{.slot = 0, .tokens = {1, 2}, .ring = 0}});
  verify({{.slot = 0, .tokens = {1, 2}, .ring = 1}}, {.layers = {1}});
  EXPECT_EQ(commit({{0, 0, 2}}), Names{"window_not_in_ring"});
  verify({{.slot = 0, .tokens = {1, 2}, .ring = 0}});
  verify({{.slot = 3, .tokens = {1, 2}, .ring = 0}}, {.layers = {2}});
  EXPECT_EQ(commit({{0, 0, 2}}), Names{"window_not_in_ring"});
  verify({{.slot = 0, .tokens = {1, 2}, .ring = 0}});
  set_ints(slice(pool->conv_owners(1).slot_of_ring, 0, 1), {3});
  EXPECT_EQ(commit({{0, 0, 2}}), Names{"window_not_in_ring"});
  set_ints(slice(pool->conv_owners(1).slot_of_ring, 0, 1), {0});
  set_ints(slice(pool->conv_owners(2).ring_of_slot, 0, 1), {1});
  EXPECT_EQ(commit({{0, 0, 2}}), Names{"window_not_in_ring"});
  expect(0, {});
}

TEST_P(RingTest, WhatReplacesACheckpointVoidsTheWindowOnIt) {
  verify({{.slot = 1, .tokens = {9}, .ring = 1}});
  EXPECT_EQ(commit({{1, 1, 1}}), Names{"done"});
  const auto pend = [&](int32_t slot) { verify({{.slot = slot, .tokens = {1, 2}, .ring = 0}}); };
  pend(0);
  EXPECT_TRUE(succeeded(pool->copy({&slots[1], 1}, {&slots[0], 1})));
  EXPECT_EQ(commit({{0, 0, 1}}), Names{"no_pending_window"});
  expect(0, {9});
  pend(0);
  EXPECT_TRUE(succeeded(pool->reset(slots[0])));
  EXPECT_EQ(commit({{0, 0, 1}}), Names{"no_pending_window"});
  pend(0);
  EXPECT_TRUE(succeeded(pool->release(slots[0])));
  EXPECT_EQ(commit({{0, 0, 1}}), Names{"slot_not_acquired"});
  EXPECT_TRUE(succeeded(pool->acquire(&slots[0])));
  EXPECT_EQ(slots[0].id, 0);
  EXPECT_EQ(commit({{0, 0, 1}}), Names{"no_pending_window"});
  pend(0);
  Bytes bytes(pool->export_size());
  EXPECT_TRUE(succeeded(pool->export_slot(slots[1], bytes)));
  EXPECT_TRUE(succeeded(pool->import_slot(bytes, slots[0])));
  EXPECT_EQ(commit({{0, 0, 1}}), Names{"no_pending_window"});
  expect(0, {9});
  pend(0);
  EXPECT_TRUE(succeeded(rig.decode(target_of(*pool), {{.slot = 0, .tokens = {5}}}).status));
  EXPECT_EQ(commit({{0, 0, 1}}), Names{"no_pending_window"});
  expect(0, {9, 5});
  pend(0);
  EXPECT_TRUE(succeeded(pool->materialise(slots[1], 0, slots[0])));
  EXPECT_EQ(commit({{0, 0, 1}}), Names{"no_pending_window"});
  // A snapshot of another row.
  verify({{.slot = 0, .tokens = {1, 2}, .ring = 0}, {.slot = 1, .tokens = {3, 4}, .ring = 1}});
  int32_t track = 0, step = 0;
  CommitArgs a = args_of({{1, 1, 2}});
  a.track_slots = TensorView(&track, DType::i32, {1});
  a.track_steps = TensorView(&step, DType::i32, {1});
  EXPECT_TRUE(succeeded(ringfold::commit(*pool, a)));
  expect(0, {9, 3});
  expect(1, {9, 3, 4});
  EXPECT_EQ(commit({{0, 0, 1}}), Names{"no_pending_window"});
}

// copy takes checkpoints: the source's window stays with the source.
TEST_P(RingTest, ACopyHasNoWindow) {
  verify({{.slot = 0, .tokens = {7}, .ring = 0}});
  commit({{0, 0, 1}});
  verify({{.slot = 0, .tokens = {1, 2}, .ring = 0}, {.slot = 1, .tokens = {3}, .ring = 1}});
  const Slot from[] = {slots[0], slots[1], slots[2]}, to[] = {slots[1], slots[2], slots[0]};
  EXPECT_TRUE(succeeded(pool->copy(std::span(from).first(1), std::span(to).subspan(1, 1))));
  EXPECT_EQ(commit({{2, 0, 1}}), Names{"no_pending_window"});
  EXPECT_EQ(commit({{0, 0, 2}, {1, 1, 1}}), Names(2, "done"));
  EXPECT_TRUE(succeeded(pool->copy(from, to)));  // a cycle
  expect(1, {7, 1, 2});
  expect(2, {3});
  expect(0, {7});
  verify({{.slot = 0, .tokens = {1, 2}, .ring = 1}});
  EXPECT_TRUE(succeeded(pool->copy(std::span(from).first(1), std::span(from).first(1))));  // to itself: nothing
  EXPECT_EQ(commit({{0, 1, 2}}), Names{"done"});
}

TEST_P(RingTest, MaterialiseFindsTheRing) {
  verify({{.slot = 3, .tokens = {1, 2, 3}, .ring = 1}});
  EXPECT_TRUE(succeeded(pool->materialise(slots[3], 2, slots[0])));
  expect(0, {1, 2});
  expect(3, {});
  EXPECT_EQ(pool->materialise(slots[3], 4, slots[0]).code(), Code::invalid_argument);
  verify({{.slot = 4, .tokens = {9}, .ring = 1}});
  const Status s = pool->materialise(slots[3], 1, slots[1]);
  EXPECT_EQ(s.code(), Code::invalid_argument);
  EXPECT_THAT(s.message(), HasSubstr("n: expected 0..0"));
  EXPECT_TRUE(succeeded(pool->materialise(slots[4], 1, slots[1])));
  expect(1, {9});
  EXPECT_EQ(commit({{4, 1, 1}}), Names{"done"});
}

TEST_P(RingTest, RingIdsOutOfRangeAndTwiceAreRefused) {
  const StepResult result = verify({{.slot = 0, .tokens = {1}, .ring = kRings},
                                    {.slot = 1, .tokens = {1}, .ring = -1},
                                    {.slot = -1, .tokens = {1}, .ring = 77},
                                    {.slot = 2, .tokens = {1}, .ring = 1},
                                    {.slot = 3, .tokens = {1}, .ring = 1},
                                    {.slot = 4, .tokens = {1}, .ring = INT32_MAX},
                                    {.slot = 5, .tokens = {4}, .ring = 0}});
  EXPECT_TRUE(succeeded(result.status));
  EXPECT_EQ(result.trouble, "");
  EXPECT_EQ(names(result.row_status), (Names{"ring_out_of_range", "ring_out_of_range", "null_row", "duplicate_ring",
                                             "duplicate_ring", "ring_out_of_range", "done"}));
  EXPECT_EQ(commit({{2, 1, 1}, {-3, 9, 1}, {5, 2, 1}, {5, -2, 1}}),
            (Names{"no_pending_window", "null_row", "ring_out_of_range", "ring_out_of_range"}));
  EXPECT_EQ(commit({{5, 0, 1}}), Names{"done"});
  expect(5, {4});
  const StepResult whole =
      verify({{.slot = 0, .tokens = {1}, .ring = 1}, {.slot = 1, .tokens = {2}, .ring = 1}}, {.with_status = false});
  EXPECT_THAT(whole.status.message(), HasSubstr("row 0 is refused: duplicate_ring"));
  verify({{.slot = 0, .tokens = {1}, .ring = 1}});
  CommitArgs args = args_of({{0, 0, 1}});
  args.row_status = {};
  EXPECT_THAT(ringfold::commit(*pool, args).message(), HasSubstr("row 0 is refused: window_not_in_ring"));
}

TEST_P(RingTest, ExportsCheckpointsAlone) {
  verify({{.slot = 0, .tokens = {1, 2}, .ring = 0}});
  commit({{0, 0, 2}});
  verify({{.slot = 0, .tokens = {3}, .ring = 0}});
  Bytes bytes(pool->export_size()), again = bytes;
  EXPECT_TRUE(succeeded(pool->export_slot(slots[0], bytes)));
  EXPECT_EQ(commit({{0, 0, 1}}), Names{"done"});
  EXPECT_TRUE(succeeded(pool->import_slot(bytes, slots[5])));
  expect(5, {1, 2});
  EXPECT_TRUE(succeeded(pool->export_slot(slots[5], again)));
  EXPECT_EQ(again, bytes);
  // Header, states and conv windows.
  const PoolConfig& c = pool->config();
  EXPECT_EQ(bytes.size(), 19 * 8 + 4 * static_cast<size_t>(c.layers * (c.HV * c.V * c.K + c.conv_channels * 3)));
  // Bytes with a window are something else.
  PoolConfig by_slot = c;
  by_slot.rings = 0;
  const auto other = make(by_slot);
  Slot there;
  EXPECT_TRUE(succeeded(other->acquire(&there)));
  const Status s = other->import_slot(bytes, there);
  EXPECT_EQ(s.code(), Code::invalid_argument);
  EXPECT_THAT(s.message(), HasSubstr("ring_rows"));
  Bytes with_window(other->export_size());
  EXPECT_TRUE(succeeded(other->export_slot(there, with_window)));
  EXPECT_THAT(pool->import_slot(with_window, slots[5]).message(), HasSubstr("ring_rows"));
  expect(5, {1, 2});
  // How long another pool's rings are does not matter.
  by_slot.rings = 1, by_slot.ring_rows = by_slot.max_window = 7;
  const auto longer = make(by_slot);
  EXPECT_TRUE(succeeded(longer->acquire(&there)));
  EXPECT_TRUE(succeeded(longer->import_slot(bytes, there)));
}

TEST(RingConfig, BytesFollowTheRings) {
  PoolConfig c = small();
  c.slots = 100;
  PoolBytes by_slot, by_row;
  ASSERT_TRUE(succeeded(pool_bytes(c, &by_slot)));
  c.rings = 5;
  ASSERT_TRUE(succeeded(pool_bytes(c, &by_row)));
  EXPECT_EQ(by_row.ring * 20, by_slot.ring);
  EXPECT_EQ(by_row.state, by_slot.state);
  const size_t conv_ring = 2 * 2 * 4 * 7;  // layers, f16, rows, channels
  EXPECT_EQ(by_slot.conv - by_row.conv, 95 * conv_ring);
  EXPECT_EQ(by_row.cursors - by_slot.cursors, 2 * 2 * (100 + 5) * sizeof(int32_t));  // mixer and conv, layers
  const auto pool = make(c);
  EXPECT_EQ(pool->bytes(), by_row);
  EXPECT_EQ(pool->ring().k.shape[1], 5);
  EXPECT_EQ(pool->conv_ring().shape[1], 5);
  EXPECT_EQ(pool->owners(1).slot_of_ring.shape[0], 5);
  EXPECT_EQ(pool->conv_owners(0).ring_of_slot.shape[0], 100);
  EXPECT_TRUE(make(small())->owners().empty());
  c.conv_channels = 0;
  EXPECT_TRUE(make(c)->conv_owners().empty());
}

TEST(RingConfig, NamesWhatIsWrong) {
  PoolBytes bytes;
  PoolConfig c = small();
  c.rings = -1;
  EXPECT_THAT(pool_bytes(c, &bytes).message(), HasSubstr("rings: expected 0.."));
  c.rings = 2, c.ring_rows = 8, c.max_window = 4;
  for (const FoldPolicy policy : {FoldPolicy::on_next_verify, FoldPolicy::lazy}) {
    c.fold_policy = policy;
    EXPECT_THAT(pool_bytes(c, &bytes).message(), HasSubstr("rings: expected 0 with fold policy"));
  }
}

TEST(RingArguments, NamesWhatIsWrong) {
  const Rig rig(config(false, false)), plain_rig = [] {
    RigConfig c = config(false, false);
    c.pool.rings = 0;
    return Rig(c);
  }();
  const auto pool = rig.make_pool(), by_slot = plain_rig.make_pool();
  std::vector<Slot> slots(kSlots);
  EXPECT_TRUE(succeeded(pool->acquire(slots)) && succeeded(by_slot->acquire(slots)));
  int32_t id = 0, ring = 0, count = 1;
  const TensorView ids(&id, DType::i32, {1}), rings(&ring, DType::i32, {1}), counts(&count, DType::i32, {1});
  EXPECT_THAT(commit(*pool, {.slot_ids = ids, .num_accepted = counts}).message(), HasSubstr("ring_ids: expected i32"));
  EXPECT_THAT(commit(*by_slot, {.slot_ids = ids, .ring_ids = rings, .num_accepted = counts}).message(),
              HasSubstr("ring_ids: expected nothing"));
  int32_t two[2] = {};
  EXPECT_THAT(
      commit(*pool, {.slot_ids = ids, .ring_ids = TensorView(two, DType::i32, {2}), .num_accepted = counts}).message(),
      HasSubstr("ring_ids: expected [B=1], found i32[2]"));

  // verify: a call on the pool without ids, without owners, with owners and no cursors, with a history.
  Target t = target_of(*pool);
  const std::vector<Row> rows = {{.slot = 0, .tokens = {1}, .ring = 0}};
  EXPECT_THAT(plain_rig.verify(t, rows).status.message(), HasSubstr("ring.k: expected"));
  Target no_owners = t;
  no_owners.owners.clear();
  EXPECT_THAT(rig.verify(no_owners, rows).status.message(),
              HasSubstr("owners.slot_of_ring: expected [rings=2], found nothing"));
  Target no_pending = t;
  no_pending.pending.clear();
  EXPECT_THAT(rig.verify(no_pending, rows).status.message(),
              HasSubstr("owners: expected nothing without pending and window.ring_ids"));
  Target short_owners = t;
  for (RingOwners& o : short_owners.owners) o.ring_of_slot = slice(o.ring_of_slot, 0, 3);
  EXPECT_THAT(rig.verify(short_owners, rows).status.message(),
              HasSubstr("owners.ring_of_slot: expected [slots=6], found i32[3]"));
  RigConfig lazy = config(false, false);
  lazy.pool.rings = 0, lazy.pool.fold_policy = FoldPolicy::lazy;
  const auto history_pool = Rig(lazy).make_pool();
  EXPECT_TRUE(succeeded(history_pool->acquire(slots)));
  EXPECT_THAT(rig.verify(target_of(*history_pool), rows).status.message(),
              HasSubstr("window.ring_ids: expected nothing with fold policy lazy"));
  // Nothing of all that did anything.
  EXPECT_TRUE(succeeded(rig.verify(t, rows).status));
}

}  // namespace
}  // namespace ringfold::test
