// Scalar instance of the arithmetic, for host and device code.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/host_device.h"

namespace ringfold::arith {

/// Elements of one group of the canonical sum.
inline constexpr int kGroup = 8;

/// Single IEEE operations on floats. Needs -ffp-contract=off on the host; on the device the _rn forms keep the compiler
/// from contracting, and the unit must be built without flush-to-zero.
struct Scalar {
  using F = float;
  using I = int32_t;
  using M = bool;

  static RF_HD F set(float v) { return v; }
  static RF_HD I iset(int32_t v) { return v; }
#if defined(__CUDA_ARCH__)
  static RF_HD F add(F a, F b) { return __fadd_rn(a, b); }
  static RF_HD F sub(F a, F b) { return __fsub_rn(a, b); }
  static RF_HD F mul(F a, F b) { return __fmul_rn(a, b); }
  static RF_HD F div(F a, F b) { return __fdiv_rn(a, b); }
  static RF_HD F sqrt(F a) { return __fsqrt_rn(a); }
  static RF_HD F fma(F a, F b, F c) { return __fmaf_rn(a, b, c); }
  static RF_HD I bits(F a) { return __float_as_int(a); }
  static RF_HD F from_bits(I a) { return __int_as_float(a); }
#else
  static RF_HD F add(F a, F b) { return a + b; }
  static RF_HD F sub(F a, F b) { return a - b; }
  static RF_HD F mul(F a, F b) { return a * b; }
  static RF_HD F div(F a, F b) { return a / b; }
  static RF_HD F sqrt(F a) { return std::sqrt(a); }
  static RF_HD F fma(F a, F b, F c) { return std::fma(a, b, c); }
  static RF_HD I bits(F a) {
    I r;
    std::memcpy(&r, &a, sizeof r);
    return r;
  }
  static RF_HD F from_bits(I a) {
    F r;
    std::memcpy(&r, &a, sizeof r);
    return r;
  }
#endif
  static RF_HD F neg(F a) { return from_bits(bits(a) ^ INT32_MIN); }
  static RF_HD F abs(F a) { return from_bits(bits(a) & INT32_MAX); }
  static RF_HD M lt(F a, F b) { return a < b; }
  static RF_HD M le(F a, F b) { return a <= b; }
  static RF_HD M eq(F a, F b) { return a == b; }
  static RF_HD M ne(F a, F b) { return !(a == b); }
  static RF_HD F select(M m, F a, F b) { return m ? a : b; }
  static RF_HD I iselect(M m, I a, I b) { return m ? a : b; }
  // Integer arithmetic wraps.
  static RF_HD I iadd(I a, I b) { return static_cast<I>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b)); }
  static RF_HD I isub(I a, I b) { return static_cast<I>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b)); }
  static RF_HD I iand(I a, I b) { return a & b; }
  static RF_HD I ior(I a, I b) { return a | b; }
  static RF_HD I imin(I a, I b) { return a < b ? a : b; }
  template <int N>
  static RF_HD I shl(I a) {
    return static_cast<I>(static_cast<uint32_t>(a) << N);
  }
  template <int N>
  static RF_HD I shr(I a) {  // arithmetic
    return a >> N;
  }
  template <int N>
  static RF_HD I shru(I a) {  // logical
    return static_cast<I>(static_cast<uint32_t>(a) >> N);
  }
  static RF_HD F to_float(I a) { return static_cast<F>(a); }
};

#define RF_FN RF_HD
#include "core/arith-inl.h"
#undef RF_FN

/// Canonical sum of a[k]*b[k] over k = 0 .. n-1, n <= 256.
RF_HD float dot(const float* a, const float* b, int n) {
  float x[256 / kGroup] = {};
  int groups = 0;
  for (int k0 = 0; k0 < n; k0 += kGroup) {
    float chain = 0;
    for (int k = k0; k < n && k < k0 + kGroup; ++k) chain = group_step<Scalar>(k == k0, a[k], b[k], chain);
    x[groups++] = chain;
  }
  return tree_sum<Scalar>(x, groups, 1);
}

}  // namespace ringfold::arith
