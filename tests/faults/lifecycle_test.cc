// Slots that are used again, copied, tracked and handed over: public reports 27 to 47.
#include "faults/case.h"

namespace ringfold::test {
namespace {

using Tokens = std::vector<int>;

Tokens join(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// All memory of the pool becomes NaN, as another owner might have left it.
void poison(const Pool& pool) {
  const Ring ring = pool.ring();
  for (const TensorView& v : {pool.state(), ring.k, ring.v, ring.g, ring.beta, pool.conv_state(), pool.conv_ring()}) {
    if (!v.empty()) fill_poison(v);
  }
}

TEST(Fault27, APoolMadeAnewServesLikeTheFirst) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    auto p = std::make_unique<Bench>(small_rig(), 2);
    std::vector<std::unique_ptr<Bench>> others;  // so that the memory is really another one
    for (int round = 0; round < 3; ++round) {
      p->verify({{.slot = 1, .tokens = {1, 2, 3}}}, impl);
      p->commit({1}, {2}, {}, {}, impl);
      EXPECT_EQ(p->compare(1, {1, 2}), "");
      poison(*p->pool);
      others.push_back(std::move(p));
      p = std::make_unique<Bench>(small_rig(), 2);
    }
  }
}

TEST(Fault28, TheFirstCallOfAProcessMayHaveNoRows) {
  Bench p(small_rig(), 1);
  p.verify({});
  EXPECT_EQ(p.commit({}, {}), std::vector<int32_t>{});
  p.verify({{.slot = -1, .tokens = {Row::kNaN}}});
  p.decode({{.slot = 0, .tokens = {1, 2, 3, 4}}});
  EXPECT_EQ(p.compare(0, {1, 2, 3, 4}), "");
}

TEST(Fault29, AFirstTokenAloneStartsFromZero) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    Bench p(small_rig(), 2);
    p.decode({{.slot = 0, .tokens = {1}}, {.slot = 1, .tokens = {2}}}, impl);
    poison(*p.pool);  // slot 0's tenant leaves NaN behind
    ASSERT_TRUE(succeeded(p.pool->release(p.slots[0])));
    ASSERT_TRUE(succeeded(p.pool->acquire(&p.slots[0])));
    ASSERT_TRUE(succeeded(p.pool->reset(p.slots[1])));
    p.decode({{.slot = 1, .tokens = {2}}}, impl);
    p.decode({{.slot = 1, .tokens = {4}}, {.slot = 0, .tokens = {3}}}, impl);
    EXPECT_EQ(p.compare(0, {3}), "");
    EXPECT_EQ(p.compare(1, {2, 4}), "");
  }
}

TEST(Fault33, ResetLeavesNoTraceOfTheOldText) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    Bench p(small_rig(), 1);
    p.decode({{.slot = 0, .tokens = {40, 41, 42}}}, impl);
    p.verify({{.slot = 0, .tokens = {43, 44}}}, impl);
    Bytes first;
    for (int round = 0; round < 2; ++round) {
      ASSERT_TRUE(succeeded(p.pool->reset(p.slots[0])));
      EXPECT_EQ(p.commit({0}, {1}), statuses({RowStatus::no_pending_window}));
      const StepResult r = p.verify({{.slot = 0, .tokens = {1, 2, 3}}}, impl);
      if (round == 0) first = pack(r.out[1].view());
      EXPECT_EQ(pack(r.out[1].view()), first);
      p.commit({0}, {3}, {}, {}, impl);
      EXPECT_EQ(p.compare(0, {1, 2, 3}), "");
    }
  }
}

TEST(Fault34, SequencesInOneBatchDoNotMix) {
  const int threads_before = num_threads();
  for (std::string_view impl : impls()) {
    for (int64_t B : {1, 2, 3, 4, 7, 16}) {
      for (int threads : {1, 3}) {
        SCOPED_TRACE(std::string(impl) + ", " + std::to_string(B) + " sequences, " + std::to_string(threads) +
                     " threads");
        set_num_threads(threads);
        Case c({.K = 16, .V = 16, .B = B, .slots = B});
        c.set(c.state, 0);
        c.set(c.k, 0);
        c.set(c.v, 0);
        for (int64_t r = 0; r < B; ++r) {  // sequence r writes along direction r alone
          static_cast<float*>(c.k.view().at(r).at(0).at(0).data)[r] = 1;
          static_cast<float*>(c.v.view().at(r).at(0).at(0).data)[r] = 1;
        }
        for (int step = 0; step < 3; ++step) ASSERT_TRUE(succeeded(ringfold::decode(c.decode(impl))));
        for (int64_t r = 0; r < B; ++r) {
          const auto* s = static_cast<const float*>(c.state.view().at(r).data);
          for (int64_t i = 0; i < 16 * 16; ++i) {
            if (i == r * 16 + r) {
              EXPECT_GT(s[i], 0.0f);
            } else {
              EXPECT_EQ(s[i], 0.0f) << "sequence " << r << ", element " << i;
            }
          }
        }
      }
    }
  }
  set_num_threads(threads_before);
}

TEST(Fault40, ARefusedRowWritesNoSnapshot) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    Bench p(small_rig(), 4);
    p.decode({{.slot = 2, .tokens = {9}}, {.slot = 3, .tokens = {9}}}, impl);
    p.verify({{.slot = 0, .tokens = {1, 2, 3}}, {.slot = 3, .tokens = {5}}}, impl);
    // Slot 1 never ran verify; slot 0 asks for more than it has. Neither may publish a snapshot.
    EXPECT_EQ(p.commit({1, 0}, {1, 4}, {2, 3}, {0, 0}, impl),
              statuses({RowStatus::no_pending_window, RowStatus::accept_out_of_range}));
    EXPECT_EQ(p.compare(2, {9}), "");
    EXPECT_EQ(p.compare(3, {9}), "");
    EXPECT_EQ(p.commit({3}, {1}, {}, {}, impl), statuses({RowStatus::done}));  // its window was not dropped either
    // A slot that was acquired and never written is the empty sequence, not somebody's memory.
    Slot fresh;
    ASSERT_TRUE(succeeded(p.pool->acquire(&fresh)));
    EXPECT_EQ(p.compare(fresh.id, {}), "");
  }
}

TEST(Fault41, HandOverWithAWindowPending) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    Bench from(small_rig(MixerKind::kda), 2), to(small_rig(MixerKind::kda), 5);
    from.decode({{.slot = 1, .tokens = {1, 2}}}, impl);
    from.verify({{.slot = 1, .tokens = {3, 4, 5, 6}}}, impl);
    to.decode({{.slot = 4, .tokens = {30, 31}}}, impl);
    to.verify({{.slot = 4, .tokens = {32}}}, impl);
    Bytes parcel(from.pool->export_size());
    ASSERT_TRUE(succeeded(from.pool->export_slot(from.slots[1], parcel)));
    ASSERT_TRUE(succeeded(from.pool->release(from.slots[1])));
    ASSERT_TRUE(succeeded(to.pool->import_slot(parcel, to.slots[4])));
    EXPECT_EQ(to.compare(4, {1, 2}), "");
    EXPECT_EQ(to.commit({4}, {2}, {}, {}, impl), statuses({RowStatus::done}));
    EXPECT_EQ(to.compare(4, {1, 2, 3, 4}), "");
    to.verify({{.slot = 4, .tokens = {7, 8}}}, impl);
    to.commit({4}, {1}, {}, {}, impl);
    EXPECT_EQ(to.compare(4, {1, 2, 3, 4, 7}), "");
  }
}

TEST(Fault42, ASnapshotIsExactOrRefused) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    for (int32_t step = -1; step <= 6; ++step) {
      for (int32_t accept : {0, 3, 5}) {
        Bench p(small_rig(), 2);
        p.decode({{.slot = 0, .tokens = {1, 2, 3}}, {.slot = 1, .tokens = {20}}}, impl);
        const Tokens window = {4, 5, 6, 7, 8};
        p.verify({{.slot = 0, .tokens = window}}, impl);
        const bool fits = step < accept;
        EXPECT_EQ(p.commit({0}, {accept}, {1}, {step}, impl),
                  statuses({fits ? RowStatus::done : RowStatus::track_out_of_range}));
        const Tokens kept(window.begin(), window.begin() + (fits ? accept : 0));
        EXPECT_EQ(p.compare(0, join({1, 2, 3}, kept)), "");
        if (fits && step >= 0) {
          EXPECT_EQ(p.compare(1, join({1, 2, 3}, {window.begin(), window.begin() + step + 1})), "");
        } else {
          EXPECT_EQ(p.compare(1, {20}), "");
        }
      }
    }
  }
}

TEST(Fault45, SnapshotsOfEveryKindAndConvShape) {
  for (std::string_view impl : impls()) {
    for (MixerKind kind : {MixerKind::gdn, MixerKind::kda}) {
      for (int64_t V : {1, 3}) {  // 3 channels and 3 taps: a square hides a transpose; then 5 channels
        SCOPED_TRACE(std::string(impl) + " " + to_string(kind) + ", V " + std::to_string(V));
        RigConfig config = small_rig(kind);
        config.pool.HV = 1, config.pool.K = 1, config.pool.V = V;
        Bench p(config, 3);
        ASSERT_EQ(p.rig.channels(), 2 + V);
        poison(*p.pool);
        for (const Slot& s : p.slots) ASSERT_TRUE(succeeded(p.pool->reset(s)));
        p.decode({{.slot = 0, .tokens = {1}}, {.slot = 2, .tokens = {7, 8, 9}}}, impl);
        p.verify({{.slot = 0, .tokens = {2, 3, 4, 5}}}, impl);
        EXPECT_EQ(p.commit({0}, {4}, {2}, {1}, impl), statuses({RowStatus::done}));
        EXPECT_EQ(p.compare(2, {1, 2, 3}), "");
        ASSERT_TRUE(succeeded(p.pool->copy({&p.slots[2], 1}, {&p.slots[1], 1})));
        p.decode({{.slot = 1, .tokens = {6}}}, impl);
        EXPECT_EQ(p.compare(1, {1, 2, 3, 6}), "");
        EXPECT_EQ(p.compare(0, {1, 2, 3, 4, 5}), "");
      }
    }
  }
}

TEST(Fault46, SnapshotExactlyAtTheLastAcceptedToken) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    for (int before : {7, 6, 4, 8}) {  // a boundary after token 8
      Bench p(small_rig(), 2);
      Tokens text;
      for (int i = 0; i < before; ++i) text.push_back(i);
      p.decode({{.slot = 0, .tokens = text}}, impl);
      const Tokens window = {20, 21, 22, 23, 24};
      const int32_t accept = 8 - before;
      p.verify({{.slot = 0, .tokens = window}}, impl);
      const std::vector<int32_t> want = statuses({RowStatus::done});
      EXPECT_EQ(p.commit({0}, {accept}, {1}, {accept - 1}, impl), want);
      text.insert(text.end(), window.begin(), window.begin() + accept);
      EXPECT_EQ(p.compare(0, text), "");
      EXPECT_EQ(p.compare(1, accept > 0 ? text : Tokens{}), "");
    }
  }
}

TEST(Fault47, AnyRemainderAfterARestoredSnapshot) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    Bench p(small_rig(), 6);
    p.decode({{.slot = 0, .tokens = {1, 2, 3}}}, impl);
    const int lengths[] = {1, 2, 63, 64, 65};
    std::vector<Tokens> rest(5);
    for (int i = 0; i < 5; ++i) {
      ASSERT_TRUE(succeeded(p.pool->copy({&p.slots[0], 1}, {&p.slots[static_cast<size_t>(i) + 1], 1})));
      for (int t = 0; t < lengths[i]; ++t) rest[i].push_back((7 * i + t) % 40);
    }
    for (size_t done = 0; done < 65; done += kMaxWindow) {  // all rows together, in chunks
      std::vector<Row> rows;
      for (int i = 0; i < 5; ++i) {
        const size_t end = std::min(rest[i].size(), done + kMaxWindow);
        if (done >= end) continue;
        rows.push_back(
            {.slot = i + 1,
             .tokens = {rest[i].begin() + static_cast<int64_t>(done), rest[i].begin() + static_cast<int64_t>(end)}});
      }
      p.decode(rows, impl);
    }
    for (int i = 0; i < 5; ++i) EXPECT_EQ(p.compare(i + 1, join({1, 2, 3}, rest[i])), "") << lengths[i];
  }
}

}  // namespace
}  // namespace ringfold::test
