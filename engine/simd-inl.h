// Groups of eight fp32 lanes that compute the same bits on every instruction set. Included once per target.
#if defined(RINGFOLD_ENGINE_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RINGFOLD_ENGINE_SIMD_INL_H_
#undef RINGFOLD_ENGINE_SIMD_INL_H_
#else
#define RINGFOLD_ENGINE_SIMD_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ringfold::engine::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Eight lanes, whatever the width of the registers: wider targets use part of a register, narrower ones several. Every
// operation is one IEEE operation per lane, and fma is always fused (through std::fma where the target has none, which
// is slow but gives the same bits), so results do not depend on the target.
using D = hn::CappedTag<float, 8>;
using V = hn::Vec<D>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
inline constexpr int kParts = 8 / kLanes;
static_assert(kLanes * kParts == 8);

struct F8 {
  V part[kParts];
};

template <class F>
HWY_INLINE F8 each(F&& f) {
  F8 r;
#pragma GCC unroll 8
  for (int i = 0; i < kParts; ++i) r.part[i] = f(i);
  return r;
}

HWY_INLINE F8 set8(float x) {
  return each([&](int) HWY_ATTR { return hn::Set(D(), x); });
}
HWY_INLINE F8 add(const F8& a, const F8& b) {
  return each([&](int i) HWY_ATTR { return hn::Add(a.part[i], b.part[i]); });
}
HWY_INLINE F8 mul(const F8& a, const F8& b) {
  return each([&](int i) HWY_ATTR { return hn::Mul(a.part[i], b.part[i]); });
}
HWY_INLINE F8 div(const F8& a, const F8& b) {
  return each([&](int i) HWY_ATTR { return hn::Div(a.part[i], b.part[i]); });
}
HWY_INLINE F8 max(const F8& a, const F8& b) {
  return each([&](int i) HWY_ATTR { return hn::Max(a.part[i], b.part[i]); });
}
HWY_INLINE F8 min(const F8& a, const F8& b) {
  return each([&](int i) HWY_ATTR { return hn::Min(a.part[i], b.part[i]); });
}

HWY_INLINE V fma_part(V a, V b, V c) {
#if HWY_NATIVE_FMA
  return hn::MulAdd(a, b, c);
#else
  HWY_ALIGN float x[kLanes], y[kLanes], z[kLanes];
  hn::Store(a, D(), x);
  hn::Store(b, D(), y);
  hn::Store(c, D(), z);
  for (int i = 0; i < kLanes; ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return hn::Load(D(), z);
#endif
}
/// a * b + c, rounded once.
HWY_INLINE F8 fma(const F8& a, const F8& b, const F8& c) {
  return each([&](int i) HWY_ATTR { return fma_part(a.part[i], b.part[i], c.part[i]); });
}

HWY_INLINE F8 load8(const float* p) {
  return each([&](int i) HWY_ATTR { return hn::LoadU(D(), p + i * kLanes); });
}
HWY_INLINE F8 load8(const hwy::bfloat16_t* p) {
  return each([&](int i) HWY_ATTR {
    const hn::RebindToUnsigned<D> du32;
    const hn::Rebind<uint16_t, D> du16;
    const auto bits = hn::LoadU(du16, reinterpret_cast<const uint16_t*>(p) + i * kLanes);
    return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(du32, bits)));
  });
}
HWY_INLINE F8 load8(const hwy::float16_t* p) {
  return each([&](int i) HWY_ATTR {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(D(), hn::LoadU(d16, p + i * kLanes));
  });
}
HWY_INLINE void store8(const F8& a, float* p) {
#pragma GCC unroll 8
  for (int i = 0; i < kParts; ++i) hn::StoreU(a.part[i], D(), p + i * kLanes);
}

/// The first n (1..7) elements at p, zeros after them; nothing beyond is read.
template <class W>
HWY_INLINE F8 load_some(const W* p, int64_t n) {
  W padded[8] = {};
  for (int64_t i = 0; i < n; ++i) padded[i] = p[i];
  return load8(padded);
}
HWY_INLINE void store_some(const F8& a, float* p, int64_t n) {
  float padded[8];
  store8(a, padded);
  for (int64_t i = 0; i < n; ++i) p[i] = padded[i];
}

/// ((x0+x4)+(x2+x6)) + ((x1+x5)+(x3+x7)).
HWY_INLINE float sum8(const F8& a) {
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> d4;
#if HWY_MAX_BYTES >= 32
  auto x = hn::Add(hn::LowerHalf(d4, a.part[0]), hn::UpperHalf(d4, a.part[0]));
#else
  auto x = hn::Add(a.part[0], a.part[1]);
#endif
  x = hn::Add(x, hn::Shuffle1032(x));
  x = hn::Add(x, hn::Shuffle2301(x));
  return hn::GetLane(x);
#else
  float x[8];
  store8(a, x);
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
#endif
}

/// e^x for x in [-87, 88], clamped to that range outside; relative error below 2e-7: 2^n times the Taylor polynomial of
/// degree 7 on |r| <= ln(2)/2, whose remainder is 6e-9.
HWY_INLINE F8 exp8(const F8& value) {
  return each([&](int i) HWY_ATTR {
    const D d;
    const hn::RebindToSigned<D> di;
    const V x = hn::Min(hn::Max(value.part[i], hn::Set(d, -87.0f)), hn::Set(d, 88.0f));
    const auto n = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504f)));
    const V nf = hn::ConvertTo(d, n);
    V r = fma_part(nf, hn::Set(d, -0.693359375f), x);  // ln(2) in two pieces; the first has 10 bits, so this is exact
    r = fma_part(nf, hn::Set(d, 2.12194440e-4f), r);
    V p = hn::Set(d, 1.0f / 5040);
    p = fma_part(p, r, hn::Set(d, 1.0f / 720));
    p = fma_part(p, r, hn::Set(d, 1.0f / 120));
    p = fma_part(p, r, hn::Set(d, 1.0f / 24));
    p = fma_part(p, r, hn::Set(d, 1.0f / 6));
    p = fma_part(p, r, hn::Set(d, 0.5f));
    p = fma_part(p, r, hn::Set(d, 1.0f));
    p = fma_part(p, r, hn::Set(d, 1.0f));
    const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
    return hn::Mul(p, power);
  });
}

/// 1 / (1 + e^-x).
HWY_INLINE F8 sigmoid8(const F8& x) {
  const F8 one = set8(1.0f);
  return div(one, add(one, exp8(mul(x, set8(-1.0f)))));
}

}  // namespace ringfold::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // RINGFOLD_ENGINE_SIMD_INL_H_
