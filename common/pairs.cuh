// Two neighbouring elements of a row, floats or bf16, and floats as the sum of two bf16 or tf32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "common/ptx/fp16.cuh"

namespace attn {

// As it lies in memory: two floats, or two bf16 in a word, the first in the low half.
template <class T>
using Pair = std::conditional_t<sizeof(T) == 4, float2, uint32_t>;

__device__ __forceinline__ float2 load_pair(const float* x) {
  return *reinterpret_cast<const float2*>(x);
}
__device__ __forceinline__ uint32_t load_pair(const __nv_bfloat16* x) {
  struct __attribute__((may_alias)) Word {
    uint32_t bits;
  };
  return reinterpret_cast<const Word*>(x)->bits;
}

__device__ __forceinline__ float2 to_floats(float2 pair) { return pair; }
__device__ __forceinline__ float2 to_floats(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

__device__ __forceinline__ void store_pair(float* x, float x0, float x1) {
  *reinterpret_cast<float2*>(x) = {x0, x1};
}
__device__ __forceinline__ void store_pair(__nv_bfloat16* x, float x0, float x1) {
  *reinterpret_cast<__nv_bfloat162*>(x) = __floats2bfloat162_rn(x0, x1);
}

// Two floats rounded to bf16, the first in the low half; and what that leaves of them.
__device__ __forceinline__ uint32_t pack_high(float x0, float x1) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x0, x1);
  uint32_t bits;
  __builtin_memcpy(&bits, &pair, sizeof bits);
  return bits;
}
__device__ __forceinline__ uint32_t pack_low(float x0, float x1, uint32_t high) {
  return pack_high(x0 - __uint_as_float(high << 16), x1 - __uint_as_float(high & 0xffff0000u));
}

// A float as the sum of two numbers of which tf32 keeps all, but for the last bits of the second.
__device__ __forceinline__ void split_tf32(float x, uint32_t& high, uint32_t& low) {
  high = __float_as_uint(x) & 0xffffe000u;
  low = __float_as_uint(x - __uint_as_float(high));
}

// Two bf16 as two fp16: exact from 2^-17 up to 65504.
__device__ __forceinline__ uint32_t bf16_to_halves(uint32_t pair) {
  const float2 x = to_floats(pair);
  return pack_halves(x.x, x.y);
}

}  // namespace attn
