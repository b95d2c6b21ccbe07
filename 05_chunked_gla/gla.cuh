// Gated linear attention of stage 05: picks one of its two fast kernels by shape.
#pragma once

#include "05_chunked_gla/step4_engine.cuh"
#include "05_chunked_gla/step5_segments.cuh"

namespace attn::chunked_gla {

// [doc:pick]
// Whether segments walked at the same time are faster.
template <class T>
bool prefers_segments(int64_t heads, int64_t L, int64_t E, int64_t M) {
  return chunked::prefers_segments<EngineTilings<T>>(heads, L, E, M);
}
// [/doc:pick]

// Gated linear attention of float (with tf32 products) or bf16 tensors by the faster kernel.
template <class T>
void gated_linear_attention(const GlaOperands<T>& x, cudaStream_t stream = 0) {
  check_gla(x);
  chunked::walk_fastest<EngineTilings<T>>(walk_of(x), stream);
}

}  // namespace attn::chunked_gla
