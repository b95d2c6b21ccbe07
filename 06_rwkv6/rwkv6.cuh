// RWKV-6 of stage 06: picks a kernel by shape, the recurrent one or one of the engine's two.
#pragma once

#include "06_rwkv6/step2_recurrent.cuh"
#include "06_rwkv6/step4_engine.cuh"
#include "06_rwkv6/step5_segments.cuh"

namespace attn::rwkv6 {

// [doc:pick_recurrent]
// Whether there are too few steps for chunks to pay off: up to 16 of them at E = 64 (H200, bf16, no
// states: recurrent 7.7 us, in chunks 8.6 for 64 heads; 44 and 42 for 2048, with states 62 and 129).
inline bool prefers_recurrent(int64_t L, int64_t E) { return L * (E < 64 ? 64 : E) <= 1024; }
// [/doc:pick_recurrent]

// Whether segments walked at the same time are faster.
template <class T>
bool prefers_segments(int64_t heads, int64_t L, int64_t E, int64_t M) {
  return chunked::prefers_segments<EngineTilings<T>>(heads, L, E, M);
}

// RWKV-6 of float (with tf32 products, unless recurrent) or bf16 tensors by the fastest kernel.
template <class T>
void rwkv6_attention(const Rwkv6Operands<T>& x, cudaStream_t stream = 0) {
  if (prefers_recurrent(x.r.L, x.r.D)) {
    vector_recurrent_rwkv6(x, stream);
  } else {
    chunked::walk_fastest<EngineTilings<T>>(walk_of(in_walking_order(x)), stream);
  }
}

}  // namespace attn::rwkv6
