// Vector instance of the arithmetic for the Highway target that is being compiled. Toggled include guard: see Highway.
#if defined(RINGFOLD_CPU_OPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RINGFOLD_CPU_OPS_INL_H_
#undef RINGFOLD_CPU_OPS_INL_H_
#else
#define RINGFOLD_CPU_OPS_INL_H_
#endif

#include "core/arith.h"
#include "hwy/highway.h"

// Targets without a fused multiply-add.
#undef RINGFOLD_EMULATED_FMA
#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_EMU128
#define RINGFOLD_EMULATED_FMA 1
#else
#define RINGFOLD_EMULATED_FMA 0
#endif

HWY_BEFORE_NAMESPACE();
namespace ringfold::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if RINGFOLD_EMULATED_FMA
// a*b+c rounded once, for doubles that hold floats. a*b is exact; the sum is rounded to odd (its last bit says whether
// anything was lost), which makes the following rounding to float the only one that counts: 53 >= 2*24 + 2 (Boldo and
// Melquiond 2008).
template <class D, class V>
HWY_INLINE V FmaToOdd(D d, V a, V b, V c) {
  const hn::RebindToSigned<D> di;
  const V p = hn::Mul(a, b);
  const V s = hn::Add(p, c);
  const V bb = hn::Sub(s, p);
  const V lost = hn::Add(hn::Sub(p, hn::Sub(s, bb)), hn::Sub(c, bb));
  const auto bits = hn::BitCast(di, s);
  const auto even = hn::Eq(hn::And(bits, hn::Set(di, 1)), hn::Zero(di));
  const auto inexact = hn::And(hn::Ne(lost, hn::Zero(d)), hn::Eq(lost, lost));  // not where s is infinite or NaN
  // One step away from zero where what was lost has the sign of s, else one step towards it.
  const auto towards = hn::BroadcastSignBit(hn::BitCast(di, hn::Xor(s, lost)));  // -1 or 0
  const auto step = hn::Or(towards, hn::Set(di, 1));
  const auto moved = hn::BitCast(d, hn::Add(bits, step));
  return hn::IfThenElse(hn::And(inexact, hn::MaskFromVec(hn::BitCast(d, hn::VecFromMask(di, even)))), moved, s);
}

template <class D, class V>
HWY_INLINE V Fma(D d, V a, V b, V c) {
  const hn::Half<D> dh;
  const hn::RepartitionToWide<D> dd;
  const auto half = [&](auto x, auto y, auto z) HWY_ATTR {
    return hn::DemoteTo(dh, FmaToOdd(dd, hn::PromoteTo(dd, x), hn::PromoteTo(dd, y), hn::PromoteTo(dd, z)));
  };
  const auto lo = half(hn::LowerHalf(dh, a), hn::LowerHalf(dh, b), hn::LowerHalf(dh, c));
  const auto hi = half(hn::UpperHalf(dh, a), hn::UpperHalf(dh, b), hn::UpperHalf(dh, c));
  return hn::Combine(d, hi, lo);
}
#else
template <class D, class V>
HWY_INLINE V Fma(D, V a, V b, V c) {
  return hn::MulAdd(a, b, c);
}
#endif

/// Ops of core/arith-inl.h on full vectors of floats.
struct Vector {
  using D = hn::ScalableTag<float>;
  using DI = hn::RebindToSigned<D>;
  using DU = hn::RebindToUnsigned<D>;
  using F = hn::Vec<D>;
  using I = hn::Vec<DI>;
  using M = hn::Mask<D>;
  static constexpr int kLanes = hn::MaxLanes(D());

  static HWY_INLINE F set(float v) { return hn::Set(D(), v); }
  static HWY_INLINE I iset(int32_t v) { return hn::Set(DI(), v); }
  static HWY_INLINE F add(F a, F b) { return hn::Add(a, b); }
  static HWY_INLINE F sub(F a, F b) { return hn::Sub(a, b); }
  static HWY_INLINE F mul(F a, F b) { return hn::Mul(a, b); }
  static HWY_INLINE F div(F a, F b) { return hn::Div(a, b); }
  static HWY_INLINE F sqrt(F a) { return hn::Sqrt(a); }
  static HWY_INLINE F fma(F a, F b, F c) { return Fma(D(), a, b, c); }
  static HWY_INLINE I bits(F a) { return hn::BitCast(DI(), a); }
  static HWY_INLINE F from_bits(I a) { return hn::BitCast(D(), a); }
  static HWY_INLINE F neg(F a) { return hn::Xor(a, hn::SignBit(D())); }
  static HWY_INLINE F abs(F a) { return hn::AndNot(hn::SignBit(D()), a); }
  static HWY_INLINE M lt(F a, F b) { return hn::Lt(a, b); }
  static HWY_INLINE M le(F a, F b) { return hn::Le(a, b); }
  static HWY_INLINE M eq(F a, F b) { return hn::Eq(a, b); }
  static HWY_INLINE M ne(F a, F b) {
    return hn::Not(hn::Eq(a, b));
  }  // true for NaN, which Highway's Ne is not with AVX2
  static HWY_INLINE F select(M m, F a, F b) { return hn::IfThenElse(m, a, b); }
  static HWY_INLINE I iselect(M m, I a, I b) { return hn::IfThenElse(hn::RebindMask(DI(), m), a, b); }
  static HWY_INLINE I iadd(I a, I b) { return hn::Add(a, b); }
  static HWY_INLINE I isub(I a, I b) { return hn::Sub(a, b); }
  static HWY_INLINE I iand(I a, I b) { return hn::And(a, b); }
  static HWY_INLINE I ior(I a, I b) { return hn::Or(a, b); }
  static HWY_INLINE I imin(I a, I b) { return hn::Min(a, b); }
  template <int N>
  static HWY_INLINE I shl(I a) {
    return hn::ShiftLeft<N>(a);
  }
  template <int N>
  static HWY_INLINE I shr(I a) {
    return hn::ShiftRight<N>(a);
  }
  template <int N>
  static HWY_INLINE I shru(I a) {
    return hn::BitCast(DI(), hn::ShiftRight<N>(hn::BitCast(DU(), a)));
  }
  static HWY_INLINE F to_float(I a) { return hn::ConvertTo(D(), a); }
};

using arith::kGroup;
#define RF_FN HWY_INLINE
#include "core/arith-inl.h"
#undef RF_FN

}  // namespace HWY_NAMESPACE
}  // namespace ringfold::cpu
HWY_AFTER_NAMESPACE();

#endif
