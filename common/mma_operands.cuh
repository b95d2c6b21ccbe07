// Rows in shared memory as operands of tensor cores: what a lane of a warp holds (ptx/mma.cuh). Where
// element x of a row lies is what rows.at(row, x) says, as of SwizzledRows.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "common/pairs.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"

namespace attn {

// Rows lane / 4 and lane / 4 + 8 of 16, columns 2 (lane % 4) and the next of every eight.
template <int kTiles, class Rows>
__device__ __forceinline__ void load_rows(uint32_t (&x)[kTiles][2], const Rows& rows) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kTiles; n += 2) {
    uint32_t pairs[4];
    ldmatrix(pairs, rows.at(lane % 16, lane / 16 * 8 + n * 8));
    x[n][0] = pairs[0];
    x[n][1] = pairs[1];
    x[n + 1][0] = pairs[2];
    x[n + 1][1] = pairs[3];
  }
}
template <int kTiles, class Rows>
__device__ __forceinline__ void load_rows(float2 (&x)[kTiles][2], const Rows& rows) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      x[n][i] = load_pair(rows.at(lane / 4 + i * 8, n * 8 + lane % 4 * 2));
    }
  }
}

// 16 rows and 16 columns, transposed, as an A operand: x[i] has rows 2 (lane % 4) + i / 2 * 8 and
// the next of column lane / 4 + i % 2 * 8. So x[0] and x[2] are also the B operand of the first
// 8 columns, and x[1] and x[3] that of the others.
template <class Rows>
__device__ __forceinline__ void load_transposed(uint32_t (&x)[4], const Rows& rows) {
  const int lane = threadIdx.x % 32;
  ldmatrix_trans(x, rows.at(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8));
}
template <class Rows>
__device__ __forceinline__ void load_transposed(float2 (&x)[4], const Rows& rows) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = lane % 4 * 2 + i / 2 * 8, column = lane / 4 + i % 2 * 8;
    x[i] = {*rows.at(row, column), *rows.at(row + 1, column)};
  }
}

// The same of numbers that are the sum of two bf16, `high` and `low`, or in_fp16 one fp16 each, in
// `high`, which is such a sum too: its first part, or its second. A lane gives the address of a row.
__device__ __forceinline__ void load_bf16_part(uint32_t (&x)[4], const uint32_t* high,
                                               const uint32_t* low, int offset, bool in_fp16,
                                               int part) {
  ldmatrix_trans(x, (part == 0 || in_fp16 ? high : low) + offset);
  if (in_fp16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = halves_to_floats(x[i]);
      const uint32_t rounded = pack_high(pair.x, pair.y);
      x[i] = part == 0 ? rounded : pack_low(pair.x, pair.y, rounded);
    }
  }
}

// d += a b in tf32, of floats b that are each the sum of two tf32.
__device__ __forceinline__ void add_product_of_floats(float (&d)[4], const uint32_t (&a)[4],
                                                      float b0, float b1) {
  uint32_t high[2], low[2];
  split_tf32(b0, high[0], low[0]);
  split_tf32(b1, high[1], low[1]);
  mma_m16n8k8_tf32(d, a, high, d);
  mma_m16n8k8_tf32(d, a, low, d);
}

// 16 rows and 16 columns of v as the tensor core takes them: as B operands of scores v, one for each
// half of the columns, and as the A operand of v^T k. They are the same numbers in another order, and
// are read when they are needed. A float is the sum of two bf16.
template <class Rows>
__device__ __forceinline__ void load_values_b(uint32_t (&v)[1][2][2], const Rows& rows) {
  const int lane = threadIdx.x % 32;
  uint32_t b[4];
  ldmatrix_trans(b, rows.at(lane % 16, lane / 16 * 8));
#pragma unroll
  for (int i = 0; i < 4; ++i) v[0][i / 2][i % 2] = b[i];
}
template <class Rows>
__device__ __forceinline__ void load_values_a(uint32_t (&v)[1][4], const Rows& rows) {
  load_transposed(v[0], rows);
}

// Rows 2 (lane % 4) + 8 i and the next of one column of each half.
template <class Rows, class Take>
__device__ __forceinline__ void split_values(const Rows& rows, Take&& take) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane % 4 * 2 + i * 8, column = lane / 4 + half * 8;
      const float x0 = *rows.at(row, column), x1 = *rows.at(row + 1, column);
      const uint32_t high = pack_high(x0, x1);
      take(half, i, high, pack_low(x0, x1, high));
    }
  }
}
template <class Rows>
__device__ __forceinline__ void load_values_b(uint32_t (&v)[2][2][2], const Rows& rows) {
  split_values(rows, [&](int half, int i, uint32_t high, uint32_t low) {
    v[0][half][i] = high;
    v[1][half][i] = low;
  });
}
template <class Rows>
__device__ __forceinline__ void load_values_a(uint32_t (&v)[2][4], const Rows& rows) {
  split_values(rows, [&](int half, int i, uint32_t high, uint32_t low) {
    v[0][2 * i + half] = high;
    v[1][2 * i + half] = low;
  });
}

// x y^T of 8 columns of 16 rows each, added to `sums`: x and y are accumulators of products, and the
// operands of m16n8k8 as they are. Of that A has columns t and t + 4 in a lane, B rows t and t + 4;
// which columns are called so does not matter, and here it is the 2t and 2t + 1 that the lane has.
__device__ __forceinline__ void add_products_of_rows(float (&sums)[2][4], const float (&x)[4],
                                                     const float (&y)[4]) {
  const uint32_t a[4] = {__float_as_uint(x[0]), __float_as_uint(x[2]), __float_as_uint(x[1]),
                         __float_as_uint(x[3])};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t b[2] = {__float_as_uint(y[2 * half]), __float_as_uint(y[2 * half + 1])};
    mma_m16n8k8_tf32(sums[half], a, b, sums[half]);
  }
}

}  // namespace attn
