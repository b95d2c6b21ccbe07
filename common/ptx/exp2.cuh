// exp2_approx: 2^x by the special function unit, to about 2 units in the last place; 0 for x below
// -126, also for -inf. (exp2f spends three more instructions on denormal results.)
//
// PTX ISA, "Floating Point Instructions: ex2".
#pragma once

#include <cuda_runtime.h>

namespace attn {

constexpr float kLog2e = 1.4426950408889634f;  // e^x = 2^(x kLog2e)

__device__ __forceinline__ float exp2_approx(float x) {
#ifdef ATTN_SIMT
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

}  // namespace attn
