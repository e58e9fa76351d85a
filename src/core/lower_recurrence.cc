// Validation of verify, decode and fold.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "core/check_view.h"
#include "core/lower.h"
#include "core/parallel.h"
#include "core/rows.h"

namespace ringfold::detail {
namespace {

std::byte* bytes(const TensorView& v) { return static_cast<std::byte*>(v.data); }

// The strides of the last `1 + outer` dimensions: (.., row, token, head, inner).
Array array(const TensorView& v, int64_t layer, int64_t row, int64_t token, int64_t head) {
  return {bytes(v), v.dtype, layer, row, token, head};
}

// A window argument of rank [B,T,heads,inner] or [tokens,heads,inner].
Array window_array(const TensorView& v, bool ragged) {
  return ragged ? array(v, 0, 0, v.stride[0], v.stride[1]) : array(v, 0, v.stride[0], v.stride[1], v.stride[2]);
}

// The same for per-head scalars, [B,T,heads] or [tokens,heads]: the head stride is the innermost one.
Array scalar_array(const TensorView& v, bool ragged) { return window_array(v, ragged); }

// A_log and dt_bias of one layer, or of as many as `layers` says.
Status check_gate_views(const Mixer& m, std::optional<int64_t> layers, int64_t HV, int64_t K) {
  const Dim L{"layers", layers.value_or(1)}, heads{"HV", HV}, keys{"K", K};
  RINGFOLD_RETURN_IF_ERROR(layers ? check_view("mixer.A_log", m.A_log, {L, heads})
                                  : check_view("mixer.A_log", m.A_log, {heads}));
  RINGFOLD_RETURN_IF_ERROR(check_dtype("mixer.A_log", m.A_log, DType::f32));
  if (m.dt_bias.empty()) return {};
  const bool kda = m.kind == MixerKind::kda;
  RINGFOLD_RETURN_IF_ERROR(layers ? check_view("mixer.dt_bias", m.dt_bias, {L, heads, keys})
                           : kda  ? check_view("mixer.dt_bias", m.dt_bias, {heads, keys})
                                  : check_view("mixer.dt_bias", m.dt_bias, {heads}));
  return check_dtype("mixer.dt_bias", m.dt_bias, DType::f32);
}

Status check_mixer(const Mixer& m, std::optional<int64_t> layers, int64_t HV, int64_t K) {
  RINGFOLD_RETURN_IF_ERROR(check_gate_views(m, layers, HV, K));
  if (!(m.softplus_beta > 0) || std::isinf(m.softplus_beta)) {
    return invalid("mixer.softplus_beta", "a finite number above 0", fmt::format("{}", m.softplus_beta));
  }
  if (!(m.softplus_threshold <= 80) || std::isinf(m.softplus_threshold)) {
    return invalid("mixer.softplus_threshold", "a finite number up to 80 (exp overflows at 88)",
                   fmt::format("{}", m.softplus_threshold));
  }
  if (m.lower_bound && m.kind != MixerKind::kda) {
    return invalid("mixer.lower_bound", "nothing for a GDN mixer (the safe gate is KDA's)",
                   fmt::format("{}", *m.lower_bound));
  }
  if (m.lower_bound && (!(*m.lower_bound < 0) || std::isinf(*m.lower_bound))) {
    return invalid("mixer.lower_bound", "a finite number below 0", fmt::format("{}", *m.lower_bound));
  }
  if (m.scale && !std::isfinite(*m.scale))
    return invalid("mixer.scale", "a finite number", fmt::format("{}", *m.scale));
  return {};
}

// `layered`: the views have a leading [layers].
void set_gate(const Mixer& m, bool layered, RecurrenceParams* p) {
  p->safe_gate = m.lower_bound.has_value();
  p->softplus_beta = m.softplus_beta;
  p->softplus_threshold = m.softplus_threshold;
  p->lower_bound = m.lower_bound.value_or(0);
  p->A_log = static_cast<const float*>(m.A_log.data);
  p->dt_bias = static_cast<const float*>(m.dt_bias.data);
  p->dt_bias_head_stride = m.dt_bias.empty() ? 0 : m.dt_bias.stride[layered ? 1 : 0];
  if (!layered) return;
  p->A_log_layer_stride = m.A_log.stride[0];
  p->dt_bias_layer_stride = m.dt_bias.empty() ? 0 : m.dt_bias.stride[0];
}

void set_mixer(const Mixer& m, int64_t K, RecurrenceParams* p) {
  set_gate(m, false, p);
  p->kind = m.kind;
  p->qk_l2norm = m.qk_l2norm;
  // K^-0.5 as the correctly rounded float of the correctly rounded double: the same on every machine and in every
  // environment.
  const FpGuard guard;
  p->scale = m.scale ? *m.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(K)));
}

Status check_state(const TensorView& state, bool layered, int64_t HV, int64_t V, int64_t K) {
  if (state.rank != (layered ? 5 : 4)) {
    return invalid("state", layered ? "[layers,slots,HV,V,K]" : "[slots,HV,V,K]", to_string(state));
  }
  RINGFOLD_RETURN_IF_ERROR(check_float("state", state));
  return layered ? check_view("state", state,
                              {{"layers", state.shape[0]}, {"slots", state.shape[1]}, {"HV", HV}, {"V", V}, {"K", K}})
                 : check_view("state", state, {{"slots", state.shape[0]}, {"HV", HV}, {"V", V}, {"K", K}});
}

void set_state(const TensorView& s, RecurrenceParams* p) {
  const int at = s.rank - 4;
  p->state = array(s, at ? s.stride[0] : 0, s.stride[at], 0, s.stride[at + 1]);
  p->state_v_stride = s.stride[at + 2];
}

struct RingShape {
  bool layered;
  int64_t layers, slots, H, HV, K, V;
  MixerKind kind;
  bool by_row;  ///< as many rings as the call has, in place of slots
};

Status check_ring(const Ring& ring, const RingShape& n) {
  if (ring.k.rank != (n.layered ? 5 : 4)) {
    return invalid("ring.k", n.layered ? "[layers,slots,rows,H,K]" : "[slots,rows,H,K]", to_string(ring.k));
  }
  const int at = n.layered ? 1 : 0;
  const int64_t rows = ring.k.shape[at + 1];
  const Dim rings = rings_of(n.by_row, ring.k.shape[at], n.slots);
  const auto check = [&](const char* name, const TensorView& v, Dim head, Dim inner, bool has_inner) {
    const Dim layers{"layers", n.layers}, r{"rows", rows};
    if (n.layered) {
      return has_inner ? check_view(name, v, {layers, rings, r, head, inner})
                       : check_view(name, v, {layers, rings, r, head}, Inner::free);
    }
    return has_inner ? check_view(name, v, {rings, r, head, inner})
                     : check_view(name, v, {rings, r, head}, Inner::free);
  };
  const Dim H{"H", n.H}, HV{"HV", n.HV}, K{"K", n.K}, V{"V", n.V};
  RINGFOLD_RETURN_IF_ERROR(check("ring.k", ring.k, H, K, true));
  RINGFOLD_RETURN_IF_ERROR(check("ring.v", ring.v, HV, V, true));
  if (ring.a.empty()) {
    RINGFOLD_RETURN_IF_ERROR(check("ring.g", ring.g, HV, K, n.kind == MixerKind::kda));
    RINGFOLD_RETURN_IF_ERROR(check_dtype("ring.g", ring.g, DType::f32));
  } else {
    if (n.kind != MixerKind::kda)
      return invalid("ring.a", "nothing for a GDN mixer (its ring keeps g)", to_string(ring.a));
    if (!ring.g.empty())
      return invalid("ring.g", "nothing beside ring.a (a ring keeps one of them)", to_string(ring.g));
    RINGFOLD_RETURN_IF_ERROR(check("ring.a", ring.a, HV, K, true));
    RINGFOLD_RETURN_IF_ERROR(check_float("ring.a", ring.a));
  }
  RINGFOLD_RETURN_IF_ERROR(check("ring.beta", ring.beta, HV, K, false));
  RINGFOLD_RETURN_IF_ERROR(check_dtype("ring.beta", ring.beta, DType::f32));
  RINGFOLD_RETURN_IF_ERROR(check_float("ring.k", ring.k));
  if (!ring.u.empty()) {
    RINGFOLD_RETURN_IF_ERROR(check("ring.u", ring.u, HV, V, true));
    RINGFOLD_RETURN_IF_ERROR(check_dtype("ring.u", ring.u, DType::f32));
  }
  return check_dtype("ring.v", ring.v, ring.k.dtype);
}

void set_ring(const Ring& ring, bool layered, RecurrenceParams* p) {
  const auto set = [&](const TensorView& v) {
    const int at = layered ? 1 : 0;
    return array(v, layered ? v.stride[0] : 0, v.stride[at], v.stride[at + 1], v.stride[at + 2]);
  };
  p->ring_k = set(ring.k);
  p->ring_v = set(ring.v);
  p->raw_gate = !ring.a.empty();
  p->ring_gate = set(p->raw_gate ? ring.a : ring.g);
  p->ring_beta = set(ring.beta);
  if (!ring.u.empty()) p->ring_u = set(ring.u);
}

Status check_ring_device(const TensorView& state, const Ring& ring) {
  return check_device({{"state", state},
                       {"ring.k", ring.k},
                       {"ring.v", ring.v},
                       {"ring.g", ring.g},
                       {"ring.beta", ring.beta},
                       {"ring.u", ring.u},
                       {"ring.a", ring.a}});
}

int64_t widest_stride(const RecurrenceParams& p) {
  int64_t widest = 0;
  for (const Array* a :
       {&p.q, &p.k, &p.v, &p.a, &p.b, &p.out, &p.ring_k, &p.ring_v, &p.ring_gate, &p.ring_beta, &p.ring_u, &p.state}) {
    if (!*a) continue;
    const auto size = static_cast<int64_t>(size_of(a->dtype));
    widest = std::max({widest, std::abs(a->head_stride) * size, std::abs(a->token_stride) * size});
  }
  return widest;
}

// The cursors of a history, `layered` as the state is. `ring` was checked.
Status check_history(const History& h, const Ring& ring, const TensorView& state, const TensorView& pending) {
  if (!ring.u.empty() && h.policy != FoldPolicy::lazy) {
    return invalid("ring.u", "nothing but with fold policy lazy", to_string(ring.u));
  }
  if (h.policy == FoldPolicy::on_commit) {
    if (h.base.empty() && h.live.empty() && h.cuts.empty()) return {};
    return invalid("history", "no cursors with fold policy on_commit", "some");
  }
  const bool layered = state.rank == 5;
  const auto check = [&](const char* name, const TensorView& v) {
    const Dim layers{"layers", state.shape[0]}, slots{"slots", state.shape[layered ? 1 : 0]};
    RINGFOLD_RETURN_IF_ERROR(layered ? check_view(name, v, {layers, slots}, Inner::free)
                                     : check_view(name, v, {slots}, Inner::free));
    return check_dtype(name, v, DType::i32);
  };
  RINGFOLD_RETURN_IF_ERROR(check("history.base", h.base));
  RINGFOLD_RETURN_IF_ERROR(check("history.live", h.live));
  RINGFOLD_RETURN_IF_ERROR(check("history.cuts", h.cuts));
  RINGFOLD_RETURN_IF_ERROR(
      check_device({{"state", state}, {"history.base", h.base}, {"history.live", h.live}, {"history.cuts", h.cuts}}));
  if (pending.empty()) return invalid("pending", "the cursors that go with a history", "nothing");
  const int64_t rows = ring.k.shape[layered ? 2 : 1];
  if (rows > kMaxWindow) return invalid("ring.k", fmt::format("at most {} rows", kMaxWindow), fmt::format("{}", rows));
  if (h.max_window < 0 || h.max_window >= rows) {
    return invalid("history.max_window", fmt::format("at most {}, one less than the ring has rows", rows - 1),
                   fmt::format("{}", h.max_window));
  }
  return {};
}

void set_history(const History& h, const Ring& ring, RecurrenceParams* p, Desc* desc) {
  desc->fold_policy = h.policy;
  desc->ring_u = !ring.u.empty();
  if (!ring.a.empty()) desc->ring_a = ring.a.dtype;
  if (h.policy == FoldPolicy::on_commit) return;
  p->history = {.base = cursors(h.base),
                .live = cursors(h.live),
                .cuts = cursors(h.cuts),
                .policy = h.policy,
                .ring_rows = static_cast<int>(ring.k.shape[ring.k.rank - 3]),
                .max_window = static_cast<int>(h.max_window),
                .by_commit = !ring.u.empty()};
  desc->history_rows = p->history.ring_rows;
}

// A history is a part of its slot that lies in the ring: no other slot may have that ring.
Status check_ring_ids_policy(const char* name, const TensorView& ids, const History& h) {
  if (ids.empty() || h.policy == FoldPolicy::on_commit) return {};
  return invalid(name, fmt::format("nothing with fold policy {} (its rings are keyed by slot)", to_string(h.policy)),
                 to_string(ids));
}

// What verify and decode share.
template <class Args>
Status lower_window(Op op, const Args& args, RecurrenceParams* p, Desc* desc) {
  const Mixer& mixer = args.mixer;
  const Window& w = args.window;
  const TensorView &state = args.state, &out = args.out, &pending = args.pending, &row_status = args.row_status;
  const bool ragged = !w.cu_seqlens.empty();
  const int lead = ragged ? 1 : 2;  // leading dimensions of the window's tensors
  const char* shape = ragged ? "[tokens,HV,V]" : "[B,T,HV,V]";
  if (w.v.rank != lead + 2) return invalid("window.v", shape, to_string(w.v));
  if (w.q.rank != lead + 2) return invalid("window.q", ragged ? "[tokens,H,K]" : "[B,T,H,K]", to_string(w.q));
  RINGFOLD_RETURN_IF_ERROR(check_float("window.v", w.v));
  RINGFOLD_RETURN_IF_ERROR(check_dtype("window.q", w.q, w.v.dtype));
  RINGFOLD_RETURN_IF_ERROR(check_dtype("window.k", w.k, w.v.dtype));
  RINGFOLD_RETURN_IF_ERROR(check_float("window.a", w.a));
  RINGFOLD_RETURN_IF_ERROR(check_float("window.b", w.b));
  const int64_t H = w.q.shape[lead], K = w.q.shape[lead + 1], HV = w.v.shape[lead], V = w.v.shape[lead + 1];
  RINGFOLD_RETURN_IF_ERROR(check_heads(H, HV, K, V));
  if (w.slot_ids.rank != 1) return invalid("window.slot_ids", "[B]", to_string(w.slot_ids));
  const int64_t B = w.slot_ids.shape[0];
  const int64_t T = ragged ? 0 : w.v.shape[1];
  const int64_t tokens = ragged ? w.v.shape[0] : B * T;
  if (!ragged && w.v.shape[0] != B)
    return invalid("window.v", fmt::format("B={} rows, as slot_ids has", B), to_string(w.v));
  if (w.max_window < 0 || w.max_window > kMaxWindow) {
    return invalid("window.max_window", fmt::format("0 .. {}", kMaxWindow), fmt::format("{}", w.max_window));
  }
  if (T > kMaxWindow) return invalid("window.v", fmt::format("T <= {}", kMaxWindow), fmt::format("T = {}", T));
  const bool kda = mixer.kind == MixerKind::kda;
  const auto check = [&](const char* name, const TensorView& v, Dim head, Dim inner, bool has_inner) {
    const Dim b{"B", B}, t{"T", T}, n{"tokens", tokens};
    if (ragged) return has_inner ? check_view(name, v, {n, head, inner}) : check_view(name, v, {n, head}, Inner::free);
    return has_inner ? check_view(name, v, {b, t, head, inner}) : check_view(name, v, {b, t, head}, Inner::free);
  };
  RINGFOLD_RETURN_IF_ERROR(check("window.q", w.q, {"H", H}, {"K", K}, true));
  RINGFOLD_RETURN_IF_ERROR(check("window.k", w.k, {"H", H}, {"K", K}, true));
  RINGFOLD_RETURN_IF_ERROR(check("window.v", w.v, {"HV", HV}, {"V", V}, true));
  RINGFOLD_RETURN_IF_ERROR(check("window.a", w.a, {"HV", HV}, {"K", K}, kda));
  RINGFOLD_RETURN_IF_ERROR(check("window.b", w.b, {"HV", HV}, {"K", K}, false));
  RINGFOLD_RETURN_IF_ERROR(check("out", out, {"HV", HV}, {"V", V}, true));
  if (is_layer(op)) {
    RINGFOLD_RETURN_IF_ERROR(check_float("out", out));
  } else if (out.dtype != w.v.dtype && out.dtype != DType::f32) {
    return invalid("out", fmt::format("dtype {} (that of v) or f32", to_string(w.v.dtype)), to_string(out.dtype));
  }
  RINGFOLD_RETURN_IF_ERROR(check_ints("window.slot_ids", w.slot_ids, "B", B));
  if (ragged) RINGFOLD_RETURN_IF_ERROR(check_ints("window.cu_seqlens", w.cu_seqlens, "B+1", B + 1));
  if (!row_status.empty()) RINGFOLD_RETURN_IF_ERROR(check_ints("row_status", row_status, "B", B));
  RINGFOLD_RETURN_IF_ERROR(check_mixer(mixer, std::nullopt, HV, K));
  RINGFOLD_RETURN_IF_ERROR(check_state(state, false, HV, V, K));
  if (!pending.empty()) RINGFOLD_RETURN_IF_ERROR(check_ints("pending", pending, "slots", state.shape[0]));
  RINGFOLD_RETURN_IF_ERROR(check_device({{"state", state},
                                         {"window.q", w.q},
                                         {"window.k", w.k},
                                         {"window.v", w.v},
                                         {"window.a", w.a},
                                         {"window.b", w.b},
                                         {"window.slot_ids", w.slot_ids},
                                         {"window.cu_seqlens", w.cu_seqlens},
                                         {"mixer.A_log", mixer.A_log},
                                         {"mixer.dt_bias", mixer.dt_bias},
                                         {"out", out},
                                         {"pending", pending},
                                         {"row_status", row_status}}));

  p->rows = B;
  p->slots = state.shape[0];
  p->total_tokens = tokens;
  p->longest = ragged && w.max_window > 0 ? w.max_window : kMaxWindow;
  p->stream = args.stream;
  p->H = static_cast<int>(H), p->HV = static_cast<int>(HV), p->K = static_cast<int>(K), p->V = static_cast<int>(V);
  p->window = static_cast<int>(T);
  p->max_window = ragged ? static_cast<int>(std::min<int64_t>(tokens, p->longest)) : static_cast<int>(T);
  set_mixer(mixer, K, p);
  p->q = window_array(w.q, ragged);
  p->k = window_array(w.k, ragged);
  p->v = window_array(w.v, ragged);
  p->a = kda ? window_array(w.a, ragged) : scalar_array(w.a, ragged);
  p->b = scalar_array(w.b, ragged);
  p->out = window_array(out, ragged);
  set_state(state, p);
  p->rounding = args.state_rounding;
  p->slot_ids = ints(w.slot_ids);
  p->cu_seqlens = ints(w.cu_seqlens);
  p->pending = cursors(pending);
  p->row_status = ints(row_status);

  *desc = {};
  desc->op = op;
  desc->kind = mixer.kind;
  desc->device = state.device;
  desc->numerics = args.numerics;
  desc->state_rounding = args.state_rounding;
  desc->state_dtype = state.dtype;
  desc->packed_rows = p->state_v_stride == K;
  desc->state_alignment = alignment({p->state}, p->state_v_stride);
  desc->input_alignment = alignment({p->q, p->k, p->v});
  desc->act_dtype = w.v.dtype;
  desc->H = H, desc->HV = HV, desc->K = K, desc->V = V;
  desc->rows = B;
  desc->window = p->max_window;
  return {};
}

}  // namespace

int64_t alignment(std::initializer_list<Array> arrays, int64_t v_stride) {
  int64_t all = 16;
  for (const Array& a : arrays) {
    all |= static_cast<int64_t>(reinterpret_cast<uintptr_t>(a.data)) |
           static_cast<int64_t>(size_of(a.dtype)) *
               (a.layer_stride | a.row_stride | a.token_stride | a.head_stride | v_stride);
  }
  return all & -all;
}

Status check_heads(int64_t H, int64_t HV, int64_t K, int64_t V) {
  if (H < 1) return invalid("H", "at least 1 key head", fmt::format("{}", H));
  if (HV < 1 || HV % H != 0) return invalid("HV", fmt::format("a multiple of H = {}", H), fmt::format("{}", HV));
  if (K < 1 || K > kMaxHeadDim) return invalid("K", fmt::format("1 .. {}", kMaxHeadDim), fmt::format("{}", K));
  if (V < 1 || V > kMaxHeadDim) return invalid("V", fmt::format("1 .. {}", kMaxHeadDim), fmt::format("{}", V));
  return {};
}

Status lower(const VerifyArgs& args, RecurrenceParams* p, Desc* desc) {
  return lower_verify(Op::verify, args, p, desc);
}

Status lower(const DecodeArgs& args, RecurrenceParams* p, Desc* desc) {
  return lower_decode(Op::decode, args, p, desc);
}

Status lower_verify(Op op, const VerifyArgs& args, RecurrenceParams* p, Desc* desc) {
  const Window& w = args.window;
  RINGFOLD_RETURN_IF_ERROR(lower_window(op, args, p, desc));
  const int64_t slots = args.state.shape[0];
  if (!args.ring.empty()) {
    RINGFOLD_RETURN_IF_ERROR(check_ring_ids_policy("window.ring_ids", w.ring_ids, args.history));
    const bool by_row = !w.ring_ids.empty();
    RINGFOLD_RETURN_IF_ERROR(
        check_ring(args.ring, {false, 1, slots, p->H, p->HV, p->K, p->V, args.mixer.kind, by_row}));
    RINGFOLD_RETURN_IF_ERROR(
        lower_ring_ids({"window.ring_ids", w.ring_ids, args.owners, args.pending, args.ring.k, slots}, p->rows, p));
    RINGFOLD_RETURN_IF_ERROR(check_dtype("ring.k", args.ring.k, w.v.dtype));
    if (!args.ring.a.empty()) RINGFOLD_RETURN_IF_ERROR(check_dtype("ring.a", args.ring.a, w.a.dtype));
    if (p->window > args.ring.k.shape[1]) {
      return invalid("window.v", fmt::format("T <= the ring's {} rows", args.ring.k.shape[1]),
                     fmt::format("T = {}", p->window));
    }
    RINGFOLD_RETURN_IF_ERROR(check_ring_device(args.state, args.ring));
    set_ring(args.ring, false, p);
    p->longest = std::min<int64_t>(p->longest, args.ring.k.shape[1]);
    p->max_window = static_cast<int>(std::min<int64_t>(p->max_window, p->longest));
    desc->window = p->max_window;
    desc->input_alignment = std::min(desc->input_alignment, alignment({p->ring_k, p->ring_v, p->ring_u}));
    if (!args.ring.u.empty() && args.mixer.kind == MixerKind::kda)  // a history's gates are read like its keys
      desc->input_alignment = std::min(desc->input_alignment, alignment({p->ring_gate}));
    p->move = CursorMove::record;
  }
  if (args.ring.empty() && args.history.policy != FoldPolicy::on_commit) {
    return invalid("ring.k", fmt::format("a ring, for fold policy {}", to_string(args.history.policy)), "nothing");
  }
  RINGFOLD_RETURN_IF_ERROR(check_history(args.history, args.ring, args.state, args.pending));
  set_history(args.history, args.ring, p, desc);
  if (p->history) {
    const int64_t longest = args.history.max_window;
    if (longest < 1) return invalid("history.max_window", "at least 1", fmt::format("{}", longest));
    if (p->window > longest) {
      return invalid("window.v", fmt::format("T <= {}, the history's max_window", longest),
                     fmt::format("T = {}", p->window));
    }
    p->longest = std::min<int64_t>(p->longest, longest);
    p->max_window = static_cast<int>(std::min<int64_t>(p->max_window, longest));
    desc->window = p->max_window;
  }
  if (!args.snapshots.empty()) {
    const TensorView& s = args.snapshots;
    const Dim HV{"HV", p->HV}, V{"V", p->V}, K{"K", p->K};
    const bool ragged = !w.cu_seqlens.empty();
    RINGFOLD_RETURN_IF_ERROR(ragged ? check_view("snapshots", s, {{"tokens", w.v.shape[0]}, HV, V, K})
                                    : check_view("snapshots", s, {{"B", p->rows}, {"T", p->window}, HV, V, K}));
    RINGFOLD_RETURN_IF_ERROR(check_dtype("snapshots", s, args.state.dtype));
    RINGFOLD_RETURN_IF_ERROR(check_device({{"state", args.state}, {"snapshots", s}}));
    p->snapshots = window_array(s, ragged);
    desc->snapshots = true;
    p->snapshot_v_stride = s.stride[s.rank - 2];
    desc->packed_rows = desc->packed_rows && p->snapshot_v_stride == K.size;
    desc->state_alignment = std::min(desc->state_alignment, alignment({p->snapshots}, p->snapshot_v_stride));
  }
  desc->widest_stride = widest_stride(*p);
  return {};
}

Status lower_decode(Op op, const DecodeArgs& args, RecurrenceParams* p, Desc* desc) {
  RINGFOLD_RETURN_IF_ERROR(lower_window(op, args, p, desc));
  if (args.history.policy != FoldPolicy::on_commit) {
    const int64_t slots = args.state.shape[0];
    RINGFOLD_RETURN_IF_ERROR(check_ring(args.ring, {false, 1, slots, p->H, p->HV, p->K, p->V, args.mixer.kind, false}));
    RINGFOLD_RETURN_IF_ERROR(check_dtype("ring.k", args.ring.k, args.window.v.dtype));
    RINGFOLD_RETURN_IF_ERROR(check_ring_device(args.state, args.ring));
    set_ring(args.ring, false, p);
    desc->input_alignment = std::min(desc->input_alignment, alignment({p->ring_k, p->ring_v}));
  }
  RINGFOLD_RETURN_IF_ERROR(check_history(args.history, args.ring, args.state, args.pending));
  set_history(args.history, args.ring, p, desc);
  p->write_state = true;
  p->move = CursorMove::consume;
  desc->widest_stride = widest_stride(*p);
  return {};
}

Status lower(const FoldArgs& args, RecurrenceParams* p, Desc* desc) {
  const bool layered = args.state.rank == 5;
  const int at = layered ? 1 : 0;
  if (args.state.rank != 4 && !layered) {
    return invalid("state", "[slots,HV,V,K] or [layers,slots,HV,V,K]", to_string(args.state));
  }
  const int64_t layers = layered ? args.state.shape[0] : 1, slots = args.state.shape[at];
  const int64_t HV = args.state.shape[at + 1], V = args.state.shape[at + 2], K = args.state.shape[at + 3];
  if (args.ring.k.rank != at + 4) {
    return invalid("ring.k", layered ? "[layers,slots,rows,H,K]" : "[slots,rows,H,K]", to_string(args.ring.k));
  }
  const int64_t H = args.ring.k.shape[at + 2];
  RINGFOLD_RETURN_IF_ERROR(check_heads(H, HV, K, V));
  RINGFOLD_RETURN_IF_ERROR(check_state(args.state, layered, HV, V, K));
  const bool raw = !args.ring.a.empty();
  const MixerKind kind = raw || args.ring.g.rank == at + 4 ? MixerKind::kda : MixerKind::gdn;
  RINGFOLD_RETURN_IF_ERROR(check_ring_ids_policy("ring_ids", args.ring_ids, args.history));
  RINGFOLD_RETURN_IF_ERROR(check_ring(args.ring, {layered, layers, slots, H, HV, K, V, kind, !args.ring_ids.empty()}));
  RINGFOLD_RETURN_IF_ERROR(check_ring_device(args.state, args.ring));
  if (raw) {
    if (args.mixer.kind != MixerKind::kda) return invalid("mixer.kind", "kda, with ring.a", to_string(args.mixer.kind));
    RINGFOLD_RETURN_IF_ERROR(check_mixer(args.mixer, layered ? std::optional(layers) : std::nullopt, HV, K));
    RINGFOLD_RETURN_IF_ERROR(check_device(
        {{"state", args.state}, {"mixer.A_log", args.mixer.A_log}, {"mixer.dt_bias", args.mixer.dt_bias}}));
    set_gate(args.mixer, layered, p);
  }
  RINGFOLD_RETURN_IF_ERROR(lower_accepted(args, "state", args.state, p));
  if (!args.pending.empty()) {
    RINGFOLD_RETURN_IF_ERROR(
        layered ? check_view("pending", args.pending, {{"layers", layers}, {"slots", slots}}, Inner::free)
                : check_view("pending", args.pending, {{"slots", slots}}, Inner::free));
    RINGFOLD_RETURN_IF_ERROR(check_dtype("pending", args.pending, DType::i32));
    RINGFOLD_RETURN_IF_ERROR(check_device({{"state", args.state}, {"pending", args.pending}}));
  }
  RINGFOLD_RETURN_IF_ERROR(lower_ring_ids(
      {"ring_ids", args.ring_ids, args.owners, args.pending, args.ring.k, slots, layered ? &layers : nullptr}, p->rows,
      p));
  RINGFOLD_RETURN_IF_ERROR(check_history(args.history, args.ring, args.state, args.pending));
  for (const int32_t l : args.layers) {
    if (l < 0 || l >= layers) return invalid("layers", fmt::format("0 .. {}", layers - 1), fmt::format("{}", l));
  }
  int64_t repeated = -1;
  for_each_duplicate(
      static_cast<int64_t>(args.layers.size()), layers, [&](int64_t i) -> int64_t { return args.layers[i]; },
      [&](int64_t i) { repeated = args.layers[i]; });
  if (repeated >= 0) return invalid("layers", "no layer twice", fmt::format("layer {} twice", repeated));

  p->slots = slots;
  p->layers = args.layers.empty() ? layers : static_cast<int64_t>(args.layers.size());
  p->layer_list = args.layers.empty() ? nullptr : args.layers.data();
  p->H = static_cast<int>(H), p->HV = static_cast<int>(HV), p->K = static_cast<int>(K), p->V = static_cast<int>(V);
  p->max_window = static_cast<int>(args.ring.k.shape[at + 1]);
  p->longest = p->max_window;
  p->kind = kind;
  p->qk_l2norm = args.qk_l2norm;
  p->from_ring = true;
  p->write_state = true;
  set_ring(args.ring, layered, p);
  set_state(args.state, p);
  p->rounding = args.state_rounding;
  p->pending = cursors(args.pending);

  *desc = {};
  desc->op = Op::fold;
  desc->device = args.state.device;
  desc->packed_rows = p->state_v_stride == K;
  desc->state_alignment = alignment({p->state}, p->state_v_stride);
  desc->input_alignment = alignment({p->ring_k, p->ring_v});
  desc->kind = kind;
  desc->state_rounding = args.state_rounding;
  desc->state_dtype = args.state.dtype;
  desc->act_dtype = args.ring.k.dtype;
  desc->H = H, desc->HV = HV, desc->K = K, desc->V = V;
  desc->rows = p->rows;
  desc->window = p->max_window;
  desc->layers = p->layers;
  set_history(args.history, args.ring, p, desc);
  if (p->max_window > kMaxWindow) {
    return invalid("ring.k", fmt::format("at most {} rows", kMaxWindow), fmt::format("{}", p->max_window));
  }
  desc->widest_stride = widest_stride(*p);
  return {};
}

}  // namespace ringfold::detail
