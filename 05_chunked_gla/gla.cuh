// Gated linear attention of stage 05: picks one of its two fast kernels by shape.
#pragma once

#include "05_chunked_gla/step2_fused.cuh"
#include "05_chunked_gla/step3_chunk_parallel.cuh"

namespace attn::chunked_gla {

// [doc:pick]
// Whether segments walked at the same time are faster, by what was measured on an H200 in bf16.
inline bool prefers_chunk_parallel(int64_t heads, int64_t L, int64_t E, int64_t M) {
  const Segments segments = cut(heads, L, E, M);
  if (segments.count == 1) return false;
  // Where the other segments take turns, there is at most a quarter of the time to gain, and it
  // takes a long sequence to earn the launch before.
  if (segments.first_rows > segments.rows) {
    return E > 64 && L >= 8192 && segments.first_rows <= 3 * segments.rows;
  }
  // Up to E = 64 the fused kernel gives a head two blocks if heads are few.
  if (segments.count == 2) return L >= (E <= 64 ? 4096 : 1024);
  return L >= (E <= 64 ? 1024 : 512);
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
