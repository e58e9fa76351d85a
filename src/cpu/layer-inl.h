// verify_layer, decode_layer: conv, recurrence and gated norm of a key head and its value heads in one task.
//
// A task convolves the channels of its heads into a small buffer in the activation dtype, runs the recurrence of
// recurrence-inl.h on that, and norms what comes out. Nothing but the results reaches memory that others see, save
// where there are fewer heads than threads and V is cut: then the last part of a key head to be done norms for all.
#if defined(RINGFOLD_CPU_LAYER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RINGFOLD_CPU_LAYER_INL_H_
#undef RINGFOLD_CPU_LAYER_INL_H_
#else
#define RINGFOLD_CPU_LAYER_INL_H_
#endif

#include <atomic>

#include "core/layer.h"
#include "cpu/conv-inl.h"
#include "cpu/recurrence-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ringfold::cpu {
namespace HWY_NAMESPACE {

using detail::Array;
using detail::LayerParams;

/// What one thread needs.
struct LayerScratch {
  Tokens tokens;
  alignas(64) float norm_weight[kMaxHeadDim];
  // The conv's outputs, in the activation dtype, token after token: q and k of each key head, then v of each value
  // head. The mixer's outputs take the place of v, which is read before they come.
  alignas(64) std::byte buffer[kLayerBuffer + 64];  // v begins at a multiple of 64
};

/// What the tasks of one key head share where there are several.
struct LayerShared {
  std::atomic<int> tasks_left[kMostSharedKeys];
  alignas(64) float mixer_out[kMostSharedFloats];  ///< [row, head, token, V] in the dtype of norm.x
};

/// Key heads h .. h+keys-1 of a row, and of each the value heads first .. first+heads-1, rows v0 .. v1-1 of V. Where a
/// task is not all of its key heads, it has one key head.
struct LayerTask {
  int64_t row;
  int h, keys, first, heads, v0, v1;

  bool records_key() const { return first == 0 && v0 == 0; }  ///< one task does for q and k what is to be done once
};

/// Runs one task: phases over all of its heads, so that each finds what it works on in the nearest cache.
class LayerRun {
 public:
  /// `shared`: null where tasks are all of their key heads.
  LayerRun(const LayerParams& p, const LayerTask& task, LayerScratch* own, LayerShared* shared)
      : p_(p),
        task_(task),
        own_(*own),
        shared_(shared),
        slot_(p.slot_ids[task.row]),
        ring_(p.ring_of(task.row)),
        tokens_(p.tokens(task.row)),
        act_size_(static_cast<int64_t>(size_of(p.v.dtype))),
        key_bytes_(tokens_ * p.K * act_size_),
        value_bytes_(tokens_ * p.V * 4),
        replay_(detail::replay_of(p, 0, task.row)),
        v_whole_(task.v1 - task.v0 == p.V) {}

  HWY_INLINE void Run() {
    if (!detail::is_idle(p_, replay_, 0, task_.row)) {
      for (int key = 0; key < task_.keys; ++key) ConvolveKey(key);
      // All value heads at once where they fit; that they do not happens with one key head only.
      const int batch = layer_batch(tokens_, p_.K, p_.V, task_.keys, task_.heads, act_size_);
      for (int at = task_.first; at < task_.first + task_.heads; at += batch) {
        const int heads = HWY_MIN(batch, task_.first + task_.heads - at);
        for (int key = 0; key < task_.keys; ++key) ConvolveValues(key, at, heads);
        for (int key = 0; key < task_.keys; ++key) Mix(key, at, heads, at == task_.first);
        if (v_whole_) Norm(at, heads);
      }
    }
    Finish();
  }

 private:
  std::byte* Q(int key) { return own_.buffer + 2 * key * key_bytes_; }
  std::byte* K(int key) { return Q(key) + key_bytes_; }
  std::byte* V(int key, int i, int heads) {
    return own_.buffer + (2 * task_.keys * key_bytes_ + 63) / 64 * 64 + (key * heads + i) * value_bytes_;
  }

  /// Channels first .. first+n-1 of the conv, whose inputs lie at `from`.
  detail::ConvPiece Piece(const Array& from, int64_t head, int v0, int64_t first, int n, std::byte* to, int dim) const {
    const std::byte* x = from.at(0, p_.window_row(task_.row), p_.window_token(task_.row), head);
    return {.slot = slot_,
            .ring = ring_,
            .tokens = tokens_,
            .first = first + v0,
            .n = n,
            .x = x + v0 * act_size_,
            .x_step = from.token_stride * act_size_,
            .out = to + v0 * act_size_,
            .out_step = dim * act_size_};
  }
  detail::ConvPiece QPiece(int key) {
    return Piece(p_.q, task_.h + key, 0, detail::q_channel(p_, task_.h + key), p_.K, Q(key), p_.K);
  }
  detail::ConvPiece KPiece(int key) {
    return Piece(p_.k, task_.h + key, 0, detail::k_channel(p_, task_.h + key), p_.K, K(key), p_.K);
  }

  HWY_INLINE void ConvolveKey(int key) {
    ConvChannels(p_.conv, QPiece(key), task_.records_key());
    ConvChannels(p_.conv, KPiece(key), task_.records_key());
  }

  HWY_INLINE void ConvolveValues(int key, int at, int heads) {
    for (int i = 0; i < heads; ++i) {
      const int hv = Head(key, at + i);
      const detail::ConvPiece piece =
          Piece(p_.v, hv, task_.v0, detail::v_channel(p_, hv), task_.v1 - task_.v0, V(key, i, heads), p_.V);
      ConvChannels(p_.conv, piece, true);
      if (p_.conv.write_state) detail::advance_conv_window(p_.conv, piece);
    }
  }

  /// The recurrence of value heads at .. at+heads-1 of a key head.
  HWY_INLINE void Mix(int key, int at, int heads, bool new_key) {
    RecurrenceParams one = detail::key_head_of(p_, task_.row, task_.h + key);
    one.q = {.data = Q(key), .dtype = p_.q.dtype, .token_stride = p_.K};
    one.k = {.data = K(key), .dtype = p_.k.dtype, .token_stride = p_.K};
    if (new_key) own_.tokens.Reset(p_.K, p_.V);
    // Behind the last value head of this key head come those of the next, then the next row's slot.
    const int64_t next_row = task_.row + 1 < p_.rows && p_.live(task_.row + 1) ? p_.slot_ids[task_.row + 1] : -1;
    const std::byte* next = task_.h + key + 1 < p_.H ? p_.state.at(0, slot_, 0, Head(key + 1, 0))
                            : next_row >= 0          ? p_.state.at(0, next_row, 0, 0)
                                                     : nullptr;
    for (int i = 0; i < heads; ++i) {
      one.v = {
          .data = V(key, i, heads), .dtype = p_.v.dtype, .token_stride = p_.V};  // head stride 0: whatever the head
      one.out = MixerOut(key, at + i, V(key, i, heads));
      RunHead(one, {0, 0, slot_, ring_, 0, at + i, task_.v0, task_.v1, replay_}, &own_.tokens, next);
    }
  }

  /// Mixer outputs [token, V]: in a place of the task's own, or, where V is cut, in what the tasks share.
  HWY_INLINE Array MixerOut(int key, int i, std::byte* own) {
    const DType dtype = p_.norm.x.dtype;
    const int64_t before = (task_.row * p_.HV + Head(key, i)) * p_.max_window * p_.V;
    std::byte* data =
        v_whole_ ? own
                 : reinterpret_cast<std::byte*>(shared_->mixer_out) + before * static_cast<int64_t>(size_of(dtype));
    return {.data = data, .dtype = dtype, .token_stride = p_.V};
  }

  /// Value heads at .. at+heads-1 of all key heads, token by token, as z and out lie in memory.
  HWY_INLINE void Norm(int at, int heads) {
    const int64_t row = p_.window_row(task_.row), token = p_.window_token(task_.row);
    for (int64_t t = 0; t < tokens_; ++t) {
      for (int n = 0; n < task_.keys * heads; ++n) {
        const int key = n / heads, i = n % heads, hv = Head(key, at + i);
        NormHead(p_.norm, own_.norm_weight, MixerOut(key, at + i, V(key, i, heads)).at(0, 0, t, 0),
                 p_.norm.z.at(0, row, token + t, hv), p_.out.at(0, row, token + t, hv));
      }
    }
  }

  /// What waits for all tasks of a key head: the norm where V is cut, and, since all of them read the conv windows of q
  /// and k, moving those. The counter orders it behind what the others did.
  HWY_INLINE void Finish() {
    if (shared_) {
      std::atomic<int>& left = shared_->tasks_left[task_.row * p_.H + task_.h];
      if (left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    }
    if (!v_whole_) Norm(0, p_.HV / p_.H);
    for (int key = 0; p_.conv.write_state && key < task_.keys; ++key) {
      detail::advance_conv_window(p_.conv, QPiece(key));
      detail::advance_conv_window(p_.conv, KPiece(key));
    }
  }

  /// Value head i of a key head of the task, among all.
  int Head(int key, int i) const { return (task_.h + key) * (p_.HV / p_.H) + i; }

  const LayerParams& p_;
  const LayerTask& task_;
  LayerScratch& own_;
  LayerShared* shared_;
  int64_t slot_, ring_, tokens_, act_size_;
  int64_t key_bytes_, value_bytes_;  ///< of a head in the buffer
  detail::Replay replay_;
  bool v_whole_;
};

static HWY_NOINLINE HWY_MAYBE_UNUSED void RunLayerTask(const LayerParams& p, const LayerTask& task, LayerScratch* own,
                                                       LayerShared* shared) {
  if (p.live(task.row)) return LayerRun(p, task, own, shared).Run();
  for (int key = 0; key < task.keys; ++key) {
    const int hv = (task.h + key) * (p.HV / p.H) + task.first;
    for (int i = 0; i < task.heads; ++i) ZeroOutputs(p, task.row, hv + i, task.v0, task.v1);
  }
}

static HWY_NOINLINE HWY_MAYBE_UNUSED void RunLayer(const LayerParams& p, const LayerCut& cut, LayerShared* shared) {
  const int64_t blocks = (p.H + cut.keys - 1) / cut.keys;  // of key heads of a row
  const int64_t tasks = p.rows * blocks * cut.tasks_per_key;
  detail::parallel_chunks(tasks, chunk_size(tasks, detail::thread_count(p.threads)), p.threads,
                          [&](int64_t begin, int64_t end) HWY_ATTR {
                            LayerScratch own;
                            for (float& w : own.norm_weight) w = 0.0f;
                            LoadRow(p.norm.weight_dtype, p.norm.weight, p.V, own.norm_weight);
                            for (int64_t i = begin; i < end; ++i) {
                              const int64_t block = i / cut.tasks_per_key;
                              const int piece = static_cast<int>(i % cut.tasks_per_key), part = piece % cut.v_parts;
                              const int h = static_cast<int>(block % blocks) * cut.keys;
                              const LayerTask task = {.row = block / blocks,
                                                      .h = h,
                                                      .keys = HWY_MIN(cut.keys, p.H - h),
                                                      .first = piece / cut.v_parts * cut.heads,
                                                      .heads = cut.heads,
                                                      .v0 = v_part_begin(p.V, cut.v_parts, part),
                                                      .v1 = v_part_begin(p.V, cut.v_parts, part + 1)};
                              RunLayerTask(p, task, &own, shared);
                            }
                          });
}

static HWY_NOINLINE HWY_MAYBE_UNUSED void RunLayerShared(const LayerParams& p, const LayerCut& cut) {
  LayerShared shared;
  for (int64_t key = 0; key < p.rows * p.H; ++key)
    shared.tasks_left[key].store(cut.tasks_per_key, std::memory_order_relaxed);
  RunLayer(p, cut, &shared);
}

static HWY_MAYBE_UNUSED Status Layer(const LayerParams& p, const Desc&) {
  const LayerCut cut = layer_cut(p, size_of(p.v.dtype), detail::thread_count(p.threads));
  if (cut.tasks_per_key == 1) {
    RunLayer(p, cut, nullptr);
  } else {
    RunLayerShared(p, cut);
  }
  return {};
}

}  // namespace HWY_NAMESPACE
}  // namespace ringfold::cpu
HWY_AFTER_NAMESPACE();

#endif
