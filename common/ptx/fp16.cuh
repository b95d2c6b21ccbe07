// Two floats as two fp16 in a word, the first in the low half.
//
//   pack_halves(x0, x1);      // rounded to nearest even; from 65520 on infinite
//   halves_to_floats(pair);   // exact
//
// An fp16 has 10 bits of mantissa from 2^-14 on, and below that what is left of them: multiples of
// 2^-24. PTX ISA, "Data Movement and Conversion Instructions: cvt".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#ifdef ATTN_SIMT
#include "simt/fp16.hpp"
#endif

namespace attn {

__device__ __forceinline__ uint32_t pack_halves(float x0, float x1) {
#ifdef ATTN_SIMT
  return simt::to_fp16(x0) | uint32_t(simt::to_fp16(x1)) << 16;
#else
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(x1), "f"(x0));
  return pair;
#endif
}

__device__ __forceinline__ float2 halves_to_floats(uint32_t pair) {
#ifdef ATTN_SIMT
  return {simt::from_fp16(pair & 0xffffu), simt::from_fp16(pair >> 16)};
#else
  float2 x;
  asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(x.x), "=f"(x.y)
      : "r"(pair));
  return x;
#endif
}

}  // namespace attn
