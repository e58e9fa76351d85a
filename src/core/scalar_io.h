// Loading and storing single elements of any float dtype.
#pragma once

#include <cstring>

#include "core/arith.h"
#include "ringfold/types.h"

namespace ringfold::detail {

/// Element i of an array that is aligned to its elements.
template <class T>
RF_HD T peek(const std::byte* data, int64_t i) {
#if defined(__CUDA_ARCH__)
  return reinterpret_cast<const T*>(data)[i];
#else
  T v;
  std::memcpy(&v, data + static_cast<int64_t>(sizeof(T)) * i, sizeof(T));
  return v;
#endif
}
template <class T>
RF_HD void poke(std::byte* data, int64_t i, T v) {
#if defined(__CUDA_ARCH__)
  reinterpret_cast<T*>(data)[i] = v;
#else
  std::memcpy(data + static_cast<int64_t>(sizeof(T)) * i, &v, sizeof(T));
#endif
}

RF_HD float load(DType dtype, const std::byte* data, int64_t i) {
  if (dtype == DType::f32) return peek<float>(data, i);
  const auto h = peek<uint16_t>(data, i);
  return dtype == DType::bf16 ? arith::from_bf16<arith::Scalar>(h) : arith::from_f16<arith::Scalar>(h);
}

RF_HD void store(DType dtype, std::byte* data, int64_t i, float v) {
  if (dtype == DType::f32) return poke(data, i, v);
  poke(
      data, i,
      static_cast<uint16_t>(dtype == DType::bf16 ? arith::to_bf16<arith::Scalar>(v) : arith::to_f16<arith::Scalar>(v)));
}

/// v as it would come back from memory of that dtype.
RF_HD float rounded(DType dtype, float v) {
  if (dtype == DType::f32) return v;
  return dtype == DType::bf16 ? arith::round_bf16<arith::Scalar>(v) : arith::round_f16<arith::Scalar>(v);
}

}  // namespace ringfold::detail
