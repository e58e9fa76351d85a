// Loading and storing single elements of any float dtype.
#pragma once

#include <cstring>

#include "core/arith.h"
#include "ringfold/types.h"

namespace ringfold::detail {

inline float load(DType dtype, const std::byte* data, int64_t i) {
  if (dtype == DType::f32) {
    float v;
    std::memcpy(&v, data + 4 * i, 4);
    return v;
  }
  uint16_t h;
  std::memcpy(&h, data + 2 * i, 2);
  return dtype == DType::bf16 ? arith::from_bf16<arith::Scalar>(h) : arith::from_f16<arith::Scalar>(h);
}

inline void store(DType dtype, std::byte* data, int64_t i, float v) {
  if (dtype == DType::f32) {
    std::memcpy(data + 4 * i, &v, 4);
    return;
  }
  const auto h =
      static_cast<uint16_t>(dtype == DType::bf16 ? arith::to_bf16<arith::Scalar>(v) : arith::to_f16<arith::Scalar>(v));
  std::memcpy(data + 2 * i, &h, 2);
}

/// v as it would come back from memory of that dtype.
inline float rounded(DType dtype, float v) {
  if (dtype == DType::f32) return v;
  return dtype == DType::bf16 ? arith::round_bf16<arith::Scalar>(v) : arith::round_f16<arith::Scalar>(v);
}

}  // namespace ringfold::detail
