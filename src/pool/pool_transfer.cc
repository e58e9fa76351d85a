// A slot as bytes: a header of little-endian integers that says what it is, then every section, layer by layer.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/check_view.h"
#include "core/history.h"
#include "pool/pool_impl.h"

namespace ringfold {
namespace {

static_assert(std::endian::native == std::endian::little, "exported slots are little-endian");

constexpr uint64_t kMagic = 0x31544c53444c4652;  // "RFLDSLT1"
constexpr int64_t kVersion = 4;                  // 1 had no histories, 2 no u, 3 no a
constexpr int64_t kOldest = 3;                   // that is read: what it has no word for is 0

/// One number of the header that has to be the same on both sides.
struct Field {
  const char* name;
  int64_t value;
};

constexpr int kFieldCount = 16;
/// Magic, the fields, bytes of the payload, checksum.
constexpr size_t kHeaderWords = 1 + kFieldCount + 2;
constexpr size_t kHeaderBytes = kHeaderWords * sizeof(uint64_t);
constexpr size_t kChecksumAt = kHeaderBytes - sizeof(uint64_t);

std::array<Field, kFieldCount> fields_of(const PoolConfig& c) {
  const bool conv = c.conv_channels > 0, rings = c.rings == 0;  // are there rings in the bytes?
  return {{{"version", kVersion},
           {"layers", c.layers},
           {"H", c.H},
           {"HV", c.HV},
           {"K", c.K},
           {"V", c.V},
           {"mixer kind", static_cast<int64_t>(c.kind)},
           {"state_dtype", static_cast<int64_t>(c.state_dtype)},
           {"act_dtype", static_cast<int64_t>(c.act_dtype)},
           {"ring_rows", rings ? c.ring_rows : 0},
           {"conv_channels", c.conv_channels},
           {"conv_width", conv ? c.conv_width : 0},
           {"qk_l2norm and state_rounding", (c.qk_l2norm ? 1 : 0) + 2 * static_cast<int64_t>(c.state_rounding)},
           {"fold_policy", static_cast<int64_t>(c.fold_policy)},
           {"max_window", rings ? c.max_window : 0},
           {"ring_u and ring_a", (c.ring_u ? 1 : 0) + (c.ring_a ? 2 * (1 + static_cast<int64_t>(*c.ring_a)) : 0)}}};
}

uint64_t load_word(std::span<const std::byte> bytes, size_t at) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data() + at, sizeof(word));
  return word;
}

void store_word(std::span<std::byte> bytes, size_t at, uint64_t word) {
  std::memcpy(bytes.data() + at, &word, sizeof(word));
}

/// FNV-1a over words of eight bytes (the tail padded with zeros). Each step is a bijection of the running value, so a
/// change within one word always shows. The eight bytes at `skip` do not count.
uint64_t checksum(std::span<const std::byte> bytes, size_t skip) {
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    if (at == skip) continue;
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof(word), bytes.size() - at));
    hash = (hash ^ word) * 0x100000001b3;
  }
  return hash;
}

bool is_ring(int part) { return (part >= kRingK && part <= kRingU) || part == kConvRing; }

Status bad(const char* what, const std::string& expected, const std::string& found) {
  return {Code::invalid_argument, fmt::format("bytes: expected {} {}, found {}", what, expected, found)};
}

Status check_header(const PoolConfig& config, std::span<const std::byte> bytes) {
  if (load_word(bytes, 0) != kMagic)
    return {Code::invalid_argument, "bytes: expected an exported slot, found other data"};
  size_t at = sizeof(uint64_t);
  for (const Field& field : fields_of(config)) {
    const auto found = static_cast<int64_t>(load_word(bytes, at));
    const bool version = at == sizeof(uint64_t);
    if (version && found >= kOldest && found < kVersion) {
      at += sizeof(uint64_t);
      continue;
    }
    if (found != field.value) return bad(field.name, std::to_string(field.value), std::to_string(found));
    at += sizeof(uint64_t);
  }
  const uint64_t payload = load_word(bytes, at);
  if (payload != bytes.size() - kHeaderBytes) {
    return bad("bytes of payload", std::to_string(bytes.size() - kHeaderBytes), std::to_string(payload));
  }
  const uint64_t sum = load_word(bytes, kChecksumAt), own = checksum(bytes, kChecksumAt);
  if (sum != own) return bad("checksum", fmt::format("{:016x}", sum), fmt::format("{:016x}", own));
  return {};
}

/// The cursors lead the payload: pending lengths, those of the conv, and the history's three.
struct Cursors {
  int64_t pending = kNoWindow, conv_pending = kNoWindow, base = 0, live = 0;
};

Cursors cursors_of(const PoolConfig& c, std::span<const std::byte> payload, int64_t layer) {
  int64_t section = 0;
  const auto next = [&](bool there, int64_t absent) -> int64_t {
    if (!there) return absent;
    int32_t value = 0;
    std::memcpy(&value, payload.data() + (section++ * c.layers + layer) * static_cast<int64_t>(sizeof(value)),
                sizeof(value));
    return value;
  };
  const bool history = c.fold_policy != FoldPolicy::on_commit;
  Cursors found;
  found.pending = next(true, kNoWindow);
  found.conv_pending = next(c.conv_channels > 0, kNoWindow);
  found.base = next(history, 0);
  found.live = next(history, 0);
  return found;
}

Status check_cursors(const PoolConfig& c, std::span<const std::byte> payload) {
  const auto in_range = [](const char* what, int64_t low, int64_t high, int64_t found) {
    if (found >= low && found <= high) return Status{};
    return bad(what, fmt::format("{}..{}", low, high), std::to_string(found));
  };
  const bool history = c.fold_policy != FoldPolicy::on_commit;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const Cursors found = cursors_of(c, payload, layer);
    const auto pending = static_cast<int32_t>(found.pending);
    const int64_t window = history ? detail::window_length(pending) : pending;
    RINGFOLD_RETURN_IF_ERROR(in_range("pending rows in", kNoWindow, c.max_window, window));
    RINGFOLD_RETURN_IF_ERROR(in_range("pending conv rows in", kNoWindow, c.max_window, found.conv_pending));
    RINGFOLD_RETURN_IF_ERROR(in_range("history base in", 0, c.ring_rows - 1, found.base));
    // What every call leaves: room for a window behind the history.
    RINGFOLD_RETURN_IF_ERROR(in_range("history rows in", 0, history ? c.ring_rows - c.max_window : 0, found.live));
  }
  return {};
}

/// Rows outside of history and window may hold what an earlier window, or request, left there.
void clear_unused_rows(const PoolStore& p, std::byte* payload) {
  const PoolConfig& c = p.config;
  const auto layers = static_cast<size_t>(c.layers);
  std::byte* slot = payload;
  for (int part = 0; part < kSectionCount; ++part) {
    const auto size = static_cast<size_t>(p.layout.slot_bytes[part]);
    if (!is_ring(part) || size == 0) {
      slot += layers * size;
      continue;
    }
    const int64_t rows = part == kConvRing ? c.max_window : c.ring_rows;
    const size_t row_bytes = size / static_cast<size_t>(rows);
    for (size_t layer = 0; layer < layers; ++layer, slot += size) {
      const Cursors at =
          cursors_of(c, {payload, static_cast<size_t>(p.layout.slot_total)}, static_cast<int64_t>(layer));
      const auto pending = static_cast<int32_t>(at.pending);
      int64_t used = std::max<int64_t>(detail::window_length(pending), 0) + at.live;
      if (part == kConvRing) used = std::max<int64_t>(at.conv_pending, 0);
      const int64_t first = part == kConvRing ? 0 : at.base;
      for (int64_t i = std::clamp<int64_t>(used, 0, rows); i < rows; ++i) {
        std::memset(slot + static_cast<size_t>((first + i) % rows) * row_bytes, 0, row_bytes);
      }
    }
  }
}

}  // namespace

size_t Pool::export_size() const { return kHeaderBytes + static_cast<size_t>(impl_->layout.export_total); }

Status Pool::export_slot(Slot slot, std::span<std::byte> bytes) const {
  const PoolStore& p = *impl_;
  if (Status s = p.check("slot", slot); !s.ok()) return s;
  if (bytes.size() != export_size()) {
    return {Code::invalid_argument, fmt::format("bytes: expected {} bytes, found {}", export_size(), bytes.size())};
  }
  store_word(bytes, 0, kMagic);
  size_t at = sizeof(uint64_t);
  for (const Field& field : fields_of(p.config)) {
    store_word(bytes, at, static_cast<uint64_t>(field.value));
    at += sizeof(uint64_t);
  }
  store_word(bytes, at, static_cast<uint64_t>(p.layout.export_total));

  std::byte* const payload = bytes.data() + kHeaderBytes;
  std::byte* to = payload;
  const auto layers = static_cast<size_t>(p.config.layers);
  for (int part = 0; part < kSectionCount; ++part) {
    const auto size = static_cast<size_t>(p.layout.slot_bytes[part]);
    if (size == 0 || !(p.layout.exported >> part & 1)) continue;
    RINGFOLD_RETURN_IF_ERROR(
        p.memory->copy_rows(to, size, p.at(part, 0, slot.id), p.pitch(part), size, layers, p.stream));
    to += layers * size;
  }
  RINGFOLD_RETURN_IF_ERROR(p.memory->synchronise(p.stream));
  if (!p.by_row()) clear_unused_rows(p, payload);
  store_word(bytes, kChecksumAt, checksum(bytes, kChecksumAt));
  return {};
}

Status Pool::import_slot(std::span<const std::byte> bytes, Slot slot) {
  PoolStore& p = *impl_;
  if (Status s = p.check("slot", slot); !s.ok()) return s;
  if (bytes.size() != export_size()) {
    // A header that can be read says better than a length what differs.
    if (bytes.size() >= kHeaderBytes) {
      if (Status s = check_header(p.config, bytes); !s.ok()) return s;
    }
    return {Code::invalid_argument, fmt::format("bytes: expected {} bytes, found {}", export_size(), bytes.size())};
  }
  if (Status s = check_header(p.config, bytes); !s.ok()) return s;
  if (!p.by_row()) RINGFOLD_RETURN_IF_ERROR(check_cursors(p.config, bytes.subspan(kHeaderBytes)));

  const std::byte* from = bytes.data() + kHeaderBytes;
  const auto layers = static_cast<size_t>(p.config.layers);
  for (int part = 0; part < kSectionCount; ++part) {
    const auto size = static_cast<size_t>(p.layout.slot_bytes[part]);
    if (size == 0 || !(p.layout.exported >> part & 1)) continue;
    RINGFOLD_RETURN_IF_ERROR(
        p.memory->copy_rows(p.at(part, 0, slot.id), p.pitch(part), from, size, size, layers, p.stream));
    from += layers * size;
  }
  if (p.by_row()) {
    SlotMover windows(p, kCursors);
    windows.add(detail::kCleared, slot.id);
    RINGFOLD_RETURN_IF_ERROR(windows.finish());
  }
  return p.memory->synchronise(p.stream);
}

}  // namespace ringfold
