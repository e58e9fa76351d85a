#include "bench/cases.h"

#include <fmt/format.h>

namespace ringfold::bench {
namespace {

struct Shape {
  MixerKind kind;
  int64_t H, HV;
};

constexpr DType kStates[] = {DType::f32, DType::bf16};

Desc describe(Device device, Op op, const Shape& s, DType state, int64_t T, int64_t B) {
  Desc d;
  d.op = op;
  d.device = device;
  d.kind = s.kind;
  d.state_dtype = state;
  d.act_dtype = DType::bf16;
  d.H = s.H, d.HV = s.HV, d.K = d.V = 128;
  d.rows = B, d.window = T;
  return d;
}

/// A whole step under `policy`, 3 of 4 or 5 of 8 tokens accepted. On a GPU lazy has u in the ring, in rings that were
/// found to be best for GDN; a ring of raw rows is three windows.
Case pool_step(Device device, FoldPolicy policy, const Shape& s, DType state, int64_t T, int64_t B, int64_t layers) {
  Desc d = describe(device, Op::verify, s, state, T, B);
  d.fold_policy = policy;
  const bool on_commit = policy == FoldPolicy::on_commit;
  if (device == Device::cuda && policy == FoldPolicy::lazy) {
    d.ring_u = true;
    d.history_rows = T == 4 ? 16 : 24;
  } else if (!on_commit) {
    d.history_rows = policy == FoldPolicy::lazy ? 3 * T : 2 * T;
  }
  d.numerics = device == Device::cuda && (on_commit || d.ring_u) ? Numerics::fast : Numerics::exact;
  Desc fold = d;
  fold.op = Op::fold, fold.numerics = Numerics::exact;
  fold.window = T == 4 ? 3 : 5, fold.layers = layers;
  return {fmt::format("step_{}_{}_{}_t{}_b{}", to_string(policy), to_string(s.kind), to_string(state), T, B), d, fold,
          true};
}

/// A layer in one call: decode_layer at T = 1, verify_layer beyond.
Case whole_layer(Device device, const Shape& s, DType state, int64_t T, int64_t B) {
  Desc d = describe(device, T == 1 ? Op::decode_layer : Op::verify_layer, s, state, T, B);
  d.channels = 2 * d.H * d.K + d.HV * d.V;
  const char* name = T == 1 ? "fused_decode" : "fused_verify";
  return {fmt::format("{}_{}_{}_t{}_b{}", name, to_string(s.kind), to_string(state), T, B), d, {}};
}

std::vector<Case> cpu_cases() {
  const Shape shapes[] = {
      {MixerKind::gdn, 16, 32}, {MixerKind::gdn, 16, 48}, {MixerKind::kda, 32, 32}, {MixerKind::kda, 12, 12}};
  std::vector<Case> cases;
  const auto add = [&](Op op, const Shape& s, DType state, int64_t T, int64_t B) {
    const std::string name = op == Op::verify ? "verify_exact" : to_string(op);
    cases.push_back({fmt::format("{}_{}_{}_t{}_b{}_h{}x{}", name, to_string(s.kind), to_string(state), T, B, s.H, s.HV),
                     describe(Device::cpu, op, s, state, T, B),
                     {}});
  };
  for (const Shape& s : shapes) {
    for (const DType state : kStates) {
      for (const int64_t B : {1, 4, 16, 64}) {
        add(Op::decode, s, state, 1, B);
        for (const int64_t T : {1, 2, 4, 8}) add(Op::verify, s, state, T, B);
        add(Op::fold, s, state, 4, B);
      }
    }
  }
  for (const Shape& s : {shapes[0], shapes[2]}) {
    for (const DType state : kStates) {
      for (const FoldPolicy policy : {FoldPolicy::on_commit, FoldPolicy::on_next_verify, FoldPolicy::lazy}) {
        for (const int64_t T : {4, 8}) {
          for (const int64_t B : {1, 32, 256}) cases.push_back(pool_step(Device::cpu, policy, s, state, T, B, 2));
        }
      }
    }
  }
  for (const Op op : {Op::verify, Op::fold}) {  // the raw gate in the ring
    add(op, shapes[2], DType::f32, 4, 16);
    cases.back().key += "_a", cases.back().desc.ring_a = DType::bf16;
  }
  // Batch 1 with two heads: one row must still use all cores.
  for (const Op op : {Op::decode, Op::verify, Op::fold})
    add(op, {MixerKind::gdn, 1, 2}, DType::f32, op == Op::decode ? 1 : 4, 1);
  // A whole layer in one call, beside the chain of three.
  for (const Shape& s : {shapes[0], shapes[2]}) {
    for (const DType state : kStates) {
      for (const int64_t B : {1, 16}) {
        for (const int64_t T : {1, 4, 8}) cases.push_back(whole_layer(Device::cpu, s, state, T, B));
      }
    }
  }
  return cases;
}

/// The rows of one shape and state dtype. `name` is what keys have in common, "gdn_f32"; `suffix` names a shape that is
/// not the kind's usual one.
class CudaCases {
 public:
  CudaCases(const Shape& shape, DType state, std::string suffix, std::vector<Case>* cases)
      : shape_(shape), state_(state), suffix_(std::move(suffix)), cases_(cases) {
    name_ = fmt::format("{}_{}", to_string(shape.kind), to_string(state));
  }

  void verify(int64_t T, int64_t B, Numerics numerics) {
    Desc d = describe(Device::cuda, Op::verify, shape_, state_, T, B);
    d.numerics = numerics, d.ring_a = ring_a;
    cases_->push_back({fmt::format("verify_{}_{}_t{}_b{}{}", to_string(numerics), name_, T, B, suffix_), d, {}});
  }
  void verify(int64_t T, int64_t B) {
    for (const Numerics numerics : {Numerics::fast, Numerics::exact}) verify(T, B, numerics);
  }
  void decode(int64_t B) {
    cases_->push_back(
        {fmt::format("decode_{}_b{}", name_, B), describe(Device::cuda, Op::decode, shape_, state_, 1, B), {}});
  }
  void fold(int64_t B, int64_t layers) {
    Desc d = describe(Device::cuda, Op::fold, shape_, state_, 4, B);
    d.layers = layers, d.ring_a = ring_a;
    cases_->push_back({fmt::format("{}_{}_b{}{}", layers > 1 ? "foldall" : "fold", name_, B, suffix_), d, {}});
  }
  void step(int64_t T, int64_t accepted, int64_t B) {
    Desc fold = describe(Device::cuda, Op::fold, shape_, state_, accepted, B);
    fold.layers = kLayers;
    Desc d = describe(Device::cuda, Op::verify, shape_, state_, T, B);
    d.numerics = Numerics::fast;
    cases_->push_back({fmt::format("step_on_commit_{}_t{}_b{}", name_, T, B), d, fold});
  }

  static constexpr int64_t kLayers = 8;
  std::optional<DType> ring_a;

 private:
  Shape shape_;
  DType state_;
  std::string suffix_, name_;
  std::vector<Case>* cases_;
};

std::vector<Case> cuda_cases() {
  std::vector<Case> all;
  for (const Shape& s : {Shape{MixerKind::gdn, 16, 32}, Shape{MixerKind::kda, 32, 32}}) {
    for (const DType state : kStates) {
      CudaCases cases(s, state, "", &all);
      for (const int64_t B : {1, 8, 32, 128, 256}) {
        for (const int64_t T : {1, 2, 4, 8}) cases.verify(T, B);
        cases.fold(B, 1);
        cases.decode(B);
      }
      for (const int64_t B : {2, 4, 16}) {  // where cuda.direct and cuda.exact may change places
        for (const int64_t T : {1, 4}) cases.verify(T, B, Numerics::exact);
        cases.decode(B);
      }
      cases.verify(16, 256, Numerics::fast);
      for (const int64_t B : {1, 32}) cases.fold(B, CudaCases::kLayers);
      for (const int64_t B : {1, 32, 256}) {
        cases.step(4, 3, B);
        cases.step(8, 5, B);
        for (const int64_t T : {1, 4, 8}) all.push_back(whole_layer(Device::cuda, s, state, T, B));
      }
      // These bring memory of their own, so they come last.
      for (const FoldPolicy policy : {FoldPolicy::on_next_verify, FoldPolicy::lazy}) {
        for (const int64_t T : {4, 8}) {
          for (const int64_t B : {1, 32, 256})
            all.push_back(pool_step(Device::cuda, policy, s, state, T, B, CudaCases::kLayers));
        }
      }
    }
  }
  for (const DType state : kStates) {
    CudaCases k3({MixerKind::kda, 12, 12}, state, "_h12x12", &all);
    for (const int64_t B : {1, 8, 32, 128, 256}) k3.verify(8, B);
    CudaCases raw({MixerKind::kda, 32, 32}, state, "_a", &all);  // the raw gate in the ring
    raw.ring_a = DType::bf16;
    for (const int64_t B : {1, 32, 256}) {
      raw.verify(4, B);
      raw.fold(B, 1);
    }
    CudaCases qwen({MixerKind::gdn, 16, 64}, state, "_h16x64", &all);
    for (const int64_t B : {1, 8, 32, 128, 256}) qwen.verify(4, B);
  }
  return all;
}

}  // namespace

int64_t Case::state_bytes() const {
  return layers() * desc.rows * desc.HV * desc.V * desc.K * static_cast<int64_t>(size_of(desc.state_dtype));
}

std::vector<Case> standard_cases(Device device) { return device == Device::cpu ? cpu_cases() : cuda_cases(); }

}  // namespace ringfold::bench
