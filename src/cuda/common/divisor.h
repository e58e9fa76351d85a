// Division by a number that only the host knows.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace ringfold::cuda {

/// n / divisor for n * divisor < 2^32.
struct Divisor {
  uint32_t magic = 0;  // 0: divisor 1

  Divisor() = default;
  explicit Divisor(int divisor)
      : magic(divisor == 1 ? 0 : static_cast<uint32_t>((uint64_t{1} << 32) / static_cast<uint32_t>(divisor) + 1)) {}

  RF_HD int divides(int n) const {
    return magic == 0 ? n : static_cast<int>(static_cast<uint64_t>(static_cast<uint32_t>(n)) * magic >> 32);
  }
};

}  // namespace ringfold::cuda
