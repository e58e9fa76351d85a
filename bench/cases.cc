#include "bench/cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/scalar_io.h"

namespace ringfold::bench {
namespace {

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Uniform in (-1, 1).
float noise(uint64_t i) {
  return static_cast<float>(static_cast<int32_t>(mix(i * 0x9e3779b97f4a7c15u) >> 32)) * 0x1p-31f;
}

std::vector<std::byte> filled(DType type, int64_t n, float scale, uint64_t seed) {
  std::vector<std::byte> bytes(n * size_of(type));
  for (int64_t i = 0; i < n; ++i) detail::store(type, bytes.data(), i, scale * noise(seed * 0x100000001u + i));
  return bytes;
}

std::vector<float> filled(int64_t n, float scale, float shift, uint64_t seed) {
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = shift + scale * noise(seed * 0x100000001u + i);
  return values;
}

}  // namespace

std::vector<Case> standard_cases() {
  struct Shape {
    MixerKind kind;
    int64_t H, HV;
  };
  const Shape shapes[] = {
      {MixerKind::gdn, 16, 32}, {MixerKind::gdn, 16, 48}, {MixerKind::kda, 32, 32}, {MixerKind::kda, 12, 12}};
  std::vector<Case> cases;
  const auto add = [&](Op op, const Shape& s, DType state, int64_t T, int64_t B) {
    Desc d;
    d.op = op;
    d.kind = s.kind;
    d.state_dtype = state;
    d.act_dtype = DType::bf16;
    d.H = s.H, d.HV = s.HV, d.K = d.V = 128;
    d.rows = B, d.window = T;
    const std::string name = op == Op::verify ? "verify_exact" : to_string(op);
    cases.push_back(
        {fmt::format("{}_{}_{}_t{}_b{}_h{}x{}", name, to_string(s.kind), to_string(state), T, B, s.H, s.HV), d});
  };
  for (const Shape& s : shapes) {
    for (const DType state : {DType::f32, DType::bf16}) {
      for (const int64_t B : {1, 4, 16, 64}) {
        add(Op::decode, s, state, 1, B);
        for (const int64_t T : {1, 2, 4, 8}) add(Op::verify, s, state, T, B);
        add(Op::fold, s, state, 4, B);
      }
    }
  }
  // Batch 1 with two heads: one row must still use all cores.
  for (const Op op : {Op::decode, Op::verify, Op::fold})
    add(op, {MixerKind::gdn, 1, 2}, DType::f32, op == Op::decode ? 1 : 4, 1);
  return cases;
}

Rig::Rig(const Desc& desc, int64_t state_bytes) : desc_(desc) {
  const Desc& d = desc_;
  const int64_t tokens = d.rows * d.window, gates = d.kind == MixerKind::kda ? d.K : 1;
  const int64_t call_bytes = d.rows * d.HV * d.V * d.K * static_cast<int64_t>(size_of(d.state_dtype));
  sets_ = std::max<int64_t>(1, state_bytes / call_bytes);
  const int64_t slots = sets_ * d.rows;
  // States are expensive to draw: one slot is drawn and copied.
  const std::vector<std::byte> one = filled(d.state_dtype, d.HV * d.V * d.K, 0.1f, 1);
  state_.resize(slots * one.size());
  for (int64_t s = 0; s < slots; ++s) std::memcpy(state_.data() + s * one.size(), one.data(), one.size());
  q_ = filled(d.act_dtype, tokens * d.H * d.K, 1, 2);
  k_ = filled(d.act_dtype, tokens * d.H * d.K, 1, 3);
  v_ = filled(d.act_dtype, tokens * d.HV * d.V, 1, 4);
  a_ = filled(d.act_dtype, tokens * d.HV * gates, 2, 5);
  b_ = filled(d.act_dtype, tokens * d.HV, 2, 6);
  out_.resize(tokens * d.HV * d.V * size_of(d.act_dtype));
  A_log_ = filled(d.HV, 1, 0, 7);
  dt_bias_ = filled(d.HV * gates, 1, 0, 8);
  ring_k_ = filled(d.act_dtype, slots * d.window * d.H * d.K, 1, 9);
  ring_v_ = filled(d.act_dtype, slots * d.window * d.HV * d.V, 1, 10);
  ring_g_ = filled(slots * d.window * d.HV * gates, 0.5f, -0.5f, 11);
  ring_beta_ = filled(slots * d.window * d.HV, 0.5f, 0.5f, 12);
  slots_.resize(slots);
  // A set's slots lie scattered over the pool.
  for (int64_t i = 0; i < slots; ++i) slots_[i] = static_cast<int32_t>(i % d.rows * sets_ + i / d.rows);
  accepted_.assign(d.rows, static_cast<int32_t>(d.window));
}

Status Rig::call(std::string_view impl) {
  const Desc& d = desc_;
  const int64_t set = next_++ % sets_, B = d.rows, T = d.window, slots = sets_ * B;
  const TensorView state(state_.data(), d.state_dtype, {slots, d.HV, d.V, d.K});
  const TensorView out(out_.data(), d.act_dtype, {B, T, d.HV, d.V});
  const bool kda = d.kind == MixerKind::kda;
  const TensorView slot_ids(slots_.data() + set * d.rows, DType::i32, {B});
  Ring ring{TensorView(ring_k_.data(), d.act_dtype, {slots, T, d.H, d.K}),
            TensorView(ring_v_.data(), d.act_dtype, {slots, T, d.HV, d.V}),
            kda ? TensorView(ring_g_.data(), DType::f32, {slots, T, d.HV, d.K})
                : TensorView(ring_g_.data(), DType::f32, {slots, T, d.HV}),
            TensorView(ring_beta_.data(), DType::f32, {slots, T, d.HV})};
  if (d.op == Op::fold) {
    FoldArgs args;
    args.state = state;
    args.ring = ring;
    args.slot_ids = slot_ids;
    args.num_accepted = TensorView(accepted_.data(), DType::i32, {B});
    args.impl = impl;
    return fold(args);
  }
  VerifyArgs args;
  args.mixer.kind = d.kind;
  args.mixer.A_log = TensorView(A_log_.data(), DType::f32, {d.HV});
  args.mixer.dt_bias =
      kda ? TensorView(dt_bias_.data(), DType::f32, {d.HV, d.K}) : TensorView(dt_bias_.data(), DType::f32, {d.HV});
  if (kda) args.mixer.lower_bound = -5.0f;
  args.window.q = TensorView(q_.data(), d.act_dtype, {B, T, d.H, d.K});
  args.window.k = TensorView(k_.data(), d.act_dtype, {B, T, d.H, d.K});
  args.window.v = TensorView(v_.data(), d.act_dtype, {B, T, d.HV, d.V});
  args.window.a =
      kda ? TensorView(a_.data(), d.act_dtype, {B, T, d.HV, d.K}) : TensorView(a_.data(), d.act_dtype, {B, T, d.HV});
  args.window.b = TensorView(b_.data(), d.act_dtype, {B, T, d.HV});
  args.window.slot_ids = slot_ids;
  args.state = state;
  args.out = out;
  args.impl = impl;
  if (d.op == Op::verify) {
    args.ring = ring;
    return verify(args);
  }
  DecodeArgs decode_args;
  decode_args.mixer = args.mixer;
  decode_args.window = args.window;
  decode_args.state = args.state;
  decode_args.out = args.out;
  decode_args.impl = impl;
  return decode(decode_args);
}

std::vector<Piece> Rig::pieces() {
  const int64_t set = next_++ % sets_;
  const int64_t head = desc_.V * desc_.K * static_cast<int64_t>(size_of(desc_.state_dtype));
  std::vector<Piece> pieces;
  for (int64_t r = 0; r < desc_.rows; ++r) {
    for (int64_t h = 0; h < desc_.HV; ++h) {
      pieces.push_back({state_.data() + (slots_[set * desc_.rows + r] * desc_.HV + h) * head, head});
    }
  }
  return pieces;
}

Status check_case(const Desc& desc, std::string_view impl) {
  Desc small = desc;
  small.rows = std::min<int64_t>(2, desc.rows);
  Rig judged(small, 0), reference(small, 0);
  if (Status s = judged.call(impl); !s.ok()) return s;
  if (Status s = reference.call("reference"); !s.ok()) return s;
  if (judged.state() != reference.state())
    return {Code::internal, fmt::format("{}: the state differs from the reference's", to_string(desc))};
  if (judged.out() != reference.out())
    return {Code::internal, fmt::format("{}: the outputs differ from the reference's", to_string(desc))};
  return {};
}

}  // namespace ringfold::bench
