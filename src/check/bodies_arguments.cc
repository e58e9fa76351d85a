// C12, second half: calls whose arguments contradict each other are refused whole, with a message, and change nothing.
#include <functional>

#include "check/bodies.h"
#include "check/layer_world.h"

namespace ringfold::check {
namespace {

template <class Args>
struct BadCall {
  const char* name;
  Code code;
  const char* mentions;  ///< part of the message: the argument's name
  std::function<void(Args&)> spoil;
};

template <class Args>
void run(Judge& judge, const char* op, const std::vector<BadCall<Args>>& cases, const std::function<Args()>& good,
         const std::function<Status(const Args&)>& call, const std::vector<TensorView>& memory) {
  std::vector<Bytes> before;
  for (const TensorView& view : memory) before.push_back(pack(view));
  for (const BadCall<Args>& bad : cases) {
    Args args = good();
    bad.spoil(args);
    const std::string name = std::string(op) + " with " + bad.name;
    const Status status = call(args);
    judge.refused(status, bad.code, name);
    judge.that(status.message().find(bad.mentions) != std::string::npos,
               name + ": the message does not name " + bad.mentions + ": " + status.message());
    for (size_t i = 0; i < memory.size(); ++i)
      judge.untouched(memory[i], before[i], name + ": buffer " + std::to_string(i));
  }
}

template <class Args>
std::vector<BadCall<Args>> window_cases() {
  using A = Args;
  constexpr Code kInvalid = Code::invalid_argument;
  return {
      {"an unknown implementation", Code::not_found, "no-such", [](A& a) { a.impl = "no-such"; }},
      {"no q", kInvalid, "q", [](A& a) { a.window.q = {}; }},
      {"q without memory", kInvalid, "q", [](A& a) { a.window.q.data = nullptr; }},
      {"k of another head dim", kInvalid, "k", [](A& a) { --a.window.k.shape[a.window.k.rank - 1]; }},
      {"v of more heads than the state", kInvalid, "", [](A& a) { ++a.window.v.shape[a.window.v.rank - 2]; }},
      {"an innermost stride of v that is not 1", kInvalid, "v",
       [](A& a) {
         a.window.v.shape[a.window.v.rank - 1] = 2;
         a.window.v.stride[a.window.v.rank - 1] = 2;
       }},
      {"a of too few tokens", kInvalid, "a", [](A& a) { a.window.a.shape[0] += 1; }},
      {"integer b", kInvalid, "b", [](A& a) { a.window.b.dtype = DType::i32; }},
      {"float slot_ids", kInvalid, "slot_ids", [](A& a) { a.window.slot_ids.dtype = DType::f32; }},
      {"a negative max_window", kInvalid, "max_window", [](A& a) { a.window.max_window = -1; }},
      {"a max_window past the limit", kInvalid, "max_window", [](A& a) { a.window.max_window = kMaxWindow + 1; }},
      {"no A_log", kInvalid, "A_log", [](A& a) { a.mixer.A_log = {}; }},
      {"a NaN softplus_beta", kInvalid, "softplus_beta", [](A& a) { a.mixer.softplus_beta = __builtin_nanf(""); }},
      {"softplus_beta 0", kInvalid, "softplus_beta", [](A& a) { a.mixer.softplus_beta = 0; }},
      {"lower_bound 0", kInvalid, "lower_bound", [](A& a) { a.mixer.lower_bound = 0.0f; }},
      {"an infinite scale", kInvalid, "scale", [](A& a) { a.mixer.scale = __builtin_inff(); }},
      {"no state", kInvalid, "state", [](A& a) { a.state = {}; }},
      {"a state of too large K", kInvalid, "state", [](A& a) { ++a.state.shape[3]; }},
      {"an integer state", kInvalid, "state", [](A& a) { a.state.dtype = DType::i32; }},
      {"no out", kInvalid, "out", [](A& a) { a.out = {}; }},
      {"an integer out", kInvalid, "out", [](A& a) { a.out.dtype = DType::i32; }},
      {"row_status of another length", kInvalid, "row_status", [](A& a) { ++a.row_status.shape[0]; }},
      {"pending of another length", kInvalid, "pending", [](A& a) { --a.pending.shape[0]; }},
  };
}

/// Tensors of one call on two devices, and all of them where the implementation does not work. Straight to the library,
/// which looks at what the tensors say, so nothing has to be copied anywhere.
void wrong_device(Judge& judge, const World& world) {
  const Store store = world.make_store();
  Batch batch = world.batch(0);
  const Bytes state = pack(store.state()), out = pack(batch.out), status = pack(batch.row_status);
  VerifyArgs args = world.verify_args(store, 0, batch);
  args.window.q.device = Device::cuda;
  const Status mixed = ringfold::verify(args);
  judge.refused(mixed, Code::invalid_argument, "verify with q on another device than the state");
  judge.that(mixed.message().find("window.q") != std::string::npos, "the message does not name q: " + mixed.message());
  const Device wrong = judge.on_device() ? Device::cpu : Device::cuda;
  for (TensorView* tensor : tensors_of(args)) tensor->device = wrong;
  judge.refused(ringfold::verify(args), Code::unsupported, "verify of tensors where the implementation does not work");
  judge.untouched(store.state(), state, "state, by calls on the wrong device");
  judge.untouched(batch.out, out, "outputs, by calls on the wrong device");
  judge.untouched(batch.row_status, status, "row_status, by calls on the wrong device");
}

/// verify_layer and decode_layer. What they share with verify and decode goes through the same checks; q, k, v given
/// as `qkv` are named by it, or as views.
void layer_arguments(Judge& judge, const Config& config, std::string_view impl) {
  using A = LayerArgs;
  constexpr Code kInvalid = Code::invalid_argument;
  const LayerWorld world(config, impl);
  const LayerWorld::Memory memory = world.make_memory();
  LayerWorld::Call call = world.call();
  call.packed = true;
  const std::vector<BadCall<A>> cases{
      {"an unknown implementation", Code::not_found, "no-such", [](A& a) { a.impl = "no-such"; }},
      {"no projections", kInvalid, "qkv", [](A& a) { a.qkv = {}; }},
      {"projections twice", kInvalid, "qkv", [&](A& a) { a.window.q = call.batch.window.q; }},
      {"projections without memory", kInvalid, "qkv", [](A& a) { a.qkv.data = nullptr; }},
      {"a channel too many", kInvalid, "qkv", [](A& a) { ++a.qkv.shape[a.qkv.rank - 1]; }},
      {"integer projections", kInvalid, "qkv", [](A& a) { a.qkv.dtype = DType::i32; }},
      {"no b", kInvalid, "window.b", [](A& a) { a.window.b = {}; }},
      {"no conv weight", kInvalid, "conv_weight", [](A& a) { a.conv_weight = {}; }},
      {"a conv weight of other channels", kInvalid, "conv_weight", [](A& a) { --a.conv_weight.shape[0]; }},
      {"a conv of width 1", kInvalid, "conv_weight", [](A& a) { a.conv_weight.shape[1] = 1; }},
      {"an integer conv bias", kInvalid, "conv_bias", [](A& a) { (a.conv_bias = a.norm_weight).dtype = DType::i32; }},
      {"no conv state", kInvalid, "conv_state", [](A& a) { a.conv_state = {}; }},
      {"a conv state of other slots", kInvalid, "conv_state", [](A& a) { --a.conv_state.shape[0]; }},
      {"an integer conv state", kInvalid, "conv_state", [](A& a) { a.conv_state.dtype = DType::i32; }},
      {"pending without conv_pending", kInvalid, "conv_pending", [](A& a) { a.conv_pending = {}; }},
      {"conv_pending of another length", kInvalid, "conv_pending", [](A& a) { --a.conv_pending.shape[0]; }},
      {"no z", kInvalid, "z", [](A& a) { a.z = {}; }},
      {"z of other heads", kInvalid, "z", [](A& a) { ++a.z.shape[a.z.rank - 2]; }},
      {"an integer z", kInvalid, "z", [](A& a) { a.z.dtype = DType::i32; }},
      {"no norm weight", kInvalid, "norm_weight", [](A& a) { a.norm_weight = {}; }},
      {"a negative norm_eps", kInvalid, "norm_eps", [](A& a) { a.norm_eps = -1; }},
      {"a NaN norm_eps", kInvalid, "norm_eps", [](A& a) { a.norm_eps = __builtin_nanf(""); }},
      {"integers between mixer and norm", kInvalid, "mixer_out", [](A& a) { a.mixer_out = DType::i32; }},
      {"no state", kInvalid, "state", [](A& a) { a.state = {}; }},
      {"no out", kInvalid, "out", [](A& a) { a.out = {}; }},
      {"an integer out", kInvalid, "out", [](A& a) { a.out.dtype = DType::i32; }},
      {"row_status of another length", kInvalid, "row_status", [](A& a) { ++a.row_status.shape[0]; }},
  };
  std::vector<TensorView> views{call.batch.out, call.batch.row_status};
  for (const auto& view : memory.all()) views.push_back(view.second);
  const auto good = [&] { return world.args(memory, call); };
  auto verify_cases = cases;
  verify_cases.push_back({"a ring without a conv ring", kInvalid, "conv_ring", [](A& a) { a.conv_ring = {}; }});
  verify_cases.push_back({"a conv ring of other slots", kInvalid, "conv_ring", [](A& a) { --a.conv_ring.shape[0]; }});
  run<A>(
      judge, "verify_layer", verify_cases, good, [](const A& a) { return mirrored::verify_layer(a); }, views);
  run<A>(
      judge, "decode_layer", cases, good, [](const A& a) { return mirrored::decode_layer(a); }, views);
  A elsewhere = good();
  elsewhere.z.device = Device::cuda;
  const Status mixed = ringfold::verify_layer(elsewhere);
  judge.refused(mixed, kInvalid, "verify_layer with z on another device");
  judge.that(mixed.message().find("z:") != std::string::npos, "the message does not name z: " + mixed.message());
}

}  // namespace

void refused_arguments(Judge& judge, const Config& config, std::string_view impl) {
  const World world(config, impl);
  const Store store = world.make_store();
  Batch batch = world.batch(0);
  const Ring ring = store.ring();
  const std::vector<TensorView> memory{store.state(), ring.k,          ring.v,    gate_of(ring),
                                       ring.beta,     store.pending(), batch.out, batch.row_status};
  constexpr Code kInvalid = Code::invalid_argument;

  auto verify_cases = window_cases<VerifyArgs>();
  verify_cases.push_back({"a ring without a gate", kInvalid, "ring", [](VerifyArgs& a) { a.ring.g = a.ring.a = {}; }});
  verify_cases.push_back(
      {"a ring with g and a", kInvalid, "ring", [](VerifyArgs& a) { a.ring.g = a.ring.a = gate_of(a.ring); }});
  verify_cases.push_back({"a ring with a of another dtype than window.a", kInvalid, "ring", [](VerifyArgs& a) {
                            a.ring.a = gate_of(a.ring);
                            a.ring.a.dtype = a.window.a.dtype == DType::bf16 ? DType::f16 : DType::bf16;
                            a.ring.g = {};
                          }});
  verify_cases.push_back({"a ring of other slots", kInvalid, "ring", [](VerifyArgs& a) { --a.ring.beta.shape[0]; }});
  verify_cases.push_back({"a ring of integers", kInvalid, "ring", [](VerifyArgs& a) { a.ring.k.dtype = DType::i32; }});
  verify_cases.push_back({"snapshots of another shape", kInvalid, "snapshots",
                          [](VerifyArgs& a) { (a.snapshots = a.state).shape[3] += 1; }});
  run<VerifyArgs>(
      judge, "verify", verify_cases, [&] { return world.verify_args(store, 0, batch); },
      [](const VerifyArgs& a) { return mirrored::verify(a); }, memory);
  run<DecodeArgs>(
      judge, "decode", window_cases<DecodeArgs>(), [&] { return world.decode_args(store, 0, batch); },
      [](const DecodeArgs& a) { return mirrored::decode(a); }, memory);

  const RowBuffers ids(world.slots), counts(std::vector<int32_t>(world.slots.size(), 0));
  const std::vector<int32_t> twice{0, 0}, past{static_cast<int32_t>(config.layers)}, negative{-1};
  std::vector<BadCall<FoldArgs>> fold_cases{
      {"an unknown implementation", Code::not_found, "no-such", [](FoldArgs& a) { a.impl = "no-such"; }},
      {"no state", kInvalid, "state", [](FoldArgs& a) { a.state = {}; }},
      {"a ring of other slots", kInvalid, "ring", [](FoldArgs& a) { --a.ring.v.shape[1]; }},
      {"a ring k of another head dim", kInvalid, "ring", [](FoldArgs& a) { ++a.ring.k.shape[4]; }},
      {"a layer twice", kInvalid, "layers", [&](FoldArgs& a) { a.layers = twice; }},
      {"a layer past the last", kInvalid, "layers", [&](FoldArgs& a) { a.layers = past; }},
      {"a negative layer", kInvalid, "layers", [&](FoldArgs& a) { a.layers = negative; }},
      {"num_accepted of another length", kInvalid, "num_accepted", [](FoldArgs& a) { ++a.num_accepted.shape[0]; }},
      {"track_slots without track_steps", kInvalid, "track_steps", [](FoldArgs& a) { a.track_slots = a.slot_ids; }},
      {"pending of another length", kInvalid, "pending", [](FoldArgs& a) { --a.pending.shape[1]; }},
  };
  if (config.ring_a) {
    const auto add = [&](const char* name, const char* argument, void (*spoil)(FoldArgs&)) {
      fold_cases.push_back({name, kInvalid, argument, spoil});
    };
    add("no gate, with ring.a", "mixer.A_log", [](FoldArgs& a) { a.mixer.A_log = {}; });
    add("a mixer of GDN, with ring.a", "mixer.kind", [](FoldArgs& a) { a.mixer.kind = MixerKind::gdn; });
    add("A_log of other layers", "mixer.A_log", [](FoldArgs& a) { ++a.mixer.A_log.shape[0]; });
    add("dt_bias of one layer", "mixer.dt_bias", [](FoldArgs& a) { a.mixer.dt_bias = a.mixer.dt_bias.at(0); });
    add("lower_bound above 0", "mixer.lower_bound", [](FoldArgs& a) { a.mixer.lower_bound = 1.0f; });
  }
  run<FoldArgs>(
      judge, "fold", fold_cases, [&] { return world.fold_args(store, ids, counts); },
      [](const FoldArgs& a) { return mirrored::fold(a); }, memory);
  wrong_device(judge, world);
  layer_arguments(judge, config, impl);
}

}  // namespace ringfold::check
