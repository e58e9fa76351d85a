#include "bench/twins.h"

#include <algorithm>
#include <atomic>

#include "core/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/twins.cc"
#include "cpu/targets.h"
#include "hwy/foreach_target.h"

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace ringfold::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// `mask` is zero, which the compiler does not know: stores write back what was read. Returns the xor of everything.
uint32_t MovePiece(const Piece& piece, bool write, uint32_t mask) {
  const hn::ScalableTag<uint32_t> d;
  const auto n = static_cast<int64_t>(hn::Lanes(d));
  auto* data = reinterpret_cast<uint32_t*>(piece.data);
  const int64_t words = piece.bytes / 4;
  const auto zero = hn::Set(d, mask);
  auto a = hn::Zero(d), b = hn::Zero(d);
  for (int64_t i = 0; i + 2 * n <= words; i += 2 * n) {
    const auto x = hn::LoadU(d, data + i), y = hn::LoadU(d, data + i + n);
    a = hn::Xor(a, x);
    b = hn::Xor(b, y);
    if (write) {
      hn::StoreU(hn::Xor(x, zero), d, data + i);
      hn::StoreU(hn::Xor(y, zero), d, data + i + n);
    }
  }
  return hn::GetLane(hn::Xor(a, b));
}

float MultiplyAdd(int64_t vectors, float seed) {
  const hn::ScalableTag<float> d;
  const auto x = hn::Set(d, 0.999f), y = hn::Set(d, 1e-3f);
  // Different starts, or the compiler computes one chain for all.
  const auto start = [&](int i) HWY_ATTR { return hn::Set(d, seed + static_cast<float>(i)); };
  auto c0 = start(0), c1 = start(1), c2 = start(2), c3 = start(3), c4 = start(4);
  auto c5 = start(5), c6 = start(6), c7 = start(7), c8 = start(8), c9 = start(9);
  for (int64_t i = 0; i < vectors; i += 10) {
    c0 = hn::MulAdd(c0, x, y);
    c1 = hn::MulAdd(c1, x, y);
    c2 = hn::MulAdd(c2, x, y);
    c3 = hn::MulAdd(c3, x, y);
    c4 = hn::MulAdd(c4, x, y);
    c5 = hn::MulAdd(c5, x, y);
    c6 = hn::MulAdd(c6, x, y);
    c7 = hn::MulAdd(c7, x, y);
    c8 = hn::MulAdd(c8, x, y);
    c9 = hn::MulAdd(c9, x, y);
  }
  const auto s = hn::Add(hn::Add(hn::Add(c0, c1), hn::Add(c2, c3)),
                         hn::Add(hn::Add(c4, c5), hn::Add(hn::Add(c6, c7), hn::Add(c8, c9))));
  return hn::GetLane(s);
}

int64_t FloatLanes() { return static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>())); }

}  // namespace HWY_NAMESPACE
}  // namespace ringfold::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringfold::bench {

HWY_EXPORT(MovePiece);
HWY_EXPORT(MultiplyAdd);
HWY_EXPORT(FloatLanes);

namespace {
std::atomic<uint32_t> g_sink{0};
std::atomic<uint32_t> g_zero{0};
}  // namespace

void move_bytes(std::span<const Piece> pieces, bool write, int threads) {
  const auto n = static_cast<int64_t>(pieces.size());
  const auto move = HWY_DYNAMIC_DISPATCH(MovePiece);
  const uint32_t mask = g_zero.load();
  const int64_t chunk = std::clamp<int64_t>(n / (detail::thread_count(threads) * 8), 1, 64);
  detail::parallel_chunks(n, chunk, threads, [&](int64_t begin, int64_t end) {
    uint32_t sum = 0;
    for (int64_t i = begin; i < end; ++i) sum ^= move(pieces[i], write, mask);
    g_sink.fetch_xor(sum, std::memory_order_relaxed);
  });
}

float multiply_add(int64_t fmas, int threads) {
  const int64_t vectors = fmas / HWY_DYNAMIC_DISPATCH(FloatLanes)();
  const auto kernel = HWY_DYNAMIC_DISPATCH(MultiplyAdd);
  constexpr int64_t kTask = 1 << 15;
  const int64_t tasks = std::max<int64_t>(1, (vectors + kTask - 1) / kTask);
  std::atomic<float> sum{0};
  detail::parallel_for(tasks, threads, [&](int64_t i) {
    sum.store(kernel(std::min(kTask, vectors - i * kTask), static_cast<float>(i)), std::memory_order_relaxed);
  });
  return sum.load();
}

}  // namespace ringfold::bench
#endif
