// Rows in shared memory as operands of tensor cores: what a lane of a warp holds (ptx/mma.cuh).
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "common/pairs.cuh"
#include "common/ptx/ldmatrix.cuh"

namespace attn {

// Rows lane / 4 and lane / 4 + 8 of 16, columns 2 (lane % 4) and the next of every eight.
template <int kTiles>
__device__ __forceinline__ void load_rows(uint32_t (&x)[kTiles][2], const __nv_bfloat16* smem,
                                          int pitch) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kTiles; n += 2) {
    uint32_t pairs[4];
    ldmatrix(pairs, smem + lane % 16 * pitch + lane / 16 * 8 + n * 8);
    x[n][0] = pairs[0];
    x[n][1] = pairs[1];
    x[n + 1][0] = pairs[2];
    x[n + 1][1] = pairs[3];
  }
}
template <int kTiles>
__device__ __forceinline__ void load_rows(float2 (&x)[kTiles][2], const float* smem, int pitch) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      x[n][i] = load_pair(smem + (lane / 4 + i * 8) * pitch + n * 8 + lane % 4 * 2);
    }
  }
}

// 16 rows and 16 columns of v as the tensor core takes them: as B operands of scores v, one for each
// half of the columns, and as the A operand of v^T k. They are the same numbers in another order, and
// are read when they are needed. A float is the sum of two bf16.
__device__ __forceinline__ void load_values_b(uint32_t (&v)[1][2][2], const __nv_bfloat16* v_smem,
                                              int pitch) {
  const int lane = threadIdx.x % 32;
  uint32_t b[4];
  ldmatrix_trans(b, v_smem + lane % 16 * pitch + lane / 16 * 8);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[0][i / 2][i % 2] = b[i];
}
__device__ __forceinline__ void load_values_a(uint32_t (&v)[1][4], const __nv_bfloat16* v_smem,
                                              int pitch) {
  const int lane = threadIdx.x % 32;
  ldmatrix_trans(v[0], v_smem + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8);
}

// Rows 2 (lane % 4) + 8 i and the next of one column of each half.
template <class Take>
__device__ __forceinline__ void split_values(const float* v_smem, int pitch, Take&& take) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* x = v_smem + (lane % 4 * 2 + i * 8) * pitch + lane / 4 + half * 8;
      const uint32_t high = pack_high(x[0], x[pitch]);
      take(half, i, high, pack_low(x[0], x[pitch], high));
    }
  }
}
__device__ __forceinline__ void load_values_b(uint32_t (&v)[2][2][2], const float* v_smem,
                                              int pitch) {
  split_values(v_smem, pitch, [&](int half, int i, uint32_t high, uint32_t low) {
    v[0][half][i] = high;
    v[1][half][i] = low;
  });
}
__device__ __forceinline__ void load_values_a(uint32_t (&v)[2][4], const float* v_smem, int pitch) {
  split_values(v_smem, pitch, [&](int half, int i, uint32_t high, uint32_t low) {
    v[0][2 * i + half] = high;
    v[1][2 * i + half] = low;
  });
}

}  // namespace attn
