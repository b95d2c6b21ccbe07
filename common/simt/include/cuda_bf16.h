// bfloat16: the upper half of a float. The conversions are named and round as in CUDA (to nearest,
// ties to even; every NaN becomes 0x7fff).
#pragma once

#include <cstdint>

#include "simt/device_functions.hpp"

struct __nv_bfloat16 {
  unsigned short bits;

  __nv_bfloat16() = default;
  __nv_bfloat16(float x) : bits(round(x)) {}
  operator float() const { return __uint_as_float(unsigned(bits) << 16); }

 private:
  static unsigned short round(float x) {
    const unsigned u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (unsigned short)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
  }
};

// CUDA rounds these to bf16, the conversion to float above would not: spell out which is meant.
__nv_bfloat16 operator+(__nv_bfloat16, __nv_bfloat16) = delete;
__nv_bfloat16 operator-(__nv_bfloat16, __nv_bfloat16) = delete;
__nv_bfloat16 operator*(__nv_bfloat16, __nv_bfloat16) = delete;
__nv_bfloat16 operator/(__nv_bfloat16, __nv_bfloat16) = delete;

struct __attribute__((may_alias, aligned(4))) __nv_bfloat162 {
  __nv_bfloat16 x, y;
  SIMT_CONSTRUCTOR(__nv_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) : x(x), y(y){})
  SIMT_COPIED_WHOLE(__nv_bfloat162, unsigned short)
};

inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }

inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {v.x, v.y}; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {v.x, v.y}; }
inline float __low2float(__nv_bfloat162 v) { return v.x; }
inline float __high2float(__nv_bfloat162 v) { return v.y; }

inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  __nv_bfloat16 x;
  x.bits = bits;
  return x;
}
