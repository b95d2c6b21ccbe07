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

// [doc:stage_rows]
// Starts the copy of rows [first, last) of a head, at most kRows, from `column` on, to shared memory,
// by kThreads threads. What lies outside of x arrives as zeros, which add nothing to any sum.
// aligned: every row begins on 16 bytes and holds whole 16 bytes.
template <int kThreads, int kRows, int kPitch>
__device__ __forceinline__ void stage_rows(__nv_bfloat16 (&x_smem)[kRows][kPitch],
                                           const TensorView<const __nv_bfloat16>& x, int64_t b,
                                           int64_t h, int first, int last, int column, bool aligned,
                                           int thread) {
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
// [/doc:stage_rows]

// Stores 16 rows and 8 kTiles columns of outputs, as accumulators, from row0 and m0 on; or adds them
// to what is there. aligned: as above.
template <int kTiles>
__device__ __forceinline__ void store_outputs(const TensorView<__nv_bfloat16>& o,
                                              const float (&x)[kTiles][4], int64_t b, int64_t h,
                                              int row0, int m0, bool aligned, bool accumulate) {
  const int lane = threadIdx.x % 32;
  const int row = row0 + lane / 4, m = m0 + lane % 4 * 2;
  __nv_bfloat16* const target = o.row(b, h, row) + m;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (row + i * 8 >= o.L) break;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      __nv_bfloat16* y = target + i * 8 * o.stride_l + n * 8;
      if (aligned && !accumulate) {
        if (m + n * 8 < o.D) store_pair(y, x[n][2 * i], x[n][2 * i + 1]);
        continue;
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (m + n * 8 + j >= o.D) break;
        y[j] = __nv_bfloat16(x[n][2 * i + j] + (accumulate ? float(y[j]) : 0));
      }
    }
  }
}

// S: a state [E, M], from column m0 on, transposed, as accumulators: [tile of 16 columns][tile of 8
// rows][element]. Calls visit(S, x) for each element that the lane holds and the tensor has; x is its
// place there.
template <int kTiles, int kEights, class T, class Visit>
__device__ __forceinline__ void visit_state(float (&S)[kTiles][kEights][4],
                                            const TensorView<T>& state, int64_t b, int64_t h,
                                            int m0, Visit&& visit) {
  if (state.data == nullptr) return;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kEights; ++n) {
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) {
      const int e = n * 8 + lane % 4 * 2 + i % 2, m = m0 + i / 2 * 8 + lane / 4;
      if (e < state.L && m < state.D) visit(S[i / 4][n][i % 4], state.row(b, h, e)[m]);
    }
  }
}

}  // namespace attn
