// A whole layer on the pipeline of the exact recurrence: what happens to its projections before, and to the mixer's
// outputs after. A block has all of V.
//
// k and q of a token are convolved in the registers of the warp that normalises them, just before. v is convolved one
// head ahead by the warp that will read it, into the place that copies take otherwise. The mixer's outputs of a head
// stay in shared memory; all warps norm them when they have come through the next head's preparation (`written`), and
// the next head's outputs wait for that (`normed`).
#pragma once

#include "cuda/elementwise/conv.cuh"
#include "cuda/elementwise/gated_norm.cuh"
#include "cuda/layer/layer.h"
#include "cuda/layer/layer_rows.cuh"
#include "cuda/recurrence/exact.cuh"

namespace ringfold::cuda::exact {

struct ExactLayerParams : ExactParams {
  ConvParams conv;
  NormParams norm;
  int32_t unit = 1;  ///< heads that one block must have together
};

template <int K, int StateBytes, bool Kda, Source From>
struct LayerTraits : Traits<K, StateBytes, Kda, From> {
  using Params = ExactLayerParams;
  static constexpr bool kLayer = true;
};

/// What there is of a row beside its Line: addresses at head 0, token 0, ring row 0.
struct LayerLine {
  const std::byte* z;
  std::byte *out, *conv_ring;
  int64_t slot;
};

/// What lies in shared memory before everything else. The call's params are there a second time, read from there by
/// what is done once a head: the compiler would compute half of it before the loop of heads otherwise, and hold it in
/// registers while states are in them.
struct LayerShared {
  LayerLine lines[kLineBuffers];
  ConvParams conv;
  NormParams norm;
  int first, last;  // heads of the block: first .. last-1
};
static_assert(sizeof(LayerShared) <= kLayerSharedBytes);

template <class T>
class LayerWork {
 public:
  __device__ LayerWork(const ExactLayerParams& params, const Shared<T>& memory, int lane, int warp)
      : p(params),
        shared(memory),
        own(*reinterpret_cast<LayerShared*>(memory.base - kLayerSharedBytes)),
        conv(own.conv),
        norm(own.norm),
        lane(ptx::opaque(lane)),
        warp(ptx::opaque(warp)) {}

  __device__ void keep(int first, int last) const {
    if (threadIdx.x + 1 != blockDim.x) return;
    own.conv = p.conv;
    own.norm = p.norm;
    own.first = first;
    own.last = last;
  }
  __device__ int first() const { return own.first; }
  __device__ int last() const { return own.last; }

  /// One thread speaks for a row and finds its arrays.
  __device__ void open_line(int buffer, int64_t row, RowStatus status) const {
    settle_layer(p, row, status);
    if (status == RowStatus::bad_window_bounds) return;
    LayerLine& line = own.lines[buffer];
    line.z = p.norm.z.at(0, p.window_row(row), p.window_token(row), 0);
    line.out = p.norm.out.at(0, p.window_row(row), p.window_token(row), 0);
    if (status != RowStatus::done) return;
    line.slot = p.slot_ids[row];
    line.conv_ring = p.conv.ring ? p.conv.ring.at(0, line.slot, 0, 0) : nullptr;
  }

  /// The conv's outputs of group `group` of a key head's q or k at token t, whose projections are at `x`. `records`:
  /// those go to the ring.
  template <class Turn>
  __device__ __forceinline__ uint4 convolve_key(const Turn& at, int t, const std::byte* x, bool is_q, int group,
                                                bool records) const {
    const LayerLine& line = layer_line(at.line());
    const int c = static_cast<int>(ptx::opaque(((is_q ? 0 : p.H) + at.key) * T::K + group * kGroup));
    const int taps = static_cast<int>(ptx::opaque(conv.width - 1));
    const int64_t pitch = key_pitch(is_q).token;
    const DType act = p.v.dtype;
    if (records && line.conv_ring) {
      store_8(recorded(line, t) + static_cast<int64_t>(c) * 2, *reinterpret_cast<const uint4*>(x));
    }
    // All loads first, then two channels at a time: more take more registers than there are.
    uint4 raw[kMaxConvWidth], weights[kMaxConvWidth];
#pragma unroll
    for (int j = 0; j < kMaxConvWidth; ++j) {
      raw[j] = {};
      if (j > taps) continue;
      raw[j] = t + j < taps ? old_inputs(line, c, t + j) : *reinterpret_cast<const uint4*>(x + (j - taps) * pitch);
    }
    const bool packed =
        conv.width == 4 && conv.weight_stride == 4 && conv.weight_dtype != DType::f32 && is_aligned(conv.weight);
#pragma unroll
    for (int i = 0; i < kMaxConvWidth; ++i) {
      weights[i] = {};
      if (packed) weights[i] = reinterpret_cast<const uint4*>(conv.weight + static_cast<int64_t>(c) * 8)[i];
    }
    uint4 result = {};
#pragma unroll 1
    for (int i = 0; i < kGroup; i += 2) {
      float w[8];  // four of each channel
      if (packed) {
        widen_8(conv.weight_dtype, weights[0], w);
      } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int64_t at = (c + i + j / 4) * conv.weight_stride + j % 4;
          w[j] = j % 4 <= taps ? load(conv.weight_dtype, conv.weight, at) : 0.0f;
        }
      }
      float2 in[kMaxConvWidth];
#pragma unroll
      for (int j = 0; j < kMaxConvWidth; ++j) {
        in[j] = widen_2(act, raw[j].x);
        raw[j] = {raw[j].y, raw[j].z, raw[j].w, 0};
      }
      const float y0 = conv_output(
          conv, bias(c + i), [&](int j) { return w[j]; }, [&](int j) { return in[j].x; });
      const float y1 = conv_output(
          conv, bias(c + i + 1), [&](int j) { return w[4 + j]; }, [&](int j) { return in[j].y; });
      result = {result.y, result.z, result.w, narrow_2(act, y0, y1)};
      weights[0] = weights[1], weights[1] = weights[2], weights[2] = weights[3];
    }
    return result;
  }

  /// v of the row's tokens: lane l has row l % 16 of this warp's, and every second token.
  template <class Turn>
  __device__ __forceinline__ void convolve_v(const Line& line, const Turn& at, int buffer) const {
    if (!line.live) return;
    const LayerLine& more = layer_line(at.line());
    const int row = warp * T::kWarpRows + lane % 16, c = static_cast<int>(v_channel(at)) + row, n = tokens(line);
    const int taps = conv.width - 1;
    const DType act = p.v.dtype;
    const std::byte* x = v_input(line, at) + row * 2;
    float w[kMaxConvWidth];
#pragma unroll
    for (int j = 0; j < kMaxConvWidth; ++j) {
      w[j] = j <= taps ? load(conv.weight_dtype, conv.weight, c * conv.weight_stride + j) : 0.0f;
    }
    const float b = bias(c);
    const int64_t pitch = p.v_at.token;
    const bool odd = lane >= 16;
#pragma unroll 1
    for (int t0 = 0; t0 < n; t0 += kAtOnce) {
      // Inputs t0 - taps .. t0 + kAtOnce - 1, all loads first.
      uint32_t bits[kTaps + kAtOnce];
#pragma unroll
      for (int i = 0; i < kTaps + kAtOnce; ++i) {
        const int t = t0 + i - taps;
        bits[i] = t >= n ? 0 : t < 0 ? old_input(more, c, t + taps) : peek<uint16_t>(x + t * pitch, 0);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; i += 2) {
        const int t = t0 + i + (odd ? 1 : 0);
        const float y = conv_output(
            conv, b, [&](int j) { return w[j]; },
            [&](int j) { return widen_2(act, odd ? bits[i + 1 + j] : bits[i + j]).x; });
        if (t >= n) continue;
        poke(shared.v(buffer, history(line) + t), row, static_cast<uint16_t>(narrow_2(act, y, 0.0f)));
        if (more.conv_ring) poke(recorded(more, t), c, peek<uint16_t>(x + t * pitch, 0));
      }
    }
  }

  /// The norm of a head's outputs, or zeros; and the conv windows of the head, with the last of a key head those of its
  /// q and k, which nobody reads any more. `wait` returns when the outputs are there.
  template <class Turn, class Wait>
  __device__ __forceinline__ void finish(const Line& line, const Turn& at, Wait wait) const {
    const LayerLine& more = layer_line(at.line());
    const int n = line.live ? tokens(line) : line.count, V = norm.V, warps = blockDim.x / 32;
    int parts_log = 0;  // a token is shared out among warps that have none of their own
    while (n > 0 && n << (parts_log + 1) <= warps) ++parts_log;
    const int part_rows = V >> parts_log;
    bool waited = false;
#pragma unroll 1
    for (int i = warp; i < n << parts_log; i += warps) {
      const int t = i >> parts_log, first = (i & ((1 << parts_log) - 1)) * part_rows + lane;
      const int rows = max(0, min(part_rows - lane, V - first));
      const auto place = [&](const Array& a) {
        return static_cast<int64_t>(size_of(a.dtype)) * (t * a.token_stride + at.hv * a.head_stride);
      };
      std::byte* to = more.out + place(norm.out);
      if (!line.live) {
        for (int k = 0; k < rows; k += 32) store(norm.out.dtype, to, first + k, 0.0f);
        continue;
      }
      const std::byte* gate = more.z + place(norm.z);
      float z[kMostRows], w[kMostRows];
#pragma unroll
      for (int k = 0; k < kMostRows; ++k) {
        z[k] = k * 32 < rows ? load(norm.z.dtype, gate, first + k * 32) : 0.0f;
        w[k] = k * 32 < rows ? load(norm.weight_dtype, norm.weight, first + k * 32) : 0.0f;
      }
      if (!waited) wait();
      waited = true;
      const float* from = shared.outputs() + t * V;
      float x[kGroup];
#pragma unroll
      for (int e = 0; e < kGroup; ++e) {
        const int v = lane * kGroup + e;
        x[e] = v < V ? rounded(norm.x.dtype, from[v]) : 0.0f;
      }
      const float divisor = norm_divisor(norm, x, lane);
#pragma unroll
      for (int k = 0; k < kMostRows; ++k) {
        if (k * 32 >= rows) continue;
        const int v = first + k * 32;
        norm_one(norm, rounded(norm.x.dtype, from[v]), divisor, w[k], z[k], v, to);
      }
    }
    if (!waited) wait();
    if (!conv.write_state || !line.live) return;
    const bool with_keys = at.hv + 1 == (at.key + 1) * p.heads_per_key;
    for (int i = thread(); i < V + (with_keys ? 2 * T::K : 0); i += blockDim.x) {
      const bool is_v = i < V, is_q = i < V + T::K;
      const int of_head = is_v ? i : is_q ? i - V : i - V - T::K;
      const int64_t c = of_head + (is_v ? v_channel(at) : ((is_q ? 0 : p.H) + at.key) * int64_t{T::K});
      const std::byte* x = is_v ? v_input(line, at) : key_input(line, at, is_q);
      const int64_t pitch = is_v ? p.v_at.token : key_pitch(is_q).token;
      uint32_t old[kTaps];
      load_window(conv, 0, more.slot, c, old);
      advance(conv, 0, more.slot, n, c, old, [&](int64_t t) { return x + t * pitch + (of_head - c) * 2; });
    }
  }

 private:
  static constexpr int kMostRows = 4;  // of V, in one lane
  static constexpr int kAtOnce = 4;    // tokens that are convolved at once

  __device__ int thread() const { return warp * 32 + lane; }
  __device__ LayerLine& layer_line(int buffer) const { return own.lines[buffer]; }
  static __device__ int history(const Line& line) { return T::kHistory ? line.history : 0; }
  /// Of the window.
  static __device__ int tokens(const Line& line) { return line.count - history(line); }

  template <class Turn>
  __device__ const std::byte* v_input(const Line& line, const Turn& at) const {
    return line.v + static_cast<int64_t>(at.hv) * p.v_at.head;
  }
  __device__ const Pitch& key_pitch(bool is_q) const { return is_q ? p.q_at : p.k_at; }
  template <class Turn>
  __device__ const std::byte* key_input(const Line& line, const Turn& at, bool is_q) const {
    return (is_q ? line.q : line.k) + static_cast<int64_t>(at.key) * key_pitch(is_q).head;
  }
  template <class Turn>
  __device__ int64_t v_channel(const Turn& at) const {
    return 2 * p.H * T::K + static_cast<int64_t>(at.hv) * norm.V;
  }

  __device__ float bias(int c) const { return conv.bias ? load(conv.bias_dtype, conv.bias, c) : 0.0f; }
  /// Input `tap` of the conv window, and those of kGroup channels.
  __device__ uint32_t old_input(const LayerLine& line, int64_t c, int tap) const {
    const std::byte* window = conv.state.at(0, line.slot, 0, 0);
    return peek<uint16_t>(window, c * conv.state_channel_stride + tap * conv.state_tap_stride);
  }
  __device__ uint4 old_inputs(const LayerLine& line, int64_t c, int tap) const {
    uint32_t pair[kGroup / 2];
#pragma unroll
    for (int i = 0; i < kGroup / 2; ++i)
      pair[i] = old_input(line, c + 2 * i, tap) | old_input(line, c + 2 * i + 1, tap) << 16;
    return {pair[0], pair[1], pair[2], pair[3]};
  }
  /// The ring's row of token t.
  __device__ std::byte* recorded(const LayerLine& line, int t) const {
    return line.conv_ring + t * conv.ring.token_stride * 2;
  }

  static __device__ bool is_aligned(const std::byte* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }

  static __device__ void store_8(std::byte* to, const uint4& raw) {
    if (is_aligned(to)) {
      *reinterpret_cast<uint4*>(to) = raw;
      return;
    }
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < kGroup; ++i) poke(to, i, static_cast<uint16_t>(words[i / 2] >> 16 * (i % 2)));
  }

  const ExactLayerParams& p;
  const Shared<T> shared;
  LayerShared& own;
  const ConvParams& conv;
  const NormParams& norm;
  const int lane, warp;
};

/// The pipeline of Block, one head further back: the end of a head comes after the preparation of the one after next.
template <class T>
class LayerBlock : Block<T> {
 public:
  using Block<T>::Block;

  __device__ __forceinline__ void run(int first, int last) {
    if (threadIdx.x < shared.barrier_count()) ptx::barrier_init(shared.barrier(threadIdx.x), warps() * kArrivals);
    layer_work().keep(first, last);
    const int index = first / p.HV, hv = first - index * p.HV;
    const Turn start{hv, hv / p.heads_per_key, 0};
    const RawGates gates = fetch_gates(index, start, last - first);
    find_line(index, start);
    __syncthreads();
    fetch_inputs(start, false);
    fetch_tile(start);
    make_gates(start, last - first, &gates);
    __syncthreads();
    Turn now = before(start);
#pragma unroll 1
    for (int head = first - 1; head < end(); ++head) {  // `now`
      if (const Turn next = after(now); head + 1 < end()) {
        make_vectors(next, now, head >= begin() && same_key(next));
        layer_work().convolve_v(shared.line(next.line()), next, v_buffer(next));
      }
      if (head > begin()) finish(before(now));
      if (const Turn then = after(after(now)); head + 2 < end()) {
        if (then.hv == 0) open_line(shared.line(after(now).line()), end() - head - 2, then);
        fetch_inputs(then, same_key(then));
      } else {
        ptx::commit_copies();
      }
      if (head >= begin()) compute(now, static_cast<int>(ptx::opaque(head)) + 1 < end());
      now = after(now);
    }
    finish(before(now));
  }

 private:
  using Base = Block<T>;
  using Base::after, Base::compute, Base::fetch_gates, Base::fetch_inputs, Base::fetch_tile, Base::find_line,
      Base::layer_work, Base::make_gates, Base::make_vectors, Base::open_line, Base::p, Base::same_key, Base::shared,
      Base::v_buffer, Base::warps;
  using typename Base::RawGates, typename Base::Turn;

  __device__ __forceinline__ Turn before(const Turn& at) const {
    Turn last = at;
    if (at.hv == 0) {
      last.hv = p.HV, last.key = p.H;
      last.buffers += at.line() == 0 ? 16 * (kLineBuffers - 1) : -16;
    }
    if (last.hv == last.key * p.heads_per_key) --last.key;
    --last.hv;
    last.buffers += at.phase() == 0 ? 2 * shared.buffers - 1 : -1;
    return last;
  }

  /// The block's heads: from shared memory, since registers are short.
  __device__ int begin() const { return layer_work().first(); }
  __device__ int end() const { return layer_work().last(); }

  /// The end of a head, once all warps have its outputs.
  __device__ __forceinline__ void finish(const Turn& at) const {
    layer_work().finish(shared.line(at.line()), at, [&] { ptx::barrier_wait(shared.written(), at.phase() & 1); });
    ptx::barrier_arrive(shared.normed());
  }
};

}  // namespace ringfold::cuda::exact
