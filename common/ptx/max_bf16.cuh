// max_bf16x2: the larger of two bf16, twice: words hold two each. NaN if either is NaN.
//
// PTX ISA, "Half Precision Floating Point Instructions: max". Needs compute capability 8.0; compiled
// for less, it traps.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace attn {

__device__ __forceinline__ uint32_t max_bf16x2(uint32_t a, uint32_t b) {
#ifdef ATTN_SIMT
  const auto larger = [](uint32_t x, uint32_t y) {  // of floats whose lower halves are zero
    const float fx = __uint_as_float(x), fy = __uint_as_float(y);
    if (fx != fx || fy != fy) return 0x7fff0000u;
    return fx > fy ? x : y;
  };
  return larger(a << 16, b << 16) >> 16 | larger(a & 0xffff0000u, b & 0xffff0000u);
#elif __CUDA_ARCH__ >= 800
  uint32_t max;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(max) : "r"(a), "r"(b));
  return max;
#else
  __trap();
  return 0;
#endif
}

// The absolute values.
__device__ __forceinline__ uint32_t abs_bf16x2(uint32_t x) { return x & 0x7fff7fffu; }

}  // namespace attn
