// A layer between its projections, made for small batches: the block of recurrence/direct.cuh for a (row, value head)
// with all of V, whose last warps convolve what q, k and v are made of, a thread for each channel, and whose warps norm
// the outputs in the end. Value heads of a key head convolve its q and k each for itself; the first one records them.
//
// Three barriers: q, k and v are there; the tokens' vectors are there; outputs are there. The conv needs none, as a
// warp brings the projections and the window of its own channels.
#pragma once

#include "cuda/elementwise/conv.cuh"
#include "cuda/elementwise/gated_norm.cuh"
#include "cuda/layer/direct_layer_params.cuh"
#include "cuda/layer/layer.cuh"
#include "cuda/recurrence/direct.cuh"

namespace ringfold::cuda::direct {

template <class T>
class LayerBlock : public Body<T, LayerBlock<T>> {
  using Base = Body<T, LayerBlock<T>>;
  friend Base;

 public:
  __device__ LayerBlock(const DirectLayerParams& params, LayerShared<T>& memory)
      : Base(params, memory),
        layer(params),
        local(memory),
        channels(2 * T::K + p.V),
        first_channel(static_cast<int>(threadIdx.x / 32 * 32) - (kLayerWarps * 32 - channels)),
        channel(first_channel + lane) {}

 private:
  using Base::count, Base::hv, Base::key, Base::p, Base::row, Base::shared, Base::warp;
  using Base::in_pool, Base::lane, Base::token;
  using typename Base::Channels;

  static constexpr int kChunk = 8;   // channels that are copied at a time
  static constexpr int kPieces = 4;  // of 32 elements of V, that a token is normed in
  static constexpr int kTokensAtOnce = kLayerWarps / kPieces;
  static constexpr int kNormTurns = kDirectTokens / kTokensAtOnce;

  /// Channel c of the block among those of the conv.
  __device__ int channel_of_conv(int c) const {
    if (c < T::K) return key * T::K + c;
    if (c < 2 * T::K) return layer.first_k + key * T::K + c - T::K;
    return 2 * layer.first_k + hv * p.V + c - 2 * T::K;
  }
  /// Its projection of token t.
  __device__ const std::byte* projection(int c, int index, int t) const {
    if (c < T::K) return p.q.at(index, key, t) + c * 2;
    if (c < 2 * T::K) return p.k.at(index, key, t) + (c - T::K) * 2;
    return p.v.at(index, hv, t) + (c - 2 * T::K) * 2;
  }
  __device__ bool convolves() const { return channel >= 0; }
  /// Of the value heads of a key head the first speaks for q and k.
  __device__ bool speaks_for_key() const { return hv == key * p.heads_per_key; }

  // Of a piece of the norm, in the n-th turn of this warp.
  __device__ int normed_token(int n) const { return warp / kPieces + n * kTokensAtOnce; }
  __device__ int normed_v() const { return warp % kPieces * 32 + lane; }
  __device__ bool norms(int n) const { return normed_token(n) < count && normed_v() < p.V; }

  /// Starts the copies of the warp's projections, and asks for the weights of its channels.
  __device__ __forceinline__ void fetch_inputs(int index) {
    const int t = lane / 4, c = first_channel + lane % 4 * kChunk;
    if (t < count && c >= 0) {
      ptx::copy_async_16(ptx::shared_address(local.projections(t) + c), projection(c, index, t));
    }
    ptx::commit_copies();
    const int skipped = kMaxConvWidth - layer.width;
    of_conv = static_cast<int>(ptx::opaque(channel_of_conv(channel)));  // once, while the slot id is on its way
    if (convolves()) {
      const int size = layer.weight_dtype == DType::f32 ? 4 : 2;
      const std::byte* from = layer.conv_weight + static_cast<int64_t>(of_conv) * layer.weight_channel;
#pragma unroll
      for (int j = 0; j < kMaxConvWidth; ++j) {
        weight[j] = load_bits(layer.weight_dtype, from + max(j - skipped, 0) * size);  // no branch for those not there
      }
      if (layer.conv_bias) {
        bias = load_bits(layer.bias_dtype,
                         layer.conv_bias + static_cast<int64_t>(of_conv) * (layer.bias_dtype == DType::f32 ? 4 : 2));
      }
    }
  }
  __device__ uint32_t arrived_inputs() const {
    uint32_t all = bias;
#pragma unroll
    for (const uint32_t w : weight) all ^= w;
    return all;
  }

  __device__ std::byte* window_of(int slot) const {
    return layer.conv_state +
           static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(slot)) * layer.conv_slot) +
           static_cast<int64_t>(of_conv) * layer.conv_channel;
  }
  /// Starts the copies of the conv's window: of each tap the four bytes that it is in. (Had they registers to go to,
  /// the conv would wait for the state too; see Body::run.)
  __device__ __forceinline__ void fetch_of_slot(int of_slot) {
    slot = of_slot;
    if (convolves() && in_pool(slot)) {
      const std::byte* from = window_of(slot);
      const int skipped = kMaxConvWidth - layer.width;
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
        const auto at = reinterpret_cast<uintptr_t>(from + max(j - skipped, 0) * layer.conv_tap);
        tap_shift[j] = (at & 2) * 8;
        ptx::copy_async_4(ptx::shared_address(&local.taps[j][channel]), reinterpret_cast<const std::byte*>(at & ~3));
      }
    }
    ptx::commit_copies();
  }

  /// What the norm needs, after the state: it may be waited for with it.
  __device__ __forceinline__ void fetch_rest(int index) {
#pragma unroll
    for (int n = 0; n < kNormTurns; ++n) {
      if (!norms(n)) continue;
      const DType dtype = layer.norm.z.dtype;
      z[n] = load_bits(dtype, layer.z.at(index, hv, normed_token(n)) + normed_v() * (dtype == DType::f32 ? 4 : 2));
    }
    if (normed_v() < p.V) {
      const DType dtype = layer.norm.weight_dtype;
      norm_weight = load_bits(dtype, layer.norm.weight + normed_v() * (dtype == DType::f32 ? 4 : 2));
    }
  }

  __device__ __forceinline__ void prepare(Channels& gates) {
    ptx::wait_copies<0>();
    __syncwarp();
    if (convolves()) convolve();
    float decay[1][kGroup] = {};
    const bool has_token = token(0) < count;
    if constexpr (T::kKda) {
      if (has_token) this->template make_decays<1>(gates, decay);
    }
    ptx::meet(blockDim.x);
    if (has_token) this->template make_vectors<1>(decay);
  }

  /// Where token 0 of this thread's channel goes, and the elements to that of the next token.
  __device__ uint16_t* convolved(int* pitch) const {
    const bool is_v = channel >= 2 * T::K, is_q = channel < T::K;
    *pitch = is_v ? kDirectLayerV : 32 * kChunk;
    if (is_v) return &local.v[0][0][0] + channel - 2 * T::K;
    return reinterpret_cast<uint16_t*>(&local.raw[0][is_q ? 16 : 0]) + (is_q ? channel : channel - T::K);
  }

  __device__ __forceinline__ void convolve() const {
    int pitch;
    uint16_t* to = convolved(&pitch);
    const uint16_t* from = local.projections(0) + channel;
    float x[kMaxConvWidth] = {}, w[kMaxConvWidth];
#pragma unroll
    for (int j = 0; j < kMaxConvWidth; ++j) {
      w[j] = of_bits(layer.weight_dtype, weight[j]);
      if (j == 0) continue;
      const uint32_t tap = local.taps[j - 1][channel] >> tap_shift[j - 1] & 0xffff;
      local.inputs[j - 1][channel] = static_cast<uint16_t>(tap);
      x[j] = widen_2(p.act_dtype, tap).x;
    }
    const float b = of_bits(layer.bias_dtype, bias);
#pragma unroll 1
    for (int t = 0; t < count; ++t) {
#pragma unroll
      for (int j = 0; j < kTaps; ++j) x[j] = x[j + 1];
      x[kTaps] = widen_2(p.act_dtype, from[t * LayerShared<T>::kChannels]).x;
      const float y = conv_output(
          layer, b, [&](int j) { return w[j]; }, [&](int j) { return x[j]; });
      to[t * pitch] = static_cast<uint16_t>(narrow_2(p.act_dtype, y, 0.0f));
    }
  }

  // What the head's warp does beside its own.
  struct Copies {};
  __device__ void fetch_copies(Copies&, int) const {}
  __device__ Rows rows() const { return layer.rows(); }
  __device__ void look_at_slot(int of_slot) {
    if (in_pool(of_slot) && layer.conv_pending) conv_pending = read_unordered(layer.conv_pending.at(0, of_slot));
  }
  __device__ RowStatus judge(const Rows& rows, const WindowFacts& facts) const {
    return judge_layer(rows, facts, conv_pending, false);
  }
  __device__ void meet() const { ptx::meet(blockDim.x); }
  __device__ void settle(const Rows& rows, RowStatus status) const { settle_layer(rows, row, status); }
  __device__ void close_head() const { ptx::meet(blockDim.x); }

  /// Both rings, 16 bytes at a time.
  __device__ __forceinline__ void store_copies(const Copies&, int ring) const {
    const bool keys = speaks_for_key();
    copy_chunks(
        p.V, [&](int t) { return &local.v[t][0][0]; }, [&](int t) { return p.ring_v.at(ring, hv, t); });
    if (keys) {
      copy_chunks(
          T::K, [&](int t) { return reinterpret_cast<const uint16_t*>(&local.raw[0][t * 32]); },
          [&](int t) { return p.ring_k.at(ring, key, t); });
      record(ring, 0), record(ring, T::K);
    }
    record(ring, 2 * T::K);
  }
  /// The projections of the head that begins with this channel of the block.
  __device__ void record(int ring, int first) const {
    const int channel_of_ring = channel_of_conv(first);
    copy_chunks(
        first < 2 * T::K ? T::K : p.V, [&](int t) { return local.projections(t) + first; },
        [&](int t) { return layer.conv_ring.at(ring, 0, t) + static_cast<int64_t>(channel_of_ring) * 2; });
  }
  /// n elements of each token.
  template <class From, class To>
  __device__ __forceinline__ void copy_chunks(int n, From from, To to) const {
    constexpr int kAcross = 16;  // lanes of a token
    const int at = lane % kAcross * kChunk;
    if (at >= n) return;
#pragma unroll 1
    for (int t = lane / kAcross; t < count; t += 32 / kAcross) {
      *reinterpret_cast<uint4*>(to(t) + at * 2) = *reinterpret_cast<const uint4*>(from(t) + at);
    }
  }

  /// The outputs of the warp's rows stay in shared memory.
  __device__ void deliver(int, bool, int, float) const {}

  /// After the warp's part of the recurrence.
  __device__ __forceinline__ void close(int index) {
    if (layer.moves_windows && convolves()) {
      std::byte* to = window_of(slot);
      const int skipped = kMaxConvWidth - layer.width;
      for (int j = skipped; j < kTaps; ++j) {
        poke(to + (j - skipped) * layer.conv_tap, 0, local.inputs[count + j][channel]);
      }
    }
    ptx::meet(blockDim.x);
    // Every piece of a token needs the whole head's divisor.
#pragma unroll 1
    for (int n = 0; n < kNormTurns; ++n) {
      const int t = normed_token(n), v = normed_v();
      if (t >= count || warp % kPieces * 32 >= p.V) break;
      const float* out = &local.out[t][0][0];
      float x[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const int at = lane * kGroup + i;
        x[i] = at < p.V ? rounded(layer.norm.x.dtype, out[at]) : 0.0f;
      }
      const float divisor = norm_divisor(layer.norm, x, lane);
      if (v >= p.V) continue;
      const float mine = rounded(layer.norm.x.dtype, out[v]);
      const float weight = of_bits(layer.norm.weight_dtype, norm_weight),
                  gate = of_bits(layer.norm.z.dtype, n == 0 ? z[0] : z[1]);
      store_one(p.out_dtype, p.out.at(index, hv, t), v,
                arith::gated<S>(mine, divisor, weight, gate, layer.norm.silu_gate));
    }
  }

  const DirectLayerParams& layer;
  LayerShared<T>& local;
  const int channels, first_channel, channel;  // of the block: how many; the warp's first; this thread's, or negative
  int of_conv = 0;                             // the same channel
  int slot = -1;
  int32_t conv_pending = kNoWindow;
  uint32_t weight[kMaxConvWidth] = {}, bias = 0, norm_weight = 0, z[kNormTurns] = {};
  uint32_t tap_shift[kTaps] = {};
};

}  // namespace ringfold::cuda::direct
