// Gated linear attention of stage 05: picks one of its two fast kernels by shape.
#pragma once

#include "05_chunked_gla/step2_fused.cuh"
#include "05_chunked_gla/step3_chunk_parallel.cuh"

namespace attn::chunked_gla {

// [doc:pick]
// Whether segments walked at the same time are faster. They cost nearly two walks, each of a
// segment, and three launches. Two of them are no gain up to E = 64, where the fused kernel gives a
// head two blocks if heads are few: with 64 heads of E = M = 64, on an H200 in bf16, 1.35 times as
// slow at L = 1024. With eight segments, 16 heads of E = M = 128, they are 1.04 times as slow there
// and 1.55 times as fast at 2048.
inline bool prefers_chunk_parallel(int64_t heads, int64_t L, int64_t E, int64_t M) {
  return cut(heads, L, E, M).count >= (E <= 64 ? 3 : 2) && L >= 2048;
}
// [/doc:pick]

// Gated linear attention of float (with tf32 products) or bf16 tensors by the faster kernel.
template <class T>
void gated_linear_attention(const GlaOperands<T>& x, cudaStream_t stream = 0) {
  if (prefers_chunk_parallel(x.q.B * x.q.H, x.q.L, x.q.D, x.v.D)) {
    chunk_parallel_gla(x, stream);
  } else {
    fused_gla(x, stream);
  }
}

}  // namespace attn::chunked_gla
