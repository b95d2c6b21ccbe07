// The asynchronous copy of rows to shared memory that kernels prefetch with.
#pragma once

#include <cuda_runtime.h>

#include "common/ptx/cp_async.cuh"
#include "common/tensor_view.cuh"

namespace attn {

// Of kSteps rows of kWidth elements, in pieces of kVector, those of this thread, of kThreads:
// visit(step, d) for each, with its row and its first column.
// [doc:for_own_pieces]
template <int kThreads, int kVector, int kSteps, int kWidth, class Visit>
__device__ __forceinline__ void for_own_pieces(Visit&& visit) {
  constexpr int kPerRow = kWidth / kVector;
  constexpr int kPieces = kSteps * kPerRow;
  // A constant number of passes: unrolled, a thread's addresses are known but for a constant. (With
  // the plain loop `i < kPieces; i += kThreads` this took a fifth of a kernel's instructions.)
  constexpr int kPasses = (kPieces + kThreads - 1) / kThreads;
  // Single elements take too many passes to unroll them all. (Only nvcc reads the pragma.)
  [[maybe_unused]] constexpr int kUnroll = kVector > 1 ? kPasses : 4;
#pragma unroll kUnroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int i = pass * kThreads + threadIdx.x;
    if (kPieces % kThreads != 0 && i >= kPieces) break;
    visit(i / kPerRow, i % kPerRow * kVector);
  }
}
// [/doc:for_own_pieces]

// Starts the copy of rows [first, first + kSteps) of x, columns [column, column + kWidth), to
// shared memory, by the kThreads threads of a block, kVector elements at a time. Rows from L on,
// and whatever else lies outside of x, arrive as zeros, which add nothing to any sum.
// [doc:stage_rows]
template <int kThreads, int kVector, class T, int kSteps, int kWidth>
__device__ __forceinline__ void stage_rows(T (&x_smem)[kSteps][kWidth],
                                           const TensorView<const T>& x, int64_t b, int64_t h,
                                           int first, int L, int column) {
  const T* x_head = x.row(b, h, 0) + column;
  const int rows = static_cast<int>(x.L < L ? x.L : L);
  const int columns = static_cast<int>(x.D) - column;
  for_own_pieces<kThreads, kVector, kSteps, kWidth>([&](int step, int d) {
    const bool inside = first + step < rows && d < columns;
    const T* source = inside ? x_head + (first + step) * x.stride_l + d : x.data;
    if constexpr (kVector * sizeof(T) >= 4) {
      cp_async<kVector * sizeof(T)>(&x_smem[step][d], source, inside);
    } else {  // one bf16: less than cp.async can copy, so the thread waits for it
      x_smem[step][d] = inside ? *source : T{};
    }
  });
}
// [/doc:stage_rows]

}  // namespace attn
