// Slot to slot: copies that happen all at once, and the logical state of a window that is still pending.
#include <fmt/format.h>

#include <cstring>

#include "dispatch/judged.h"
#include "pool/pool_impl.h"

namespace ringfold {

void PoolStore::copy_section(int part, int64_t from, int64_t to) {
  const auto bytes = static_cast<size_t>(layout.slot_bytes[part]);
  if (bytes == 0) return;
  for (int64_t layer = 0; layer < config.layers; ++layer)
    std::memcpy(at(part, layer, to), at(part, layer, from), bytes);
}

void PoolStore::copy_slot(int64_t from, int64_t to) {
  for (int part = 0; part < kSectionCount; ++part) copy_section(part, from, to);
}

void PoolStore::save_to_scratch(int64_t slot) {
  std::byte* to = scratch.get();
  for (int part = 0; part < kSectionCount; ++part) {
    const int64_t bytes = layout.slot_bytes[part];
    if (bytes == 0) continue;
    for (int64_t layer = 0; layer < config.layers; ++layer, to += bytes) {
      std::memcpy(to, at(part, layer, slot), static_cast<size_t>(bytes));
    }
  }
}

void PoolStore::load_from_scratch(int64_t slot) {
  const std::byte* from = scratch.get();
  for (int part = 0; part < kSectionCount; ++part) {
    const int64_t bytes = layout.slot_bytes[part];
    if (bytes == 0) continue;
    for (int64_t layer = 0; layer < config.layers; ++layer, from += bytes) {
      std::memcpy(at(part, layer, slot), from, static_cast<size_t>(bytes));
    }
  }
}

// Every slot is written at most once, so the copies form trees that hang from cycles. A slot that nobody reads any more
// is overwritten, which may free its own source in turn; what is left when no such slot remains are the bare cycles.
Status Pool::copy(std::span<const Slot> src, std::span<const Slot> dst) {
  PoolStore& p = *impl_;
  if (src.size() != dst.size()) {
    return {Code::invalid_argument, fmt::format("dst: expected {} slots as in src, found {}", src.size(), dst.size())};
  }
  for (size_t i = 0; i < src.size(); ++i) {
    if (Status s = p.check("src", i, src[i]); !s.ok()) return s;
    if (Status s = p.check("dst", i, dst[i]); !s.ok()) return s;
  }
  for (size_t i = 0; i < dst.size(); ++i) {
    if (p.copy_from[dst[i].id] >= 0) {
      for (size_t j = 0; j < i; ++j) p.copy_from[dst[j].id] = -1;
      return {Code::invalid_argument,
              fmt::format("dst[{}]: expected every slot once, found slot {} again", i, dst[i].id)};
    }
    p.copy_from[dst[i].id] = src[i].id;
  }
  for (size_t i = 0; i < dst.size(); ++i) {
    if (src[i].id == dst[i].id) {
      p.copy_from[dst[i].id] = -1;
    } else {
      ++p.copy_uses[src[i].id];
    }
  }

  int64_t ready = 0;
  for (const Slot& d : dst) {
    if (p.copy_from[d.id] >= 0 && p.copy_uses[d.id] == 0) p.copy_ready[ready++] = d.id;
  }
  while (ready > 0) {
    const int32_t to = p.copy_ready[--ready];
    const int32_t from = p.copy_from[to];
    p.copy_slot(from, to);
    p.copy_from[to] = -1;
    if (--p.copy_uses[from] == 0 && p.copy_from[from] >= 0) p.copy_ready[ready++] = from;
  }
  for (const Slot& d : dst) {
    if (p.copy_from[d.id] < 0) continue;
    p.save_to_scratch(d.id);
    int32_t to = d.id;
    for (int32_t from = p.copy_from[to]; from != d.id; from = p.copy_from[to]) {
      p.copy_slot(from, to);
      p.copy_from[to] = -1;
      p.copy_uses[from] = 0;
      to = from;
    }
    p.load_from_scratch(to);
    p.copy_from[to] = -1;
    p.copy_uses[d.id] = 0;
  }
  return {};
}

Status Pool::materialise(Slot src, int32_t n, Slot dst) {
  PoolStore& p = *impl_;
  if (Status s = p.check("src", src); !s.ok()) return s;
  if (Status s = p.check("dst", dst); !s.ok()) return s;
  if (src.id == dst.id) {
    return {Code::invalid_argument, fmt::format("dst: expected another slot than src, found slot {}", dst.id)};
  }
  const int32_t window = p.shortest_window(src.id);
  if (n < 0 || (n > 0 && n > window)) {
    return {Code::invalid_argument, fmt::format("n: expected 0..{}, the pending rows of slot {}, found {}",
                                                window < 0 ? 0 : window, src.id, n)};
  }
  if (n == 0) {
    p.copy_section(kState, src.id, dst.id);
    p.copy_section(kConvState, src.id, dst.id);
  } else {
    const TensorView from(&src.id, DType::i32, {1}), to(&dst.id, DType::i32, {1}), count(&n, DType::i32, {1});
    FoldArgs fold;
    fold.qk_l2norm = p.config.qk_l2norm;
    fold.state = state();
    fold.ring = ring();
    fold.slot_ids = from;
    fold.num_accepted = count;
    fold.state_rounding = p.config.state_rounding;
    if (Status s = detail::fold_judged(fold, {}, to); !s.ok()) return s;
    if (p.has_conv()) {
      ConvCommitArgs conv;
      conv.conv_state = conv_state();
      conv.conv_ring = conv_ring();
      conv.slot_ids = from;
      conv.num_accepted = count;
      if (Status s = detail::conv_commit_judged(conv, {}, to); !s.ok()) return s;
    }
  }
  p.set_pending(dst.id, kNoWindow);
  return {};
}

}  // namespace ringfold
