// fp16 by its bits: 1 sign, 5 of exponent, 10 of mantissa.
#pragma once

#include <cmath>
#include <cstdint>

#include "simt/device_functions.hpp"

namespace simt {

// To nearest, ties to even; every NaN becomes 0x7fff, as in CUDA.
inline uint16_t to_fp16(float x) {
  const uint32_t bits = __float_as_uint(x);
  const uint16_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520, halfway to 2^16, and more
  // Below 2^-14 there are only multiples of 2^-24.
  if (magnitude < 0x38800000u) return sign | uint16_t(std::nearbyint(std::fabs(x) * 0x1p24f));
  constexpr uint32_t kBias = (127 - 15) << 23;
  return sign | uint16_t((magnitude - kBias + 0xfffu + (magnitude >> 13 & 1)) >> 13);
}

inline float from_fp16(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000u) << 16, rest = uint32_t(bits & 0x7fffu) << 13;
  if (rest >= 0x0f800000u) return __uint_as_float(sign | 0x7f800000u | rest);  // infinite, or NaN
  return __uint_as_float(sign | __float_as_uint(__uint_as_float(rest) * 0x1p112f));
}

}  // namespace simt
