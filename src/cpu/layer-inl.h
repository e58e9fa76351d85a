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
  // The conv's outputs, token after token, in the activation dtype: q and k of the key head, v of one value head. The
  // mixer's outputs take the place of v, which is read before they come.
  alignas(64) std::byte q[kMaxWindow * kMaxHeadDim * 4], k[kMaxWindow * kMaxHeadDim * 4],
      v[kMaxWindow * kMaxHeadDim * 4];
};

/// What the tasks of one key head share where there are several.
struct LayerShared {
  std::atomic<int> tasks_left[kMostSharedKeys];
  alignas(64) float mixer_out[kMostSharedFloats];  ///< [row, head, token, V] in the dtype of norm.x
};

/// Part of a key head of a row: value heads first .. first+heads-1 of it, rows v0 .. v1-1 of V.
struct LayerTask {
  int64_t row;
  int h, first, heads, v0, v1;

  bool records_key() const { return first == 0 && v0 == 0; }  ///< one task does for q and k what is to be done once
};

/// Mixer outputs [token, V] of value head hv, in a task's own buffer or in what the tasks share.
HWY_INLINE Array MixerOut(const LayerParams& p, int64_t row, int hv, LayerScratch* own, LayerShared* shared) {
  const auto size = static_cast<int64_t>(size_of(p.norm.x.dtype));
  std::byte* data =
      shared ? reinterpret_cast<std::byte*>(shared->mixer_out) + ((row * p.HV + hv) * p.max_window * p.V) * size
             : own->v;
  return {.data = data, .dtype = p.norm.x.dtype, .token_stride = p.V};
}

HWY_INLINE void NormTokens(const LayerParams& p, int64_t row, int hv, const float* weight, const Array& x) {
  const int64_t window_row = p.window_row(row), token = p.window_token(row);
  for (int64_t t = 0; t < p.tokens(row); ++t) {
    NormHead(p.norm, weight, x.at(0, 0, t, 0), p.norm.z.at(0, window_row, token + t, hv),
             p.out.at(0, window_row, token + t, hv));
  }
}

/// The conv of one head of q, k or v (channels from `first` on, rows v0 .. v0+n-1 of it), whose inputs `from` has at
/// its beginning, to buffer[token, dim].
HWY_INLINE void ConvHead(const LayerParams& p, const RecurrenceParams& one, Array from, int64_t first, int v0, int n,
                         int dim, bool once, std::byte* buffer) {
  const auto size = static_cast<int64_t>(size_of(from.dtype));
  from.data += v0 * size;
  const ConvPiece piece = detail::piece_of(one, from, first + v0, n, buffer + v0 * size, dim * size);
  ConvChannels(p.conv, piece, once);
}

/// decode_layer: the conv windows of q and k of a key head.
HWY_INLINE void AdvanceKeyWindows(const LayerParams& p, const RecurrenceParams& one, int h) {
  detail::advance_conv_window(p.conv, detail::piece_of(one, one.q, detail::q_channel(p, h), p.K, nullptr, 0));
  detail::advance_conv_window(p.conv, detail::piece_of(one, one.k, detail::k_channel(p, h), p.K, nullptr, 0));
}

/// `shared`: null where the task is all of its key head, and where V is whole nothing but a counter.
static HWY_NOINLINE HWY_MAYBE_UNUSED void RunLayerTask(const LayerParams& p, const LayerTask& task, LayerScratch* own,
                                                       LayerShared* shared) {
  const RecurrenceParams one = detail::key_head_of(p, task.row, task.h);
  RecurrenceParams convolved = one;
  const bool v_whole = task.v1 - task.v0 == p.V;
  const detail::Replay replay = detail::replay_of(one, 0, 0);
  if (!detail::is_idle(one, replay, 0, 0)) {
    ConvHead(p, one, one.q, detail::q_channel(p, task.h), 0, p.K, p.K, task.records_key(), own->q);
    ConvHead(p, one, one.k, detail::k_channel(p, task.h), 0, p.K, p.K, task.records_key(), own->k);
    convolved.q = {.data = own->q, .dtype = one.q.dtype, .token_stride = p.K};
    convolved.k = {.data = own->k, .dtype = one.k.dtype, .token_stride = p.K};
    convolved.v = {.data = own->v, .dtype = one.v.dtype, .token_stride = p.V};
    own->tokens.Reset(p.K, p.V);
    // Behind the last value head of this key head come those of the next, then the next row's slot.
    const int64_t slot = one.slot_ids[0];
    const int64_t next_row = task.row + 1 < p.rows && p.live(task.row + 1) ? p.slot_ids[task.row + 1] : -1;
    const std::byte* next = task.h + 1 < p.H ? p.state.at(0, slot, 0, (task.h + 1) * one.HV)
                            : next_row >= 0  ? p.state.at(0, next_row, 0, 0)
                                             : nullptr;
    for (int i = task.first; i < task.first + task.heads; ++i) {
      const int hv = task.h * one.HV + i, n = task.v1 - task.v0;
      Array v = one.v;
      v.data = v.at(0, 0, 0, i);
      const int64_t channel = detail::v_channel(p, hv);
      ConvHead(p, one, v, channel, task.v0, n, p.V, true, own->v);
      if (p.conv.write_state) {
        v.data += task.v0 * static_cast<int64_t>(size_of(v.dtype));
        detail::advance_conv_window(p.conv, detail::piece_of(one, v, channel + task.v0, n, nullptr, 0));
      }
      // All heads in one buffer, whatever their number: stride 0.
      convolved.out = MixerOut(p, task.row, hv, own, v_whole ? nullptr : shared);
      RunHead(convolved, {0, 0, slot, 0, i, task.v0, task.v1, replay}, &own->tokens, next);
      if (v_whole) NormTokens(p, task.row, hv, own->norm_weight, convolved.out);
    }
  }
  // Others read the conv windows of q and k, so these move last; the counter orders all of it.
  std::atomic<int>* left = shared ? &shared->tasks_left[task.row * p.H + task.h] : nullptr;
  if (left && left->fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  for (int i = 0; !v_whole && i < one.HV; ++i) {
    const int hv = task.h * one.HV + i;
    NormTokens(p, task.row, hv, own->norm_weight, MixerOut(p, task.row, hv, own, shared));
  }
  if (p.conv.write_state) AdvanceKeyWindows(p, one, task.h);
}

static HWY_NOINLINE HWY_MAYBE_UNUSED void RunLayer(const LayerParams& p, const LayerCut& cut, LayerShared* shared) {
  const int64_t tasks = p.rows * p.H * cut.tasks_per_key;
  const int group = p.HV / p.H;
  detail::parallel_chunks(
      tasks, chunk_size(tasks, detail::thread_count(p.threads)), p.threads, [&](int64_t begin, int64_t end) HWY_ATTR {
        LayerScratch own;
        for (float& w : own.norm_weight) w = 0.0f;
        LoadRow(p.norm.weight_dtype, p.norm.weight, p.V, own.norm_weight);
        for (int64_t i = begin; i < end; ++i) {
          const int64_t key = i / cut.tasks_per_key;
          const int piece = static_cast<int>(i % cut.tasks_per_key), part = piece % cut.v_parts;
          const LayerTask task = {.row = key / p.H,
                                  .h = static_cast<int>(key % p.H),
                                  .first = piece / cut.v_parts * cut.heads,
                                  .heads = cut.heads,
                                  .v0 = v_part_begin(p.V, cut.v_parts, part),
                                  .v1 = v_part_begin(p.V, cut.v_parts, part + 1)};
          if (p.live(task.row)) {
            RunLayerTask(p, task, &own, shared);
            continue;
          }
          for (int hv = task.h * group + task.first; hv < task.h * group + task.first + task.heads; ++hv)
            ZeroOutputs(p, task.row, hv, task.v0, task.v1);
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
  const LayerCut cut = layer_cut(p.rows * p.H, p.HV / p.H, p.V, p.max_window, detail::thread_count(p.threads));
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
