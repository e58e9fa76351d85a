// What the direct layer kernels are told, and their shared memory.
#pragma once

#include "cuda/recurrence/direct_params.cuh"

namespace ringfold::cuda::direct {

/// Of the recurrence's own, q, k and v are the projections, and `out` is the norm's.
struct DirectLayerParams : DirectParams {
  // The conv. Places in bytes.
  const std::byte *conv_weight = nullptr, *conv_bias = nullptr;
  int32_t weight_channel = 0;  // bytes from channel to channel
  int32_t first_k = 0;         // channel of the conv that is element 0 of the first head of k; v's follow k's
  DType weight_dtype = DType::f32, bias_dtype = DType::f32;
  bool silu = true;
  bool moves_windows = false;  // decode_layer, where a block is the only reader of its channels
  int32_t width = 4;
  std::byte* conv_state = nullptr;
  uint64_t conv_slot = 0;
  int32_t conv_channel = 0, conv_tap = 0;
  detail::Cursors conv_pending;
  Place conv_ring;
  detail::OwnerParams conv_owners;
  // The norm.
  Place z;
  detail::NormParams norm;

  __device__ __forceinline__ detail::Rows rows() const {
    detail::Rows r = DirectParams::rows();
    r.conv_pending = conv_pending, r.conv_owners = conv_owners;
    return r;
  }
};

/// All of V in a block, a warp for each kDirectWarpRows rows; and a thread for each of its 2 K + V channels.
inline constexpr int kLayerWarps = kDirectLayerV / kDirectWarpRows;

template <int K_, int StateBytes, bool Kda>
using LayerTraits = Traits<K_, StateBytes, Kda, kLayerWarps>;

template <class T>
struct LayerShared : Shared<T> {
  static constexpr int kChannels = 2 * T::K + kDirectLayerV;
  static_assert(kChannels <= kLayerWarps * 32, "a thread convolves one channel");
  /// Of the conv, with the channels of the head's q | k | v: the window that it finds, then the projections.
  alignas(16) uint16_t inputs[kMaxConvWidth - 1 + kDirectTokens][kChannels];

  uint32_t taps[kMaxConvWidth - 1][kChannels];  // the window as it was copied: a thread reads its own alone

  __device__ uint16_t* projections(int t) { return inputs[kMaxConvWidth - 1 + t]; }
};

}  // namespace ringfold::cuda::direct
