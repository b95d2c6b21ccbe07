// fma_bf16x2: a b + c of two bf16, twice: words hold two each. Rounded to bf16, to nearest even.
//
// PTX ISA, "Half Precision Floating Point Instructions: fma". Needs compute capability 8.0; compiled
// for less, it traps.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace attn {

__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
#ifdef ATTN_SIMT
  const auto float_of = [](uint32_t x, int half) {
    return __uint_as_float(half == 0 ? x << 16 : x & 0xffff0000u);
  };
  const auto fma = [&](int half) {
    return float_of(a, half) * float_of(b, half) + float_of(c, half);
  };
  const __nv_bfloat162 pair = __floats2bfloat162_rn(fma(0), fma(1));
  uint32_t bits;
  __builtin_memcpy(&bits, &pair, sizeof bits);
  return bits;
#elif __CUDA_ARCH__ >= 800
  uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
#else
  __trap();
  return 0;
#endif
}

}  // namespace attn
