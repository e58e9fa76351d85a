#include "faults/case.h"

#include <numeric>

namespace ringfold::test {

Case::Case(const CaseShape& shape) : n(shape) {
  if (n.rows == 0) n.rows = n.T;
  const bool kda = n.kind == MixerKind::kda;
  const auto per_gate = [&](std::vector<int64_t> lead) {
    lead.push_back(n.HV);
    if (kda) lead.push_back(n.K);
    return lead;
  };
  q = Buffer(n.act, {n.B, n.T, n.H, n.K});
  k = Buffer(n.act, {n.B, n.T, n.H, n.K});
  v = Buffer(n.act, {n.B, n.T, n.HV, n.V});
  a = Buffer(n.gates, per_gate({n.B, n.T}));
  b = Buffer(n.gates, {n.B, n.T, n.HV});
  A_log = Buffer(DType::f32, {n.HV});
  dt_bias = Buffer(DType::f32, per_gate({}));
  state = Buffer(n.state, {n.slots, n.HV, n.V, n.K});
  out = Buffer(n.out, {n.B, n.T, n.HV, n.V});
  ring_k = Buffer(n.act, {n.slots, n.rows, n.H, n.K});
  ring_v = Buffer(n.act, {n.slots, n.rows, n.HV, n.V});
  ring_g = Buffer(DType::f32, per_gate({n.slots, n.rows}));
  ring_beta = Buffer(DType::f32, {n.slots, n.rows, n.HV});
  slot_ids = Buffer(DType::i32, {n.B});
  accept = Buffer(DType::i32, {n.B});
  status = Buffer(DType::i32, {n.B});
  int64_t what = 0;
  for (const Buffer* buffer : {&q, &k, &v, &a, &b, &A_log, &dt_bias, &state}) {
    fill_normal(buffer->view(), mix({static_cast<int64_t>(n.seed), ++what}));
  }
  std::vector<int32_t> ids(static_cast<size_t>(n.B));
  std::iota(ids.begin(), ids.end(), 0);
  set_ints(slot_ids.view(), ids);
  set_ints(accept.view(), std::vector<int32_t>(ids.size(), static_cast<int32_t>(n.T)));
  mixer.kind = n.kind;
  mixer.A_log = A_log.view();
  mixer.dt_bias = dt_bias.view();
}

VerifyArgs Case::verify(std::string_view impl) const {
  VerifyArgs args;
  args.mixer = mixer;
  args.window = {.q = q.view(),
                 .k = k.view(),
                 .v = v.view(),
                 .a = a.view(),
                 .b = b.view(),
                 .slot_ids = slot_ids.view(),
                 .cu_seqlens = {}};
  args.state = state.view();
  args.out = out.view();
  args.ring = {.k = ring_k.view(), .v = ring_v.view(), .g = ring_g.view(), .beta = ring_beta.view()};
  args.row_status = status.view();
  args.impl = impl;
  return args;
}

DecodeArgs Case::decode(std::string_view impl) const {
  const VerifyArgs from = verify(impl);
  DecodeArgs args;
  args.mixer = from.mixer;
  args.window = from.window;
  args.state = from.state;
  args.out = from.out;
  args.row_status = from.row_status;
  args.impl = impl;
  return args;
}

FoldArgs Case::fold(std::string_view impl) const {
  FoldArgs args;
  args.qk_l2norm = mixer.qk_l2norm;
  args.state = state.view();
  args.ring = verify(impl).ring;
  args.slot_ids = slot_ids.view();
  args.num_accepted = accept.view();
  args.row_status = status.view();
  args.impl = impl;
  return args;
}

std::string Case::damage() const {
  for (const Buffer* buffer : {&q, &k, &v, &a, &b, &A_log, &dt_bias, &state, &out, &ring_k, &ring_v, &ring_g,
                               &ring_beta, &slot_ids, &accept, &status}) {
    if (std::string text = buffer->damage(); !text.empty()) return to_string(buffer->view()) + ": " + text;
  }
  return "";
}

RigConfig small_rig(MixerKind kind, bool safe_gate) {
  RigConfig c;
  c.pool = {.layers = 2, .slots = 6, .H = 1, .HV = 2, .K = 10, .V = 6, .kind = kind, .ring_rows = 5, .conv_width = 4};
  c.safe_gate = safe_gate;
  return c;
}

Bench::Bench(const RigConfig& config, size_t requests)
    : rig(config), plain_model(rig), pool(rig.make_pool()), slots(requests) {
  EXPECT_TRUE(succeeded(pool->acquire(slots)));
}

StepResult Bench::verify(const std::vector<Row>& rows, std::string_view impl) {
  StepResult r = rig.verify(target_of(*pool), rows, {.impl = impl});
  EXPECT_TRUE(succeeded(r.status));
  EXPECT_EQ(r.trouble, "");
  return r;
}

StepResult Bench::decode(const std::vector<Row>& rows, std::string_view impl) {
  StepResult r = rig.decode(target_of(*pool), rows, {.impl = impl});
  EXPECT_TRUE(succeeded(r.status));
  EXPECT_EQ(r.trouble, "");
  return r;
}

std::vector<int32_t> Bench::commit(const std::vector<int32_t>& ids, const std::vector<int32_t>& accept,
                                   const std::vector<int32_t>& track_slots, const std::vector<int32_t>& track_steps,
                                   std::string_view impl) {
  const auto B = static_cast<int64_t>(ids.size());
  std::vector<int32_t> status(ids.size(), 99);
  CommitArgs args;
  args.slot_ids = TensorView(ids.data(), DType::i32, {B});
  args.num_accepted = TensorView(accept.data(), DType::i32, {B});
  if (!track_slots.empty()) {
    args.track_slots = TensorView(track_slots.data(), DType::i32, {B});
    args.track_steps = TensorView(track_steps.data(), DType::i32, {B});
  }
  args.row_status = TensorView(status.data(), DType::i32, {B});
  args.impl = impl;
  EXPECT_TRUE(succeeded(ringfold::commit(*pool, args)));
  return status;
}

Plain::State Bench::state(int32_t slot) const {
  Plain::State s;
  for (int64_t layer = 0; layer < rig.layers(); ++layer) {
    s.state.push_back(pack(pool->state(layer).at(slot)));
    s.conv.push_back(pool->conv_state().empty() ? Bytes{} : pack(pool->conv_state(layer).at(slot)));
  }
  return s;
}

Plain::State Bench::plain(const std::vector<int>& tokens) const {
  Plain::State s = plain_model.zero();
  plain_model.decode(&s, tokens, "reference");
  return s;
}

}  // namespace ringfold::test
