// The header of an exported slot, and its checksum: FNV-1a over words, its own left out. Written here again, apart from
// src/pool/pool_transfer.cc, to make bad slots that it approves.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "support/buffers.h"

namespace ringfold::test {

constexpr size_t kHeader = 19 * 8, kChecksumAt = kHeader - 8;

inline void sign(Bytes* bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t at = 0; at < bytes->size(); at += 8) {
    if (at == kChecksumAt) continue;
    uint64_t word = 0;
    std::memcpy(&word, bytes->data() + at, std::min<size_t>(8, bytes->size() - at));
    hash = (hash ^ word) * 0x100000001b3;
  }
  std::memcpy(bytes->data() + kChecksumAt, &hash, 8);
}

}  // namespace ringfold::test
