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

  /// Brings the projections of a head close.
  template <class Turn>
  __device__ void request(const Line& line, const Turn& at) const {
    const int n = tokens(line);
    if (lane < n) ptx::prefetch(v_input(line, at) + lane * static_cast<int64_t>(p.v_at.token) + warp * 32);
    constexpr int kPieces = T::K / 64;  // of 128 bytes
    for (int i = thread(); i < n * 2 * kPieces; i += blockDim.x) {
      const int t = i / (2 * kPieces), piece = i % kPieces;
      const bool is_q = i / kPieces % 2 != 0;
      ptx::prefetch(key_input(line, at, is_q) + t * static_cast<int64_t>(key_pitch(is_q).token) + piece * 128);
    }
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
    // A few channels at a time: more take more registers than there are.
    uint4 result = {};
#pragma unroll 1
    for (int part = 0; part < kGroup / kPart; ++part) {
      const int first = c + part * kPart;
      uint32_t raw[kMaxConvWidth];
#pragma unroll
      for (int j = 0; j < kMaxConvWidth; ++j) {
        raw[j] = 0;
        if (j > taps) continue;
        raw[j] = t + j < taps ? old_input(line, first, t + j) | old_input(line, first + 1, t + j) << 16
                              : *reinterpret_cast<const uint32_t*>(x + (j - taps) * pitch + part * 4);
      }
      float w[kMaxConvWidth][kPart], y[kPart];
      load_weights(first, w);
#pragma unroll
      for (int e = 0; e < kPart; ++e) {
        y[e] = conv_output(
            conv, bias(first + e), [&](int j) { return w[j][e]; },
            [&](int j) {
              const float2 pair = widen_2(act, raw[j]);
              return e == 0 ? pair.x : pair.y;
            });
      }
      result = {result.y, result.z, result.w, narrow_2(act, y[0], y[1])};
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
#pragma unroll 1
    for (int t = lane / 16; t < n; t += 2) {
      uint32_t bits[kMaxConvWidth];
#pragma unroll
      for (int j = 0; j < kMaxConvWidth; ++j) {
        bits[j] = 0;
        if (j > taps) continue;
        bits[j] = t + j < taps ? old_input(more, c, t + j)
                               : peek<uint16_t>(x + (t + j - taps) * static_cast<int64_t>(p.v_at.token), 0);
      }
      const float y = conv_output(
          conv, b, [&](int j) { return w[j]; }, [&](int j) { return widen_2(act, bits[j]).x; });
      poke(shared.v(buffer, history(line) + t), row, static_cast<uint16_t>(narrow_2(act, y, 0.0f)));
      if (more.conv_ring) poke(recorded(more, t), c, peek<uint16_t>(x + t * static_cast<int64_t>(p.v_at.token), 0));
    }
  }

  /// The norm of a head's outputs, or zeros; and the conv windows of the head, with the last of a key head those of its
  /// q and k, which nobody reads any more.
  template <class Turn>
  __device__ __forceinline__ void finish(const Line& line, const Turn& at) const {
    const LayerLine& more = layer_line(at.line());
    const int n = line.live ? tokens(line) : line.count, V = norm.V, warps = blockDim.x / 32;
    if (n == 0) return;
    int parts_log = 0;  // a token is shared out among warps that have none of their own
    while (n << (parts_log + 1) <= warps) ++parts_log;
    const int part_rows = V >> parts_log;
    for (int i = warp; i < n << parts_log; i += warps) {
      const int t = i >> parts_log, first = (i & ((1 << parts_log) - 1)) * part_rows;
      const auto place = [&](const Array& a) {
        return static_cast<int64_t>(size_of(a.dtype)) * (t * a.token_stride + at.hv * a.head_stride);
      };
      std::byte* to = more.out + place(norm.out);
      if (!line.live) {
        for (int v = first + lane; v < first + part_rows; v += 32) store(norm.out.dtype, to, v, 0.0f);
        continue;
      }
      const float* from = shared.outputs() + t * V;
      const std::byte* z = more.z + place(norm.z);
      float x[kGroup];
#pragma unroll
      for (int e = 0; e < kGroup; ++e) {
        const int v = lane * kGroup + e;
        x[e] = v < V ? rounded(norm.x.dtype, from[v]) : 0.0f;
      }
      const float divisor = norm_divisor(norm, x, lane);
      for (int v = first + lane; v < first + part_rows; v += 32) {
        norm_one(norm, rounded(norm.x.dtype, from[v]), divisor, v, z, to);
      }
    }
    if (!conv.write_state || !line.live) return;
    advance_windows(more.slot, n, v_channel(at), V, v_input(line, at), p.v_at.token);
    if (at.hv + 1 != (at.key + 1) * p.heads_per_key) return;
    for (const bool is_q : {true, false}) {
      advance_windows(more.slot, n, ((is_q ? 0 : p.H) + at.key) * T::K, T::K, key_input(line, at, is_q),
                      key_pitch(is_q).token);
    }
  }

 private:
  static constexpr int kPart = 2;  // channels that are convolved together

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
  /// Input `tap` of the conv window, and those of kPart channels.
  __device__ uint32_t old_input(const LayerLine& line, int64_t c, int tap) const {
    const std::byte* window = conv.state.at(0, line.slot, 0, 0);
    return peek<uint16_t>(window, c * conv.state_channel_stride + tap * conv.state_tap_stride);
  }
  /// The ring's row of token t.
  __device__ std::byte* recorded(const LayerLine& line, int t) const {
    return line.conv_ring + t * conv.ring.token_stride * 2;
  }

  /// w[j][e] = weight j of channel c + e.
  __device__ void load_weights(int c, float (&w)[kMaxConvWidth][kPart]) const {
    const bool whole = conv.width == 4 && conv.weight_stride == 4 && is_aligned(conv.weight);
    if (whole && conv.weight_dtype != DType::f32) {
      const auto* from = reinterpret_cast<const uint4*>(conv.weight + static_cast<int64_t>(c) * 8);
#pragma unroll
      for (int i = 0; i < kPart / 2; ++i) {
        float two[8];
        widen_8(conv.weight_dtype, from[i], two);
#pragma unroll
        for (int j = 0; j < 4; ++j) w[j][2 * i] = two[j], w[j][2 * i + 1] = two[4 + j];
      }
    } else if (whole) {
      const auto* from = reinterpret_cast<const float4*>(conv.weight + static_cast<int64_t>(c) * 16);
#pragma unroll
      for (int e = 0; e < kPart; ++e) {
        const float4 four = from[e];
        w[0][e] = four.x, w[1][e] = four.y, w[2][e] = four.z, w[3][e] = four.w;
      }
    } else {
#pragma unroll
      for (int j = 0; j < kMaxConvWidth; ++j) {
#pragma unroll
        for (int e = 0; e < kPart; ++e) {
          w[j][e] = j < conv.width ? load(conv.weight_dtype, conv.weight, (c + e) * conv.weight_stride + j) : 0.0f;
        }
      }
    }
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

  /// Moves the windows of channels first .. first+count-1 behind n tokens, whose projections of the first are at `x`.
  __device__ void advance_windows(int64_t slot, int n, int64_t first, int count, const std::byte* x,
                                  int64_t pitch) const {
    for (int i = thread(); i < count; i += blockDim.x) {
      uint32_t old[kTaps];
      load_window(conv, 0, slot, first + i, old);
      advance(conv, 0, slot, n, first + i, old, [&](int64_t t) { return x + t * pitch - first * 2; });
    }
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
    if (threadIdx.x == 0) {
      for (int i = 0; i < shared.buffers; ++i) {
        ptx::barrier_init(shared.made(i), warps() * kArrivals);
        ptx::barrier_init(shared.read(i), warps() * kArrivals);
      }
      ptx::barrier_init(shared.written(), warps() * kArrivals);
      ptx::barrier_init(shared.normed(), warps() * kArrivals);
    }
    layer_work().keep(first, last);
    const int hv = first % p.HV;
    const Turn start{hv, hv / p.heads_per_key, 0};
    find_line(first / p.HV, start);
    __syncthreads();
    fetch_inputs(start, false);
    fetch_tile(start);
    make_gates(start, last - first);
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
        if (then.hv == 0) open_line(head + 2, end(), then);
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
  using Base::after, Base::compute, Base::fetch_inputs, Base::fetch_tile, Base::find_line, Base::layer_work,
      Base::make_gates, Base::make_vectors, Base::open_line, Base::p, Base::same_key, Base::shared, Base::v_buffer,
      Base::warps;
  using typename Base::Turn;

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
    ptx::barrier_wait(shared.written(), at.phase() & 1);
    layer_work().finish(shared.line(at.line()), at);
    ptx::barrier_arrive(shared.normed());
  }
};

}  // namespace ringfold::cuda::exact
