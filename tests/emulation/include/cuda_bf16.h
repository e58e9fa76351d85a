// Pairs of bf16, as bits.
#pragma once

#include <bit>
#include <cstdint>

struct __nv_bfloat162 {
  uint16_t x, y;
};
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  const auto narrow = [](float f) -> uint16_t {
    if (f != f) return 0x7fff;
    const auto bits = std::bit_cast<uint32_t>(f);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  };
  return {narrow(x), narrow(y)};
}
