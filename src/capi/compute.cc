// The compute calls: each fills the arguments of its C++ call.
#include <fmt/format.h>

#include <vector>

#include "capi/arguments.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "ringfold/ringfold.h"

namespace ringfold::capi {
namespace {

Mixer read(Arguments& in, const ringfold_mixer* given) {
  const ringfold_mixer m = in.required("mixer", given);
  Mixer mixer;
  mixer.kind = in.choice("mixer.kind", m.kind, MixerKind::kda);
  mixer.qk_l2norm = !in.flag("mixer.qk_norm", m.qk_norm);
  mixer.A_log = in.tensor("mixer.A_log", m.A_log);
  mixer.dt_bias = in.tensor("mixer.dt_bias", m.dt_bias);
  if (m.softplus_beta != 0) mixer.softplus_beta = m.softplus_beta;
  if (m.softplus_threshold != 0) mixer.softplus_threshold = m.softplus_threshold;
  if (m.lower_bound != 0) mixer.lower_bound = m.lower_bound;
  if (m.scale != 0) mixer.scale = m.scale;
  return mixer;
}

Window read(Arguments& in, const ringfold_window* given) {
  const ringfold_window w = in.required("window", given);
  return {.q = in.tensor("window.q", w.q),
          .k = in.tensor("window.k", w.k),
          .v = in.tensor("window.v", w.v),
          .a = in.tensor("window.a", w.a),
          .b = in.tensor("window.b", w.b),
          .slot_ids = in.tensor("window.slot_ids", w.slot_ids),
          .cu_seqlens = in.tensor("window.cu_seqlens", w.cu_seqlens),
          .max_window = w.max_window,
          .ring_ids = in.tensor("window.ring_ids", w.ring_ids)};
}

RingOwners read(Arguments& in, const ringfold_ring_owners* given) {
  const ringfold_ring_owners o = in.optional("owners", given);
  return {.slot_of_ring = in.tensor("owners.slot_of_ring", o.slot_of_ring),
          .ring_of_slot = in.tensor("owners.ring_of_slot", o.ring_of_slot)};
}

RingOwners read_conv(Arguments& in, const ringfold_ring_owners* given) {
  const ringfold_ring_owners o = in.optional("conv_owners", given);
  return {.slot_of_ring = in.tensor("conv_owners.slot_of_ring", o.slot_of_ring),
          .ring_of_slot = in.tensor("conv_owners.ring_of_slot", o.ring_of_slot)};
}

Ring read(Arguments& in, const ringfold_ring* given) {
  const ringfold_ring r = in.optional("ring", given);
  const Ring ring = {.k = in.tensor("ring.k", r.k),
                     .v = in.tensor("ring.v", r.v),
                     .g = in.tensor("ring.g", r.g),
                     .beta = in.tensor("ring.beta", r.beta),
                     .u = in.tensor("ring.u", r.u),
                     .a = in.tensor("ring.a", r.a)};
  if (given != nullptr && ring.empty()) in.fail(invalid("ring.k", "a tensor", "NULL"));
  return ring;
}

History read(Arguments& in, const ringfold_history* given) {
  const ringfold_history h = in.optional("history", given);
  in.in_range("history.reserved", h.reserved, 0);
  return {.base = in.tensor("history.base", h.base),
          .live = in.tensor("history.live", h.live),
          .cuts = in.tensor("history.cuts", h.cuts),
          .policy = in.choice("history.policy", h.policy, FoldPolicy::lazy),
          .max_window = h.max_window};
}

/// Binds a call to its pool, if it names one.
template <class Args, class Given>
void bind(Arguments& in, const Given& given, std::initializer_list<std::pair<const char*, const void*>> of_the_pool,
          Args* args) {
  if (given.pool == nullptr) {
    if (given.layer != 0) in.fail(invalid("layer", "0 without a pool", std::to_string(given.layer)));
    return;
  }
  for (const auto& [name, pointer] : of_the_pool) {
    if (pointer != nullptr) in.fail(invalid(name, "NULL beside a pool", "a pointer"));
  }
  in.in_range("layer", given.layer, given.pool->pool->config().layers - 1);
  if (in.ok()) given.pool->pool->bind(given.layer, args);
}

/// What verify, decode and the layer calls share, but for the pool.
template <class Args, class Given>
void read_tensors(Arguments& in, const Given& given, Args* args) {
  if (given.pool != nullptr) in.expect_device_id(given.pool->device_id);
  args->mixer = read(in, given.mixer);
  args->window = read(in, given.window);
  args->state = in.tensor("state", given.state);
  args->ring = read(in, given.ring);
  args->pending = in.tensor("pending", given.pending);
  args->history = read(in, given.history);
  args->out = in.tensor("out", given.out);
  args->row_status = in.tensor("row_status", given.row_status);
  args->numerics = in.choice("numerics", given.numerics, Numerics::fast);
  args->state_rounding = in.choice("state_rounding", given.state_rounding, StateRounding::per_token);
  args->impl = text(given.impl);
  args->stream = given.stream;
}

LayerArgs read(Arguments& in, const ringfold_layer_args* pointer) {
  const ringfold_layer_args given = in.required("args", pointer);
  LayerArgs args;
  read_tensors(in, given, &args);
  args.qkv = in.tensor("qkv", given.qkv);
  args.conv_weight = in.tensor("conv_weight", given.conv_weight);
  args.conv_bias = in.tensor("conv_bias", given.conv_bias);
  args.conv_silu = !in.flag("conv_activation", given.conv_activation);
  args.conv_state = in.tensor("conv_state", given.conv_state);
  args.conv_ring = in.tensor("conv_ring", given.conv_ring);
  args.conv_pending = in.tensor("conv_pending", given.conv_pending);
  args.owners = read(in, given.owners);
  args.conv_owners = read_conv(in, given.conv_owners);
  args.z = in.tensor("z", given.z);
  args.norm_weight = in.tensor("norm_weight", given.norm_weight);
  args.norm_gate = in.choice("norm_gate", given.norm_gate, NormGate::sigmoid);
  if (given.norm_eps != 0) args.norm_eps = given.norm_eps;
  args.mixer_out = in.choice("mixer_out", given.mixer_out, DType::f16);
  bind(in, given,
       {{"state", given.state},
        {"ring", given.ring},
        {"pending", given.pending},
        {"history", given.history},
        {"conv_state", given.conv_state},
        {"conv_ring", given.conv_ring},
        {"conv_pending", given.conv_pending},
        {"owners", given.owners},
        {"conv_owners", given.conv_owners}},
       &args);
  return args;
}

/// The rows of fold, commit and conv_commit.
template <class Args, class Given>
void read_accepted(Arguments& in, const Given& given, Args* args) {
  args->slot_ids = in.tensor("slot_ids", given.slot_ids);
  args->ring_ids = in.tensor("ring_ids", given.ring_ids);
  args->num_accepted = in.tensor("num_accepted", given.num_accepted);
  args->track_slots = in.tensor("track_slots", given.track_slots);
  args->track_steps = in.tensor("track_steps", given.track_steps);
  args->row_status = in.tensor("row_status", given.row_status);
  args->impl = text(given.impl);
  args->stream = given.stream;
}

ConvArgs read(Arguments& in, const ringfold_conv_args* pointer) {
  const ringfold_conv_args given = in.required("args", pointer);
  if (given.pool != nullptr) in.expect_device_id(given.pool->device_id);
  in.in_range("reserved", given.reserved, 0);
  ConvArgs args = {.x = in.tensor("x", given.x),
                   .weight = in.tensor("weight", given.weight),
                   .bias = in.tensor("bias", given.bias),
                   .silu = !in.flag("activation", given.activation),
                   .conv_state = in.tensor("conv_state", given.conv_state),
                   .conv_ring = in.tensor("conv_ring", given.conv_ring),
                   .ring_ids = in.tensor("ring_ids", given.ring_ids),
                   .out = in.tensor("out", given.out),
                   .slot_ids = in.tensor("slot_ids", given.slot_ids),
                   .cu_seqlens = in.tensor("cu_seqlens", given.cu_seqlens),
                   .pending = in.tensor("pending", given.pending),
                   .owners = read(in, given.owners),
                   .row_status = in.tensor("row_status", given.row_status),
                   .impl = text(given.impl),
                   .stream = given.stream};
  bind(in, given,
       {{"conv_state", given.conv_state},
        {"conv_ring", given.conv_ring},
        {"pending", given.pending},
        {"owners", given.owners}},
       &args);
  return args;
}

}  // namespace
}  // namespace ringfold::capi

using namespace ringfold;        // NOLINT(google-build-using-namespace): this file is the border
using namespace ringfold::capi;  // NOLINT(google-build-using-namespace)

extern "C" {

ringfold_status ringfold_verify(const ringfold_verify_args* pointer) {
  return guarded([&]() -> Status {
    Arguments in;
    VerifyArgs args;
    const ringfold_verify_args given = in.required("args", pointer);
    read_tensors(in, given, &args);
    args.owners = read(in, given.owners);
    bind(in, given,
         {{"state", given.state},
          {"ring", given.ring},
          {"pending", given.pending},
          {"history", given.history},
          {"owners", given.owners}},
         &args);
    args.snapshots = in.tensor("snapshots", given.snapshots);
    return in.ok() ? verify(args) : in.status();
  });
}

ringfold_status ringfold_decode(const ringfold_decode_args* pointer) {
  return guarded([&]() -> Status {
    Arguments in;
    DecodeArgs args;
    const ringfold_decode_args given = in.required("args", pointer);
    read_tensors(in, given, &args);
    bind(in, given,
         {{"state", given.state}, {"ring", given.ring}, {"pending", given.pending}, {"history", given.history}}, &args);
    return in.ok() ? decode(args) : in.status();
  });
}

ringfold_status ringfold_fold(const ringfold_fold_args* pointer) {
  return guarded([&]() -> Status {
    Arguments in;
    FoldArgs args;
    const ringfold_fold_args given = in.required("args", pointer);
    args.qk_l2norm = !in.flag("qk_norm", given.qk_norm);
    args.state = in.tensor("state", given.state);
    args.ring = read(in, given.ring);
    args.layers = in.array("layers", given.layers, given.layer_count);
    if (given.layers != nullptr && given.layer_count == 0) {
      in.fail(invalid("layer_count", "1 or more beside layers", "0"));  // to the C++ API an empty list is all layers
    }
    read_accepted(in, given, &args);
    args.pending = in.tensor("pending", given.pending);
    args.owners = read(in, given.owners);
    args.history = read(in, given.history);
    args.state_rounding = in.choice("state_rounding", given.state_rounding, StateRounding::per_token);
    if (given.mixer != nullptr) args.mixer = read(in, given.mixer);
    return in.ok() ? fold(args) : in.status();
  });
}

ringfold_status ringfold_pool_set_mixers(ringfold_pool* pool, const ringfold_mixer* mixers, size_t count) {
  return guarded([&]() -> Status {
    if (pool == nullptr) return invalid("pool", "a handle", "NULL");
    Arguments in;
    in.expect_device_id(pool->device_id);
    std::vector<Mixer> all;
    // Structs of the caller's version lie one behind the other.
    const auto* bytes = reinterpret_cast<const unsigned char*>(mixers);
    if (mixers == nullptr && count > 0) in.fail(invalid("mixers", std::to_string(count) + " structs", "NULL"));
    for (size_t i = 0; i < count && in.ok(); ++i) {
      const auto* one = reinterpret_cast<const ringfold_mixer*>(bytes);
      all.push_back(read(in, one));
      if (in.ok()) bytes += one->struct_size;
    }
    return in.ok() ? pool->pool->set_mixers(all) : in.status();
  });
}

ringfold_status ringfold_commit(ringfold_pool* pool, const ringfold_commit_args* pointer) {
  return guarded([&]() -> Status {
    if (pool == nullptr) return invalid("pool", "a handle", "NULL");
    Arguments in;
    CommitArgs args;
    const ringfold_commit_args given = in.required("args", pointer);
    in.expect_device_id(pool->device_id);
    args.generations = in.tensor("generations", given.generations);
    read_accepted(in, given, &args);
    return in.ok() ? commit(*pool->pool, args) : in.status();
  });
}

ringfold_status ringfold_conv_verify(const ringfold_conv_args* pointer) {
  return guarded([&]() -> Status {
    Arguments in;
    const ConvArgs args = read(in, pointer);
    return in.ok() ? conv_verify(args) : in.status();
  });
}

ringfold_status ringfold_conv_decode(const ringfold_conv_args* pointer) {
  return guarded([&]() -> Status {
    Arguments in;
    const ConvArgs args = read(in, pointer);
    return in.ok() ? conv_decode(args) : in.status();
  });
}

ringfold_status ringfold_conv_commit(const ringfold_conv_commit_args* pointer) {
  return guarded([&]() -> Status {
    Arguments in;
    ConvCommitArgs args;
    const ringfold_conv_commit_args given = in.required("args", pointer);
    args.conv_state = in.tensor("conv_state", given.conv_state);
    args.conv_ring = in.tensor("conv_ring", given.conv_ring);
    read_accepted(in, given, &args);
    return in.ok() ? conv_commit(args) : in.status();
  });
}

ringfold_status ringfold_gated_norm(const ringfold_gated_norm_args* pointer) {
  return guarded([&]() -> Status {
    Arguments in;
    const ringfold_gated_norm_args given = in.required("args", pointer);
    GatedNormArgs args = {.x = in.tensor("x", given.x),
                          .z = in.tensor("z", given.z),
                          .weight = in.tensor("weight", given.weight),
                          .out = in.tensor("out", given.out),
                          .gate = in.choice("gate", given.gate, NormGate::sigmoid),
                          .impl = text(given.impl),
                          .stream = given.stream};
    if (given.eps != 0) args.eps = given.eps;
    return in.ok() ? gated_norm(args) : in.status();
  });
}

ringfold_status ringfold_verify_layer(const ringfold_layer_args* pointer) {
  return guarded([&]() -> Status {
    Arguments in;
    const LayerArgs args = read(in, pointer);
    return in.ok() ? verify_layer(args) : in.status();
  });
}

ringfold_status ringfold_decode_layer(const ringfold_layer_args* pointer) {
  return guarded([&]() -> Status {
    Arguments in;
    const LayerArgs args = read(in, pointer);
    return in.ok() ? decode_layer(args) : in.status();
  });
}

}  // extern "C"
