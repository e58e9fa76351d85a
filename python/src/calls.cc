// The compute calls. Python hands over a dictionary; the GIL is released while the library works.
#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include "python/src/pool.h"
#include "ringfold/ringfold.h"

namespace ringfold::python {
namespace {

/// What Python calls the window's arrays: a complaint of the library about "window.q" is one about "q".
void require_call(const Status& status) {
  constexpr std::string_view kWindow = "window.";
  const std::string& message = status.message();
  if (status.ok() || message.compare(0, kWindow.size(), kWindow) != 0) return require(status);
  raise(status.code(), message.substr(kWindow.size()));
}

template <class Args>
void run(Status (*call)(const Args&), const Args& args) {
  Status status;
  {
    const nb::gil_scoped_release release;
    status = call(args);
  }
  require_call(status);
}

void* stream_of(const Arguments& in) {
  int64_t stream = 0;
  in.integer("stream", &stream);
  return reinterpret_cast<void*>(stream);
}

Mixer mixer_of(Arguments& in, Mixer mixer) {
  in.name("mixer", "kind", kKindNames, &mixer.kind);
  mixer.A_log = in.array("mixer", "A_log", Access::read);
  mixer.dt_bias = in.array("mixer", "dt_bias", Access::read);
  in.number("mixer", "softplus_beta", &mixer.softplus_beta);
  in.number("mixer", "softplus_threshold", &mixer.softplus_threshold);
  const auto optional = [&](const char* name, std::optional<float>* value) {
    float number = 0;
    if (!in.has("mixer", name)) return;
    in.number("mixer", name, &number);
    *value = number;
  };
  optional("lower_bound", &mixer.lower_bound);
  optional("scale", &mixer.scale);
  in.flag("mixer", "qk_l2norm", &mixer.qk_l2norm);
  return mixer;
}

Window window_of(Arguments& in) {
  Window window;
  window.q = in.array("q", Access::read);
  window.k = in.array("k", Access::read);
  window.v = in.array("v", Access::read);
  window.a = in.array("a", Access::read);
  window.b = in.array("b", Access::read);
  window.slot_ids = in.array("slot_ids", Access::read);
  window.cu_seqlens = in.array("cu_seqlens", Access::read);
  in.integer("max_window", &window.max_window);
  window.ring_ids = in.array("ring_ids", Access::read);
  return window;
}

Ring ring_of(Arguments& in, Access access) {
  return {.k = in.array("ring", "k", access),
          .v = in.array("ring", "v", access),
          .g = in.array("ring", "g", access),
          .beta = in.array("ring", "beta", access),
          .u = in.array("ring", "u", access),
          .a = in.array("ring", "a", access)};
}

History history_of(Arguments& in, Access access) {
  History history{.base = in.array("history", "base", access),
                  .live = in.array("history", "live", access),
                  .cuts = in.array("history", "cuts", access)};
  in.name("history", "policy", kPolicyNames, &history.policy);
  in.integer("history", "max_window", &history.max_window);
  return history;
}

/// Of rings keyed by request row; `name`: owners, or conv_owners.
RingOwners owners_of(Arguments& in, const char* name, Access access) {
  return {.slot_of_ring = in.array(name, "slot_of_ring", access),
          .ring_of_slot = in.array(name, "ring_of_slot", access)};
}

/// What every call has.
template <class Args>
void fill_common(Arguments& in, Args* args) {
  args->impl = in.text("impl");
  args->stream = stream_of(in);
}

/// Window, mixer and outputs of verify and decode. What a pool has bound stays.
template <class Args>
void fill_window(Arguments& in, bool bound, Args* args) {
  const Mixer given = mixer_of(in, {});
  const bool qk_l2norm = args->mixer.qk_l2norm;
  const MixerKind kind = args->mixer.kind;
  args->mixer = given;
  if (bound) {
    if (given.kind != kind || given.qk_l2norm != qk_l2norm) {
      refuse("mixer", fmt::format("kind {} and qk_l2norm {}, as the pool has", to_string(kind), qk_l2norm),
             fmt::format("kind {} and qk_l2norm {}", to_string(given.kind), given.qk_l2norm));
    }
  } else {
    args->pending = in.array("pending", Access::write);
    in.name("state_rounding", kRoundingNames, &args->state_rounding);
  }
  args->window = window_of(in);
  args->out = in.array("out", Access::write);
  args->row_status = in.array("row_status", Access::write);
  in.name("numerics", kNumericsNames, &args->numerics);
  fill_common(in, args);
}

template <class Args>
bool bind(const PoolObject* pool, int64_t layer, Args* args) {
  if (pool == nullptr) return false;
  pool->check_layer(layer);
  pool->pool->bind(layer, args);
  return true;
}

void call_verify(nb::dict values, const PoolObject* pool, int64_t layer) {
  Arguments in(std::move(values));
  VerifyArgs args;
  const bool bound = bind(pool, layer, &args);
  fill_window(in, bound, &args);
  bind(pool, layer, &args);  // once more: the gate of a pool that has it goes before what is given
  if (!bound) {
    args.ring = ring_of(in, Access::write);
    args.history = history_of(in, Access::read);
    args.owners = owners_of(in, "owners", Access::write);
    // Only a history that is due changes the state.
    args.state = in.array("state", args.history.empty() ? Access::read : Access::write);
  }
  args.snapshots = in.array("snapshots", Access::write);
  run(verify, args);
}

void call_decode(nb::dict values, const PoolObject* pool, int64_t layer) {
  Arguments in(std::move(values));
  DecodeArgs args;
  const bool bound = bind(pool, layer, &args);
  fill_window(in, bound, &args);
  bind(pool, layer, &args);
  if (!bound) {
    args.ring = ring_of(in, Access::read);
    args.history = history_of(in, Access::write);
    args.state = in.array("state", Access::write);
  }
  run(decode, args);
}

/// The rows of fold, commit and conv_commit.
template <class Args>
void fill_accepted(Arguments& in, Args* args) {
  args->slot_ids = in.array("slot_ids", Access::read);
  args->ring_ids = in.array("ring_ids", Access::read);
  args->num_accepted = in.array("num_accepted", Access::read);
  args->track_slots = in.array("track_slots", Access::read);
  args->track_steps = in.array("track_steps", Access::read);
  args->row_status = in.array("row_status", Access::write);
  fill_common(in, args);
}

void call_fold(nb::dict values) {
  Arguments in(std::move(values));
  FoldArgs args;
  fill_accepted(in, &args);
  args.state = in.array("state", Access::write);
  args.ring = ring_of(in, Access::read);
  args.pending = in.array("pending", Access::write);
  args.owners = owners_of(in, "owners", Access::read);
  args.history = history_of(in, Access::write);
  in.flag("qk_l2norm", &args.qk_l2norm);
  if (in.has("mixer")) args.mixer = mixer_of(in, {});
  in.name("state_rounding", kRoundingNames, &args.state_rounding);
  const std::vector<int32_t> layers = in.integers("layers");
  if (in.has("layers") && layers.empty()) refuse("layers", "at least one layer, or None for all", "none");
  args.layers = layers;
  run(fold, args);
}

void call_set_mixers(const nb::list& each, PoolObject& pool) {
  std::vector<Arguments> held;  // with the arrays
  std::vector<Mixer> mixers;
  for (const nb::handle one : each) {
    nb::dict values;
    values["mixer"] = one;
    mixers.push_back(mixer_of(held.emplace_back(values), {}));
  }
  Status status;
  {
    const nb::gil_scoped_release release;
    status = pool.pool->set_mixers(mixers);
  }
  require(status);
}

void call_commit(nb::dict values, PoolObject& pool) {
  Arguments in(std::move(values));
  CommitArgs args;
  fill_accepted(in, &args);
  args.generations = in.array("generations", Access::read);
  Status status;
  {
    const nb::gil_scoped_release release;
    status = commit(*pool.pool, args);
  }
  require_call(status);
}

ConvArgs conv_of(Arguments& in, const PoolObject* pool, int64_t layer, Access state) {
  ConvArgs args;
  if (!bind(pool, layer, &args)) {
    args.conv_state = in.array("conv_state", state);
    args.conv_ring = in.array("conv_ring", Access::write);
    args.pending = in.array("pending", Access::write);
    args.owners = owners_of(in, "owners", Access::write);
  } else if (args.conv_state.empty()) {
    refuse("pool", "one with a short conv (conv_channels)", "one without");
  }
  args.x = in.array("x", Access::read);
  args.weight = in.array("weight", Access::read);
  args.bias = in.array("bias", Access::read);
  in.flag("silu", &args.silu);
  args.out = in.array("out", Access::write);
  args.slot_ids = in.array("slot_ids", Access::read);
  args.ring_ids = in.array("ring_ids", Access::read);
  args.cu_seqlens = in.array("cu_seqlens", Access::read);
  args.row_status = in.array("row_status", Access::write);
  fill_common(in, &args);
  return args;
}

void call_conv_verify(nb::dict values, const PoolObject* pool, int64_t layer) {
  Arguments in(std::move(values));
  run(conv_verify, conv_of(in, pool, layer, Access::read));
}

void call_conv_decode(nb::dict values, const PoolObject* pool, int64_t layer) {
  Arguments in(std::move(values));
  run(conv_decode, conv_of(in, pool, layer, Access::write));
}

void call_conv_commit(nb::dict values) {
  Arguments in(std::move(values));
  ConvCommitArgs args;
  fill_accepted(in, &args);
  args.conv_state = in.array("conv_state", Access::write);
  args.conv_ring = in.array("conv_ring", Access::read);
  run(conv_commit, args);
}

void call_gated_norm(nb::dict values) {
  Arguments in(std::move(values));
  GatedNormArgs args;
  args.x = in.array("x", Access::read);
  args.z = in.array("z", Access::read);
  args.weight = in.array("weight", Access::read);
  args.out = in.array("out", Access::write);
  in.name("gate", kNormGateNames, &args.gate);
  in.number("eps", &args.eps);
  fill_common(in, &args);
  run(gated_norm, args);
}

LayerArgs layer_of(Arguments& in, const PoolObject* pool, int64_t layer, bool decodes) {
  LayerArgs args;
  const bool bound = bind(pool, layer, &args);
  fill_window(in, bound, &args);
  if (!bound) {
    args.ring = ring_of(in, decodes ? Access::read : Access::write);
    args.history = history_of(in, decodes ? Access::write : Access::read);
    args.state = in.array("state", decodes || !args.history.empty() ? Access::write : Access::read);
    args.conv_state = in.array("conv_state", decodes ? Access::write : Access::read);
    args.conv_ring = in.array("conv_ring", decodes ? Access::read : Access::write);
    args.conv_pending = in.array("conv_pending", Access::write);
    args.owners = owners_of(in, "owners", Access::write);
    args.conv_owners = owners_of(in, "conv_owners", Access::write);
  } else if (args.conv_state.empty()) {
    refuse("pool", "one with a short conv (conv_channels)", "one without");
  }
  args.qkv = in.array("qkv", Access::read);
  args.conv_weight = in.array("conv_weight", Access::read);
  args.conv_bias = in.array("conv_bias", Access::read);
  in.flag("conv_silu", &args.conv_silu);
  args.z = in.array("z", Access::read);
  args.norm_weight = in.array("norm_weight", Access::read);
  in.name("norm_gate", kNormGateNames, &args.norm_gate);
  in.number("norm_eps", &args.norm_eps);
  in.name("mixer_out", kFloatNames, &args.mixer_out);
  return args;
}

void call_verify_layer(nb::dict values, const PoolObject* pool, int64_t layer) {
  Arguments in(std::move(values));
  run(verify_layer, layer_of(in, pool, layer, false));
}

void call_decode_layer(nb::dict values, const PoolObject* pool, int64_t layer) {
  Arguments in(std::move(values));
  run(decode_layer, layer_of(in, pool, layer, true));
}

/// What the library would see of an array: (address, dtype, device, shape, strides in elements). For tests and for
/// programs that want to know whether an array can be handed over.
nb::tuple describe(nb::object array, bool writable) {
  nb::dict values;
  values["array"] = array;
  Arguments in(values);
  const TensorView view = in.array("array", writable ? Access::write : Access::read);
  nb::list shape, strides;
  for (int i = 0; i < view.rank; ++i) {
    shape.append(view.shape[i]);
    strides.append(view.stride[i]);
  }
  return nb::make_tuple(reinterpret_cast<uintptr_t>(view.data), to_string(view.dtype), to_string(view.device),
                        nb::tuple(shape), nb::tuple(strides));
}

}  // namespace

void bind_calls(nb::module_& m) {
  using namespace nb::literals;
  // With a pool: on its state, ring and cursors of the layer.
  m.def("verify", &call_verify, "arguments"_a, "pool"_a.none() = nb::none(), "layer"_a = 0);
  m.def("decode", &call_decode, "arguments"_a, "pool"_a.none() = nb::none(), "layer"_a = 0);
  m.def("fold", &call_fold, "arguments"_a);
  m.def("set_mixers", &call_set_mixers, "mixers"_a, "pool"_a);
  m.def("commit", &call_commit, "arguments"_a, "pool"_a);
  m.def("conv_verify", &call_conv_verify, "arguments"_a, "pool"_a.none() = nb::none(), "layer"_a = 0);
  m.def("conv_decode", &call_conv_decode, "arguments"_a, "pool"_a.none() = nb::none(), "layer"_a = 0);
  m.def("conv_commit", &call_conv_commit, "arguments"_a);
  m.def("gated_norm", &call_gated_norm, "arguments"_a);
  m.def("verify_layer", &call_verify_layer, "arguments"_a, "pool"_a.none() = nb::none(), "layer"_a = 0);
  m.def("decode_layer", &call_decode_layer, "arguments"_a, "pool"_a.none() = nb::none(), "layer"_a = 0);
  m.def("describe", &describe, "array"_a, "writable"_a = false,
        "What the library sees of an array: (address, dtype, device, shape, strides in elements).");
}

}  // namespace ringfold::python
