// The arguments of the C++ API as those of the ABI, and back: written here once more, so that the library's own
// translation is judged by one that shares no code with it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "ringfold/c_api.h"
#include "ringfold/ringfold.h"
#include "support/buffers.h"

namespace ringfold::test {

/// EXPECT_TRUE(done(ringfold_verify(&args)))
inline ::testing::AssertionResult done(ringfold_status status) {
  if (status == RINGFOLD_OK && *ringfold_last_error() == '\0') return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << ringfold_status_name(status) << ": " << ringfold_last_error();
}

/// EXPECT_TRUE(refused(ringfold_verify(&args), RINGFOLD_INVALID_ARGUMENT, "window.q: ")): the message begins so.
inline ::testing::AssertionResult refused(ringfold_status status, ringfold_status expected, const std::string& begin) {
  const std::string message = ringfold_last_error();
  if (status == expected && message.compare(0, begin.size(), begin) == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "expected " << ringfold_status_name(expected) << ": '" << begin
                                       << "..', found " << ringfold_status_name(status) << ": '" << message << "'";
}

template <class T>
T made() {
  T t = {};
  t.struct_size = sizeof t;
  return t;
}

inline DLDataType dtype_of(DType t) {
  switch (t) {
    case DType::f32: return {kDLFloat, 32, 1};
    case DType::f16: return {kDLFloat, 16, 1};
    case DType::bf16: return {kDLBfloat, 16, 1};
    case DType::i32: return {kDLInt, 32, 1};
  }
  return {};
}

/// Owns what the C structs point to. Every tensor gets a byte_offset, and strides unless it is packed.
class Arena {
 public:
  DLTensor* dl(const TensorView& v) {
    if (v.empty()) return nullptr;
    Kept& kept = tensors_.emplace_back();
    kept.view = v;
    DLTensor& t = kept.dl;
    t.byte_offset = 12;
    t.data = static_cast<char*>(v.data) - t.byte_offset;
    t.device = {v.device == Device::cuda ? kDLCUDA : kDLCPU, 0};
    t.ndim = v.rank;
    t.dtype = dtype_of(v.dtype);
    t.shape = kept.view.shape.data();
    if (!v.packed()) t.strides = kept.view.stride.data();
    return &t;
  }

  const ringfold_mixer* c(const Mixer& m) {
    auto& x = mixers_.emplace_back(made<ringfold_mixer>());
    x.kind = m.kind == MixerKind::kda ? RINGFOLD_KDA : RINGFOLD_GDN;
    x.qk_norm = m.qk_l2norm ? RINGFOLD_QK_L2NORM : RINGFOLD_QK_AS_GIVEN;
    x.A_log = dl(m.A_log);
    x.dt_bias = dl(m.dt_bias);
    x.softplus_beta = m.softplus_beta == 1 ? 0 : m.softplus_beta;
    x.softplus_threshold = m.softplus_threshold == 20 ? 0 : m.softplus_threshold;
    x.lower_bound = m.lower_bound.value_or(0);
    x.scale = m.scale.value_or(0);
    return &x;
  }
  const ringfold_window* c(const Window& w) {
    auto& x = windows_.emplace_back(made<ringfold_window>());
    x.q = dl(w.q), x.k = dl(w.k), x.v = dl(w.v), x.a = dl(w.a), x.b = dl(w.b);
    x.slot_ids = dl(w.slot_ids);
    x.cu_seqlens = dl(w.cu_seqlens);
    x.max_window = w.max_window;
    x.ring_ids = dl(w.ring_ids);
    return &x;
  }
  const ringfold_ring_owners* c(const RingOwners& o) {
    if (o.empty()) return nullptr;
    auto& x = owners_.emplace_back(made<ringfold_ring_owners>());
    x.slot_of_ring = dl(o.slot_of_ring), x.ring_of_slot = dl(o.ring_of_slot);
    return &x;
  }
  const ringfold_ring* c(const Ring& r) {
    if (r.empty()) return nullptr;
    auto& x = rings_.emplace_back(made<ringfold_ring>());
    x.k = dl(r.k), x.v = dl(r.v), x.g = dl(r.g), x.beta = dl(r.beta), x.u = dl(r.u), x.a = dl(r.a);
    return &x;
  }
  const ringfold_history* c(const History& h) {
    if (h.empty()) return nullptr;
    auto& x = histories_.emplace_back(made<ringfold_history>());
    x.base = dl(h.base), x.live = dl(h.live), x.cuts = dl(h.cuts);
    x.max_window = h.max_window;
    x.policy = static_cast<int32_t>(h.policy);
    return &x;
  }

  ringfold_verify_args c(const VerifyArgs& a) {
    auto x = made<ringfold_verify_args>();
    set_step(a, &x);
    x.snapshots = dl(a.snapshots);
    x.owners = c(a.owners);
    return x;
  }
  ringfold_decode_args c(const DecodeArgs& a) {
    auto x = made<ringfold_decode_args>();
    set_step(a, &x);
    return x;
  }
  ringfold_fold_args c(const FoldArgs& a) {
    auto x = made<ringfold_fold_args>();
    set_accepted(a, &x);
    x.state = dl(a.state);
    x.ring = c(a.ring);
    x.layers = a.layers.data();
    x.layer_count = a.layers.size();
    x.pending = dl(a.pending);
    x.owners = c(a.owners);
    x.history = c(a.history);
    if (!a.mixer.A_log.empty()) x.mixer = c(a.mixer);
    x.qk_norm = a.qk_l2norm ? RINGFOLD_QK_L2NORM : RINGFOLD_QK_AS_GIVEN;
    x.state_rounding = static_cast<int32_t>(a.state_rounding);
    return x;
  }
  ringfold_commit_args c(const CommitArgs& a) {
    auto x = made<ringfold_commit_args>();
    set_accepted(a, &x);
    x.generations = dl(a.generations);
    return x;
  }
  ringfold_conv_args c(const ConvArgs& a) {
    auto x = made<ringfold_conv_args>();
    x.x = dl(a.x), x.weight = dl(a.weight), x.bias = dl(a.bias);
    x.conv_state = dl(a.conv_state), x.conv_ring = dl(a.conv_ring), x.out = dl(a.out);
    x.slot_ids = dl(a.slot_ids), x.cu_seqlens = dl(a.cu_seqlens);
    x.pending = dl(a.pending), x.row_status = dl(a.row_status);
    x.ring_ids = dl(a.ring_ids), x.owners = c(a.owners);
    x.activation = a.silu ? RINGFOLD_CONV_SILU : RINGFOLD_CONV_LINEAR;
    x.impl = name(a.impl);
    return x;
  }
  ringfold_conv_commit_args c(const ConvCommitArgs& a) {
    auto x = made<ringfold_conv_commit_args>();
    set_accepted(a, &x);
    x.conv_state = dl(a.conv_state), x.conv_ring = dl(a.conv_ring);
    return x;
  }
  ringfold_gated_norm_args c(const GatedNormArgs& a) {
    auto x = made<ringfold_gated_norm_args>();
    x.x = dl(a.x), x.z = dl(a.z), x.weight = dl(a.weight), x.out = dl(a.out);
    x.gate = a.gate == NormGate::silu ? RINGFOLD_GATE_SILU : RINGFOLD_GATE_SIGMOID;
    x.eps = a.eps == 1e-6f ? 0 : a.eps;
    x.impl = name(a.impl);
    return x;
  }
  ringfold_layer_args c(const LayerArgs& a) {
    auto x = made<ringfold_layer_args>();
    set_step(a, &x);
    x.qkv = dl(a.qkv);
    x.conv_weight = dl(a.conv_weight), x.conv_bias = dl(a.conv_bias);
    x.conv_state = dl(a.conv_state), x.conv_ring = dl(a.conv_ring), x.conv_pending = dl(a.conv_pending);
    x.owners = c(a.owners), x.conv_owners = c(a.conv_owners);
    x.z = dl(a.z), x.norm_weight = dl(a.norm_weight);
    x.conv_activation = a.conv_silu ? RINGFOLD_CONV_SILU : RINGFOLD_CONV_LINEAR;
    x.norm_gate = a.norm_gate == NormGate::silu ? RINGFOLD_GATE_SILU : RINGFOLD_GATE_SIGMOID;
    x.norm_eps = a.norm_eps == 1e-6f ? 0 : a.norm_eps;
    x.mixer_out = static_cast<int32_t>(a.mixer_out);
    return x;
  }

 private:
  struct Kept {
    TensorView view;
    DLTensor dl = {};
  };

  const char* name(std::string_view impl) { return impl.empty() ? nullptr : names_.emplace_back(impl).c_str(); }

  template <class Args, class C>
  void set_step(const Args& a, C* x) {
    x->mixer = c(a.mixer);
    x->window = c(a.window);
    x->state = dl(a.state);
    x->ring = c(a.ring);
    x->pending = dl(a.pending);
    x->history = c(a.history);
    x->out = dl(a.out);
    x->row_status = dl(a.row_status);
    x->numerics = a.numerics == Numerics::fast ? RINGFOLD_FAST : RINGFOLD_EXACT;
    x->state_rounding = a.state_rounding == StateRounding::per_token ? RINGFOLD_PER_TOKEN : RINGFOLD_PER_COMMIT;
    x->impl = name(a.impl);
  }
  template <class Args, class C>
  void set_accepted(const Args& a, C* x) {
    x->slot_ids = dl(a.slot_ids);
    x->ring_ids = dl(a.ring_ids);
    x->num_accepted = dl(a.num_accepted);
    x->track_slots = dl(a.track_slots);
    x->track_steps = dl(a.track_steps);
    x->row_status = dl(a.row_status);
    x->impl = name(a.impl);
  }

  std::deque<Kept> tensors_;
  std::deque<ringfold_mixer> mixers_;
  std::deque<ringfold_window> windows_;
  std::deque<ringfold_ring> rings_;
  std::deque<ringfold_history> histories_;
  std::deque<ringfold_ring_owners> owners_;
  std::deque<std::string> names_;
};

/// A tensor of host memory that the library gave.
inline TensorView view_of(const DLTensor* t) {
  TensorView v;
  if (t == nullptr) return v;
  EXPECT_EQ(t->device.device_type, kDLCPU);
  EXPECT_EQ(t->device.device_id, 0);
  EXPECT_LE(t->ndim, TensorView::kMaxRank);
  v.data = static_cast<char*>(t->data) + t->byte_offset;
  for (const DType d : {DType::f32, DType::f16, DType::bf16, DType::i32}) {
    const DLDataType c = dtype_of(d);
    if (c.code == t->dtype.code && c.bits == t->dtype.bits && c.lanes == t->dtype.lanes) v.dtype = d;
  }
  v.rank = t->ndim;
  std::copy_n(t->shape, v.rank, v.shape.begin());
  std::copy_n(t->strides, v.rank, v.stride.begin());
  return v;
}

/// Buffers of one test, filled alike wherever the same tensors are asked for in the same order: one Side is for the C++
/// API, its twin for the ABI, and in the end both must hold the same bytes.
class Side {
 public:
  explicit Side(Buffer::Pitch pitch) : pitch_(pitch) {}

  TensorView floats(DType dtype, const std::vector<int64_t>& shape) {
    const TensorView v = buffers_.emplace_back(dtype, shape, pitch_).view();
    fill_normal(v, buffers_.size());
    return v;
  }
  TensorView poisoned(DType dtype, const std::vector<int64_t>& shape) {
    return buffers_.emplace_back(dtype, shape, pitch_).view();
  }
  TensorView ints(const std::vector<int32_t>& values) {
    const TensorView v = poisoned(DType::i32, {static_cast<int64_t>(values.size())});
    set_ints(v, values);
    return v;
  }

  ::testing::AssertionResult equals(const Side& other) const {
    if (buffers_.size() != other.buffers_.size()) return ::testing::AssertionFailure() << "different tensors";
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const std::string text = changed(buffers_[i].view(), pack(other.buffers_[i].view()));
      if (!text.empty()) return ::testing::AssertionFailure() << "buffer " << i << ": " << text;
      if (!buffers_[i].damage().empty()) return ::testing::AssertionFailure() << buffers_[i].damage();
    }
    return ::testing::AssertionSuccess();
  }
  /// All bytes, to see later that they did not change.
  std::vector<Bytes> bytes() const {
    std::vector<Bytes> all;
    for (const Buffer& b : buffers_) all.push_back(pack(b.view()));
    return all;
  }

 private:
  Buffer::Pitch pitch_;
  std::deque<Buffer> buffers_;
};

/// Of four slots, of which the first and the third have accepted rows in a ring of five.
inline History a_history(Side& side) {
  return {.base = side.ints({1, 0, 4, 0}),
          .live = side.ints({2, 0, 1, 0}),
          .cuts = side.ints({4, 0, 16, 0}),
          .policy = FoldPolicy::on_next_verify,
          .max_window = 3};
}

}  // namespace ringfold::test
