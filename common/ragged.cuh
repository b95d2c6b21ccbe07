// What a kernel that works on whole tiles needs where tensors end as they like: rows to shared memory,
// outputs and states between accumulators of mma.sync (ptx/mma.cuh) and tensors. Of tensors of bf16.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "common/pairs.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/tensor_view.cuh"

namespace attn {

// Elements that a row has more in shared memory: with 16 bytes more, eight rows begin in different
// banks, as ldmatrix reads them.
constexpr int kPad = 8;

// [doc:stage_padded_rows]
// Starts the copy of rows [first, last) of a head, at most kRows, from `column` on, to shared memory,
// by kThreads threads. What lies outside of x arrives as zeros, which add nothing to any sum.
// aligned: every row begins on 16 bytes and holds whole 16 bytes.
template <int kThreads, int kRows, int kPitch>
__device__ __forceinline__ void stage_padded_rows(__nv_bfloat16 (&x_smem)[kRows][kPitch],
                                                  const TensorView<const __nv_bfloat16>& x,
                                                  int64_t b, int64_t h, int first, int last,
                                                  int column, bool aligned, int thread) {
  constexpr int kVector = kElementsPer16Bytes<__nv_bfloat16>, kPerRow = (kPitch - kPad) / kVector;
  constexpr int kRowStep = kThreads / kPerRow;
  static_assert(kThreads % kPerRow == 0 && kRows % kRowStep == 0);
  const int rows = static_cast<int>(x.L < last ? x.L : last) - first;
  const int columns = static_cast<int>(x.D) - column;
  const int d = thread % kPerRow * kVector;
  const __nv_bfloat16* source = x.row(b, h, first + thread / kPerRow) + column + d;
#pragma unroll
  for (int pass = 0; pass < kRows / kRowStep; ++pass) {
    const int row = thread / kPerRow + pass * kRowStep;
    const bool inside = row < rows && d < columns;
    if (aligned) {
      cp_async<16>(&x_smem[row][d], inside ? source : x.data, inside);
    } else {  // element by element, and the thread waits for them
#pragma unroll 1
      for (int i = 0; i < kVector; ++i) {
        const bool there = inside && d + i < columns;
        x_smem[row][d + i] = there ? source[i] : __nv_bfloat16(0.0f);
      }
    }
    source += kRowStep * x.stride_l;
  }
}
// [/doc:stage_padded_rows]

// [doc:store_outputs]
// Stores 16 rows and 8 kTiles columns of outputs, as accumulators, from row0 and m0 on; or adds them
// to what is there. kPairs: it may store two at a time, as every row begins on 16 bytes and holds
// whole 16 bytes, and is not to add. Known beforehand: then a store is an instruction without a
// branch, and the compiler can go on with what comes after it.
template <bool kPairs, int kTiles>
__device__ __forceinline__ void store_outputs(const TensorView<__nv_bfloat16>& o,
                                              const float (&x)[kTiles][4], int64_t b, int64_t h,
                                              int row0, int m0, bool accumulate) {
  const int lane = threadIdx.x % 32;
  const int row = row0 + lane / 4, m = m0 + lane % 4 * 2;
  __nv_bfloat16* const target = o.row(b, h, row) + m;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      __nv_bfloat16* y = target + i * 8 * o.stride_l + n * 8;
      const float y0 = x[n][2 * i], y1 = x[n][2 * i + 1];
      const bool first = row + i * 8 < o.L && m + n * 8 < o.D;
      const bool second = row + i * 8 < o.L && m + n * 8 + 1 < o.D;
      if constexpr (kPairs) {
        if (first) store_pair(y, y0, y1);
      } else {
        if (first) y[0] = __nv_bfloat16(accumulate ? float(y[0]) + y0 : y0);
        if (second) y[1] = __nv_bfloat16(accumulate ? float(y[1]) + y1 : y1);
      }
    }
  }
}
// [/doc:store_outputs]

// S: a state [E, M], from column m0 on, transposed, as accumulators: [tile of 16 columns][tile of 8
// rows][element]. Calls visit(S, x) for each element that the lane holds and the tensor has; x is its
// place there.
template <int kTiles, int kEights, class T, class Visit>
__device__ __forceinline__ void visit_state(float (&S)[kTiles][kEights][4],
                                            const TensorView<T>& state, int64_t b, int64_t h,
                                            int m0, Visit&& visit) {
  if (state.data == nullptr) return;
  const int e0 = threadIdx.x % 4 * 2;
  m0 += threadIdx.x % 32 / 4;
  T* row = state.row(b, h, e0) + m0;
#pragma unroll
  for (int e = 0; e < kEights * 8; e += e % 2 == 0 ? 1 : 7) {
#pragma unroll
    for (int m = 0; m < kTiles * 16; m += 8) {
      const bool there = e0 + e < state.L && m0 + m < state.D;
      if (there) visit(S[m / 16][e / 8][m / 8 % 2 * 2 + e % 2], row[m]);
    }
    row += (e % 2 == 0 ? 1 : 7) * state.stride_l;
  }
}

}  // namespace attn
