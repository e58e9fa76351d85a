// Indices, strides, head counts and window lengths at their edges: public reports 35, 50 to 65, 84 to 87, 91, 95.
#include <climits>

#include "faults/case.h"

namespace ringfold::test {
namespace {

/// verify, fold and decode on the implementation and on the reference: the same bits everywhere, no guard touched.
void expect_same_as_reference(const CaseShape& shape, std::string_view impl) {
  Case c(shape), want(shape);
  for (const auto& [one, name] : {std::pair(&c, impl), std::pair(&want, std::string_view("reference"))}) {
    ASSERT_TRUE(succeeded(ringfold::verify(one->verify(name))));
    ASSERT_TRUE(succeeded(ringfold::fold(one->fold(name))));
    EXPECT_EQ(one->damage(), "");
  }
  EXPECT_TRUE(same(c.out.view(), want.out.view()));
  EXPECT_TRUE(same(c.state.view(), want.state.view()));
  EXPECT_TRUE(same(c.ring_g.view(), want.ring_g.view()));
  EXPECT_TRUE(same(c.ring_beta.view(), want.ring_beta.view()));
  for (float o : floats(c.out.view())) ASSERT_TRUE(std::isfinite(o));
  ASSERT_TRUE(succeeded(ringfold::decode(c.decode(impl))));
  ASSERT_TRUE(succeeded(ringfold::decode(want.decode("reference"))));
  EXPECT_TRUE(same(c.out.view(), want.out.view()));
  EXPECT_TRUE(same(c.state.view(), want.state.view()));
  EXPECT_EQ(c.damage(), "");
}

TEST(Fault35, SlotIdsPastThePool) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    Case c({.B = 4, .T = 2, .slots = 2});
    set_ints(c.slot_ids.view(), {1, 2, 3, INT_MAX});
    const std::vector<int32_t> want = statuses(
        {RowStatus::done, RowStatus::slot_out_of_range, RowStatus::slot_out_of_range, RowStatus::slot_out_of_range});
    const Bytes slot_zero = pack(c.state.view().at(0));
    ASSERT_TRUE(succeeded(ringfold::verify(c.verify(impl))));
    EXPECT_EQ(ints(c.status.view()), want);
    ASSERT_TRUE(succeeded(ringfold::fold(c.fold(impl))));
    EXPECT_EQ(ints(c.status.view()), want);
    ASSERT_TRUE(succeeded(ringfold::decode(c.decode(impl))));
    EXPECT_EQ(ints(c.status.view()), want);
    EXPECT_TRUE(unchanged(c.state.view().at(0), slot_zero));
    EXPECT_EQ(c.damage(), "");
    VerifyArgs strict = c.verify(impl);
    strict.row_status = {};
    EXPECT_EQ(ringfold::verify(strict).code(), Code::invalid_argument);
  }
}

TEST(Fault50, SlotIdsAsAColumnOfATable) {
  for (std::string_view impl : impls()) {
    for (int64_t B = 1; B <= 6; ++B) {
      SCOPED_TRACE(std::string(impl) + ", B " + std::to_string(B));
      const CaseShape shape{.B = B, .T = 3, .slots = 7};
      Case plain(shape), column(shape);
      Buffer table(DType::i32, {B, 4});
      std::vector<int32_t> ids, entries;
      for (int32_t r = 0; r < B; ++r) {
        ids.push_back(6 - r);
        entries.insert(entries.end(), {6 - r, (r + 1) % 7, (r + 2) % 7, (r + 3) % 7});  // valid slots, but not these
      }
      set_ints(plain.slot_ids.view(), ids);
      set_ints(table.view(), entries);
      const TensorView first = check::make_view(table.view().data, DType::i32, {B}, {4});
      VerifyArgs verify = column.verify(impl);
      FoldArgs fold = column.fold(impl);
      verify.window.slot_ids = first;
      fold.slot_ids = first;
      ASSERT_TRUE(succeeded(ringfold::verify(verify)));
      ASSERT_TRUE(succeeded(ringfold::fold(fold)));
      ASSERT_TRUE(succeeded(ringfold::verify(plain.verify(impl))));
      ASSERT_TRUE(succeeded(ringfold::fold(plain.fold(impl))));
      EXPECT_TRUE(same(column.out.view(), plain.out.view()));
      EXPECT_TRUE(same(column.state.view(), plain.state.view()));
    }
  }
}

TEST(Fault54, StatesAreAddressedVMajor) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    Case c({.K = 16, .V = 32});
    for (int64_t v = 0; v < 32; ++v) {
      for (int64_t k = 0; k < 16; ++k) {
        static_cast<float*>(c.state.view().data)[v * 16 + k] = static_cast<float>(v * 100 + k);
      }
    }
    c.no_decay();
    c.set(c.b, -200);  // beta is 0
    c.mixer.qk_l2norm = false;
    c.mixer.scale = 1.0f;
    const Bytes before = pack(c.state.view());
    for (int64_t k = 0; k < 16; ++k) {
      c.set(c.q, 0);
      static_cast<float*>(c.q.view().data)[k] = 1;
      ASSERT_TRUE(succeeded(ringfold::decode(c.decode(impl))));
      EXPECT_EQ(pack(c.state.view()), before);
      const std::vector<float> o = floats(c.out.view());
      for (int64_t v = 0; v < 32; ++v) EXPECT_EQ(o[v], static_cast<float>(v * 100 + k));
    }
  }
}

TEST(Fault57, MoreThan65535RowsHeadsAndChannels) {
  for (std::string_view impl : impls()) {
    for (int64_t B : {65535, 65536, 65537}) {
      SCOPED_TRACE(std::string(impl) + ", rows " + std::to_string(B));
      Case c({.K = 2, .V = 2, .B = B, .slots = B, .seed = 57}), one({.K = 2, .V = 2, .seed = 58});
      const std::vector<std::pair<TensorView, TensorView>> parts = {
          {c.q.view(), one.q.view()},
          {c.k.view(), one.k.view()},
          {c.v.view(), one.v.view()},
          {c.a.view(), one.a.view()},
          {c.b.view(), one.b.view()},
          {c.state.view(), one.state.view()},
          {slice(c.A_log.view(), 0, 1), one.A_log.view()},
          {slice(c.dt_bias.view(), 0, 1), one.dt_bias.view()}};
      for (const auto& [many, single] : parts) check::copy(slice(many, many.shape[0] - 1, 1), single);
      ASSERT_TRUE(succeeded(ringfold::verify(c.verify(impl))));
      ASSERT_TRUE(succeeded(ringfold::fold(c.fold(impl))));
      ASSERT_TRUE(succeeded(ringfold::verify(one.verify(impl))));
      ASSERT_TRUE(succeeded(ringfold::fold(one.fold(impl))));
      EXPECT_EQ(ints(c.status.view()), std::vector<int32_t>(static_cast<size_t>(B), 0));
      EXPECT_TRUE(same(slice(c.out.view(), B - 1, 1), one.out.view()));
      EXPECT_TRUE(same(slice(c.state.view(), B - 1, 1), one.state.view()));
    }
    const int64_t C = 65537;
    Buffer x(DType::f32, {1, 1, C}), out(DType::f32, {1, 1, C}), weight(DType::f32, {C, 2}),
        window(DType::f32, {1, C, 1});
    fill_normal(x.view(), 1);
    fill_normal(window.view(), 2);
    Case::set(weight, 0);
    for (int64_t i = 0; i < C; ++i) static_cast<float*>(weight.view().data)[2 * i + 1] = 1;  // y = x
    const int32_t slot = 0;
    ConvArgs args;
    args.x = x.view();
    args.weight = weight.view();
    args.silu = false;
    args.conv_state = window.view();
    args.out = out.view();
    args.slot_ids = TensorView(&slot, DType::i32, {1});
    args.impl = impl;
    ASSERT_TRUE(succeeded(conv_decode(args)));
    EXPECT_TRUE(same(out.view(), x.view()));
    EXPECT_EQ(pack(window.view()), pack(x.view()));
  }
}

TEST(Fault59, HeadDimsThatAreNoPowerOfTwo) {
  for (std::string_view impl : impls()) {
    for (MixerKind kind : {MixerKind::gdn, MixerKind::kda}) {
      for (const auto& [K, V] :
           {std::pair(60, 36), std::pair(100, 100), std::pair(1, 3), std::pair(7, 1), std::pair(33, 65)}) {
        SCOPED_TRACE(std::string(impl) + " " + to_string(kind) + " K " + std::to_string(K) + " V " + std::to_string(V));
        expect_same_as_reference({.kind = kind, .H = 1, .HV = 2, .K = K, .V = V, .B = 2, .T = 3, .slots = 2}, impl);
      }
    }
  }
}

TEST(Fault60, HeadDimsAtAndPastTheLimit) {
  for (std::string_view impl : impls()) {
    for (const auto& [K, V] : {std::pair(128, 256), std::pair(256, 64), std::pair(256, 256)}) {
      SCOPED_TRACE(std::string(impl) + " K " + std::to_string(K) + " V " + std::to_string(V));
      expect_same_as_reference({.K = K, .V = V, .T = 2}, impl);
    }
    for (const auto& [K, V] : {std::pair(128, 512), std::pair(257, 64), std::pair(8, 257)}) {
      Case c({.K = K, .V = V});
      const Bytes before = pack(c.state.view());
      EXPECT_EQ(ringfold::verify(c.verify(impl)).code(), Code::invalid_argument) << K << " " << V;
      EXPECT_EQ(ringfold::decode(c.decode(impl)).code(), Code::invalid_argument) << K << " " << V;
      EXPECT_EQ(pack(c.state.view()), before);
    }
  }
}

TEST(Fault61, HeadCountsOfNoList) {
  for (std::string_view impl : impls()) {
    for (const auto& [H, HV] : {std::pair(14, 14), std::pair(10, 20), std::pair(7, 28), std::pair(5, 40),
                                std::pair(1, 3), std::pair(2, 12), std::pair(1, 8), std::pair(3, 12)}) {
      SCOPED_TRACE(std::string(impl) + " H " + std::to_string(H) + " HV " + std::to_string(HV));
      expect_same_as_reference({.H = H, .HV = HV, .K = 16, .V = 8, .T = 2}, impl);
    }
  }
}

TEST(Fault62, WhichKeyHeadServesWhichValueHead) {
  for (std::string_view impl : impls()) {
    for (const auto& [H, HV] : {std::pair(2, 6), std::pair(16, 48)}) {
      SCOPED_TRACE(std::string(impl) + " H " + std::to_string(H) + " HV " + std::to_string(HV));
      Case c({.H = H, .HV = HV, .K = 16, .V = 1});
      c.set(c.state, 0);
      c.set(c.k, 0);
      c.set(c.v, 1);
      for (int64_t h = 0; h < H; ++h) static_cast<float*>(c.k.view().data)[h * 16 + h] = 1;
      ASSERT_TRUE(succeeded(ringfold::decode(c.decode(impl))));
      const auto* s = static_cast<const float*>(c.state.view().data);
      for (int64_t hv = 0; hv < HV; ++hv) {
        for (int64_t k = 0; k < 16; ++k) EXPECT_EQ(s[hv * 16 + k] != 0, k == hv / (HV / H)) << "value head " << hv;
      }
    }
    Case reverse({.H = 4, .HV = 2});
    EXPECT_EQ(ringfold::verify(reverse.verify(impl)).code(), Code::invalid_argument);
  }
}

TEST(Fault63, BuffersSmallerThanTheWindow) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    Case c({.B = 2, .T = 4, .slots = 2});
    Case less({.B = 2, .T = 3, .slots = 2});
    VerifyArgs args = c.verify(impl);
    args.ring = less.verify(impl).ring;
    EXPECT_EQ(ringfold::verify(args).code(), Code::invalid_argument);
    args = c.verify(impl);
    Buffer snapshots(DType::f32, {2, 3, 1, 8, 8});
    args.snapshots = snapshots.view();
    EXPECT_EQ(ringfold::verify(args).code(), Code::invalid_argument);
    args = c.verify(impl);
    args.out = less.out.view();
    EXPECT_EQ(ringfold::verify(args).code(), Code::invalid_argument);
    EXPECT_EQ(less.damage(), "");
    EXPECT_EQ(c.damage(), "");
  }
}

TEST(Fault64, WindowsUpToTheRingAndNoLonger) {
  for (std::string_view impl : impls()) {
    for (int64_t T : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 32}) {
      SCOPED_TRACE(std::string(impl) + ", T " + std::to_string(T));
      expect_same_as_reference({.T = T}, impl);  // the ring has exactly T rows
    }
    for (int64_t T : {33, 64}) {
      Case c({.T = T, .rows = T});
      EXPECT_EQ(ringfold::verify(c.verify(impl)).code(), Code::invalid_argument) << T;
    }
    // Ragged rows are judged one by one.
    Bench p(small_rig(), 2);
    const StepResult r = p.rig.verify(
        target_of(*p.pool), {{.slot = 0, .tokens = {1, 2, 3, 4, 5, 6}}, {.slot = 1, .tokens = {1, 2, 3, 4, 5}}},
        {.impl = impl});
    EXPECT_TRUE(succeeded(r.status));
    EXPECT_EQ(r.row_status, statuses({RowStatus::window_too_long, RowStatus::done}));
    EXPECT_EQ(p.commit({0, 1}, {1, 5}), statuses({RowStatus::no_pending_window, RowStatus::done}));
    EXPECT_EQ(p.compare(0, {}), "");
    EXPECT_EQ(p.compare(1, {1, 2, 3, 4, 5}), "");
  }
}

TEST(Fault65, EmptyRowsAndEmptyBatches) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    Bench p(small_rig(), 6);
    std::vector<Row> rows;
    const std::vector<std::vector<int>> tokens = {{}, {1, 2, 3}, {}, {}, {4, 5}, {}};
    for (int32_t slot = 0; slot < 6; ++slot) rows.push_back({.slot = slot, .tokens = tokens[slot]});
    p.verify(rows, impl);
    EXPECT_EQ(p.commit({0, 1, 2, 3, 4, 5}, {0, 3, 0, 0, 2, 0}, {}, {}, impl), std::vector<int32_t>(6, 0));
    for (int32_t slot = 0; slot < 6; ++slot) EXPECT_EQ(p.compare(slot, tokens[slot]), "");
    p.decode(rows, impl);
    EXPECT_EQ(p.compare(0, {}), "");
    EXPECT_EQ(p.compare(4, {4, 5, 4, 5}), "");
    p.verify({{.slot = 0, .tokens = {}}, {.slot = 1, .tokens = {}}}, impl);  // no tokens at all
    p.decode({{.slot = 0, .tokens = {}}}, impl);
    p.verify({}, impl);  // no rows at all
    p.decode({}, impl);
    EXPECT_EQ(p.commit({}, {}, {}, {}, impl), std::vector<int32_t>{});
    Case none({.B = 0, .T = 3, .slots = 2});
    EXPECT_TRUE(succeeded(ringfold::verify(none.verify(impl))));
    EXPECT_TRUE(succeeded(ringfold::decode(none.decode(impl))));
    EXPECT_TRUE(succeeded(ringfold::fold(none.fold(impl))));
  }
}

TEST(Fault84, EveryWindowLengthWritesTheRing) {
  for (std::string_view impl : impls()) {
    for (MixerKind kind : {MixerKind::gdn, MixerKind::kda}) {
      for (int64_t T = 1; T <= 9; ++T) {
        for (const auto& [K, V] : {std::pair(128, 128), std::pair(64, 64), std::pair(12, 20)}) {
          SCOPED_TRACE(std::string(impl) + " " + to_string(kind) + " T " + std::to_string(T) + " K " +
                       std::to_string(K));
          Case c({.kind = kind, .H = 1, .HV = 2, .K = K, .V = V, .T = T, .rows = 10});
          ASSERT_TRUE(succeeded(ringfold::verify(c.verify(impl))));
          EXPECT_EQ(pack(slice(c.ring_k.view().at(0), 0, T)), pack(c.k.view()));
          EXPECT_EQ(pack(slice(c.ring_v.view().at(0), 0, T)), pack(c.v.view()));
          for (const Buffer* gate : {&c.ring_g, &c.ring_beta}) {
            for (float x : floats(slice(gate->view().at(0), 0, T))) EXPECT_TRUE(std::isfinite(x));
            for (float x : floats(slice(gate->view().at(0), T, 10 - T))) EXPECT_TRUE(std::isnan(x));
          }
        }
      }
    }
  }
}

TEST(Fault85, IndexArraysThatAreMissingOrTooShort) {
  for (int64_t B : {1, 2}) {
    SCOPED_TRACE(B);
    Case c({.B = B, .slots = 3});
    const Bytes before = pack(c.state.view());
    Buffer longer(DType::i32, {B + 1});
    set_ints(longer.view(), std::vector<int32_t>(static_cast<size_t>(B + 1), 0));
    for (const TensorView& bad : {TensorView{}, longer.view(), TensorView(static_cast<void*>(nullptr), DType::i32, {B}),
                                  TensorView(longer.view().data, DType::f32, {B})}) {
      VerifyArgs verify = c.verify({});
      verify.window.slot_ids = bad;
      EXPECT_EQ(ringfold::verify(verify).code(), Code::invalid_argument) << to_string(bad);
      DecodeArgs decode = c.decode({});
      decode.window.slot_ids = bad;
      EXPECT_EQ(ringfold::decode(decode).code(), Code::invalid_argument) << to_string(bad);
      FoldArgs fold = c.fold({});
      fold.num_accepted = bad;
      EXPECT_EQ(ringfold::fold(fold).code(), Code::invalid_argument) << to_string(bad);
    }
    FoldArgs half = c.fold({});
    half.track_slots = c.slot_ids.view();  // track_steps is missing
    EXPECT_EQ(ringfold::fold(half).code(), Code::invalid_argument);
    EXPECT_EQ(pack(c.state.view()), before);
  }
}

TEST(Fault87, PlainAndSpeculativeRowsInOneBatch) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    const std::vector<std::vector<int>> windows = {{1}, {2, 3, 4, 5}, {6}, {7, 8}, {9, 10, 11, 12}};
    const std::vector<int32_t> accept = {1, 3, 1, 0, 4};
    Rng rng(87);
    for (int order = 0; order < 6; ++order) {
      Bench p(small_rig(), 5);
      for (int32_t slot : {0, 1, 3, 4}) p.decode({{.slot = slot, .tokens = {30 + slot}}}, impl);  // slot 2 is fresh
      std::vector<Row> rows;
      std::vector<int32_t> ids, counts;
      for (int32_t slot : rng.permutation(5)) {
        rows.push_back({.slot = slot, .tokens = windows[slot]});
        ids.push_back(slot);
        counts.push_back(accept[slot]);
      }
      p.verify(rows, impl);
      p.commit(ids, counts, {}, {}, impl);
      for (int32_t slot = 0; slot < 5; ++slot) {
        std::vector<int> text;
        if (slot != 2) text.push_back(30 + slot);
        for (int i = 0; i < accept[slot]; ++i) text.push_back(windows[slot][i]);
        EXPECT_EQ(p.compare(slot, text), "");
      }
    }
  }
}

TEST(Fault91, OneRowOfFewHeadsUsesEveryThread) {
  for (std::string_view impl : impls()) {
    if (impl == "reference") continue;  // made to be read, not to be fast
    for (int threads : {1, 2, 8}) {
      for (int64_t HV : {2, 12, 32}) {
        for (Op op : {Op::verify, Op::decode, Op::fold}) {
          const Desc desc{.op = op, .H = HV, .HV = HV, .K = 128, .V = 128, .rows = 1, .window = 4, .threads = threads};
          Explanation e;
          ASSERT_TRUE(succeeded(explain(desc, impl, &e)));
          EXPECT_GE(e.plan.tasks, threads) << impl << ": " << to_string(desc);
        }
      }
    }
  }
}

TEST(Fault95, DevicesThatThisBuildCannotServe) {
  Case c({});
  const Bytes before = pack(c.state.view());
  VerifyArgs args = c.verify({});
  args.window.q.device = Device::cuda;
  const Status mixed = ringfold::verify(args);
  EXPECT_EQ(mixed.code(), Code::invalid_argument);
  EXPECT_NE(mixed.message().find("window.q"), std::string::npos);
  const Desc desc{.op = Op::verify, .device = Device::cuda, .H = 1, .HV = 1, .K = 8, .V = 8};
  Explanation e;
  EXPECT_EQ(explain(desc, "reference", &e).code(), Code::unsupported);
  if (implementations(Device::cuda).empty()) {
    EXPECT_EQ(explain(desc, {}, &e).code(), Code::unsupported);
  }
  EXPECT_EQ(pack(c.state.view()), before);
  EXPECT_TRUE(succeeded(ringfold::verify(c.verify({}))));
}

}  // namespace
}  // namespace ringfold::test
