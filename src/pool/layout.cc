// Sizes of a pool, checked before anything is allocated.
#include <fmt/format.h>

#include <limits>

#include "pool/pool_impl.h"

namespace ringfold {
namespace {

Status expected(const char* name, const std::string& what, int64_t found) {
  return {Code::invalid_argument, fmt::format("{}: expected {}, found {}", name, what, found)};
}

Status check_config(const PoolConfig& c) {
  constexpr int64_t kMaxSlots = std::numeric_limits<int32_t>::max();
  if (c.layers < 1) return expected("layers", "at least 1", c.layers);
  if (c.slots < 1 || c.slots > kMaxSlots) return expected("slots", fmt::format("1..{}", kMaxSlots), c.slots);
  if (c.H < 1) return expected("H", "at least 1", c.H);
  if (c.HV < 1 || c.HV % c.H != 0) return expected("HV", fmt::format("a positive multiple of H = {}", c.H), c.HV);
  if (c.K < 1 || c.K > kMaxHeadDim) return expected("K", fmt::format("1..{}", kMaxHeadDim), c.K);
  if (c.V < 1 || c.V > kMaxHeadDim) return expected("V", fmt::format("1..{}", kMaxHeadDim), c.V);
  if (c.ring_rows < 1 || c.ring_rows > kMaxWindow) {
    return expected("ring_rows", fmt::format("1..{}", kMaxWindow), c.ring_rows);
  }
  if (c.fold_policy == FoldPolicy::on_commit && largest_window(c) != c.ring_rows) {
    return expected("max_window", fmt::format("0 or ring_rows = {}, with fold policy on_commit", c.ring_rows),
                    c.max_window);
  }
  if (c.fold_policy != FoldPolicy::on_commit) {
    if (c.ring_rows < 2) {
      return expected("ring_rows", fmt::format("2..{}, with fold policy {}", kMaxWindow, to_string(c.fold_policy)),
                      c.ring_rows);
    }
    if (largest_window(c) < 1 || largest_window(c) >= c.ring_rows) {
      return expected(
          "max_window",
          fmt::format("0..{}, less than ring_rows, with fold policy {}", c.ring_rows - 1, to_string(c.fold_policy)),
          c.max_window);
    }
  }
  if (c.rings < 0 || c.rings > kMaxSlots) return expected("rings", fmt::format("0..{}", kMaxSlots), c.rings);
  if (c.rings > 0 && c.fold_policy != FoldPolicy::on_commit) {
    return expected("rings",
                    fmt::format("0 with fold policy {} (a history needs its slot's ring)", to_string(c.fold_policy)),
                    c.rings);
  }
  if (c.ring_u && c.fold_policy != FoldPolicy::lazy) {
    return {Code::invalid_argument,
            fmt::format("ring_u: expected false with fold policy {} (it is for lazy), found true",
                        to_string(c.fold_policy))};
  }
  if (c.ring_a && c.kind != MixerKind::kda) {
    return {
        Code::invalid_argument,
        fmt::format("ring_a: expected nothing with mixer kind gdn (it is for kda), found {}", to_string(*c.ring_a))};
  }
  if (c.ring_a && !is_float(*c.ring_a)) {
    return {Code::invalid_argument, fmt::format("ring_a: expected f32, bf16 or f16, found {}", to_string(*c.ring_a))};
  }
  if (c.conv_channels < 0) return expected("conv_channels", "0 or more", c.conv_channels);
  if (c.conv_channels > 0 && (c.conv_width < kMinConvWidth || c.conv_width > kMaxConvWidth)) {
    return expected("conv_width", fmt::format("{}..{}", kMinConvWidth, kMaxConvWidth), c.conv_width);
  }
  if (!is_float(c.state_dtype)) {
    return {Code::invalid_argument,
            fmt::format("state_dtype: expected f32, bf16 or f16, found {}", to_string(c.state_dtype))};
  }
  if (!is_float(c.act_dtype)) {
    return {Code::invalid_argument,
            fmt::format("act_dtype: expected f32, bf16 or f16, found {}", to_string(c.act_dtype))};
  }
  return {};
}

/// Products and sums that remember an overflow of 63 bits.
struct Checked {
  bool overflow = false;
  int64_t mul(std::initializer_list<int64_t> factors) {
    int64_t product = 1;
    for (int64_t f : factors) overflow |= __builtin_mul_overflow(product, f, &product);
    return product;
  }
  int64_t add(std::initializer_list<int64_t> terms) {
    int64_t sum = 0;
    for (int64_t t : terms) overflow |= __builtin_add_overflow(sum, t, &sum);
    return sum;
  }
};

}  // namespace

int64_t largest_window(const PoolConfig& c) {
  if (c.max_window != 0) return c.max_window;
  return c.fold_policy == FoldPolicy::on_commit ? c.ring_rows : c.ring_rows / 2;
}

Status make_layout(const PoolConfig& c, PoolLayout* layout) {
  if (Status s = check_config(c); !s.ok()) return s;
  const auto act = static_cast<int64_t>(size_of(c.act_dtype));
  const auto state = static_cast<int64_t>(size_of(c.state_dtype));
  const bool conv = c.conv_channels > 0;
  constexpr int64_t kInt = sizeof(int32_t), kFloat = sizeof(float);

  Checked n;
  PoolLayout out;
  auto& bytes = out.slot_bytes;
  bytes[kPending] = kInt;
  bytes[kConvPending] = conv ? kInt : 0;
  bytes[kBase] = bytes[kLive] = bytes[kCuts] = c.fold_policy == FoldPolicy::on_commit ? 0 : kInt;
  bytes[kState] = n.mul({c.HV, c.V, c.K, state});
  bytes[kRingK] = n.mul({c.ring_rows, c.H, c.K, act});
  bytes[kRingV] = n.mul({c.ring_rows, c.HV, c.V, act});
  const int64_t gate = c.ring_a ? static_cast<int64_t>(size_of(*c.ring_a)) : kFloat;
  bytes[kRingGate] = n.mul({c.ring_rows, c.HV, c.kind == MixerKind::kda ? c.K : 1, gate});
  bytes[kRingBeta] = n.mul({c.ring_rows, c.HV, kFloat});
  bytes[kRingU] = c.ring_u ? n.mul({c.ring_rows, c.HV, c.V, kFloat}) : 0;
  bytes[kConvState] = conv ? n.mul({c.conv_channels, c.conv_width - 1, act}) : 0;
  bytes[kConvRing] = conv ? n.mul({largest_window(c), c.conv_channels, act}) : 0;

  if (c.rings > 0) {
    bytes[kSlotOfRing] = bytes[kRingOfSlot] = kInt;
    bytes[kConvSlotOfRing] = bytes[kConvRingOfSlot] = conv ? kInt : 0;
    out.of_slot = kAllSections & ~(kRings | kOwners);
    out.exported = kCheckpoint;
  }

  std::array<int64_t, kSectionCount> total{};
  for (int part = 0; part < kSectionCount; ++part) {
    out.count[part] = c.rings > 0 && (kByRing >> part & 1) ? c.rings : c.slots;
    total[part] = n.mul({c.layers, out.count[part], bytes[part]});
    const int64_t one = n.mul({c.layers, bytes[part]});
    if (out.of_slot >> part & 1) out.slot_total = n.add({out.slot_total, one});
    if (out.exported >> part & 1) out.export_total = n.add({out.export_total, one});
  }
  if (c.ring_a) out.gate_count = n.mul({c.layers, c.HV, c.K + 1});
  const int64_t ring = n.add({total[kRingK], total[kRingV], total[kRingGate], total[kRingBeta], total[kRingU],
                              n.mul({out.gate_count, kFloat})});
  const int64_t conv_bytes = n.add({total[kConvState], total[kConvRing]});
  // Generation and free list, and one byte that says whether the slot is taken. A device has the generations once more.
  const bool device = c.device != Device::cpu;
  const int64_t cursors = n.add({total[kPending], total[kConvPending], total[kBase], total[kLive], total[kCuts],
                                 total[kSlotOfRing], total[kRingOfSlot], total[kConvSlotOfRing], total[kConvRingOfSlot],
                                 n.mul({c.slots, (device ? 3 : 2) * kInt + 1})});
  if (device && c.fold_policy != FoldPolicy::on_commit) out.due_count = n.add({1, n.mul({c.layers, c.slots})});
  const int64_t scratch = n.add(
      {out.slot_total, n.mul({c.slots, 3 * kInt}), n.mul({out.due_count, kInt}), device ? kIndexCount * kInt : 0});
  n.add({total[kState], ring, conv_bytes, cursors, scratch});
  if (n.overflow) {
    return {
        Code::invalid_argument,
        fmt::format("config: expected a pool of less than 2^63 bytes, found layers {} x slots {} x HV {} x V {} x K {}",
                    c.layers, c.slots, c.HV, c.V, c.K)};
  }
  out.bytes = {.state = static_cast<size_t>(total[kState]),
               .ring = static_cast<size_t>(ring),
               .conv = static_cast<size_t>(conv_bytes),
               .cursors = static_cast<size_t>(cursors),
               .scratch = static_cast<size_t>(scratch)};
  *layout = out;
  return {};
}

Status pool_bytes(const PoolConfig& config, PoolBytes* bytes) {
  PoolLayout layout;
  if (Status s = make_layout(config, &layout); !s.ok()) return s;
  *bytes = layout.bytes;
  return {};
}

}  // namespace ringfold
