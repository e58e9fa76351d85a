// Pairs of fp16.
#pragma once

#include <bit>
#include <cstdint>

struct __half2 {
  uint16_t x, y;
};
inline float2 __half22float2(__half2 pair) {
  return {static_cast<float>(std::bit_cast<_Float16>(pair.x)), static_cast<float>(std::bit_cast<_Float16>(pair.y))};
}
inline __half2 __floats2half2_rn(float x, float y) {
  const auto narrow = [](float f) -> uint16_t {
    return f != f ? uint16_t{0x7fff} : std::bit_cast<uint16_t>(static_cast<_Float16>(f));
  };
  return {narrow(x), narrow(y)};
}
