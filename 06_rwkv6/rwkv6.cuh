// RWKV-6 of stage 06: picks a kernel by shape, the recurrent one or one of the two chunked.
#pragma once

#include "06_rwkv6/step2_recurrent.cuh"
#include "06_rwkv6/step3_chunked.cuh"
#include "06_rwkv6/step3_chunked_parallel.cuh"

namespace attn::rwkv6 {

// [doc:pick_recurrent]
// Whether there are too few steps for chunks to pay off: up to 16 of them at E = 64 (H200, bf16, no
// states: recurrent 7.7 us, in chunks 8.6 for 64 heads; 44 and 42 for 2048, with states 62 and 129).
inline bool prefers_recurrent(int64_t L, int64_t E) { return L * (E < 64 ? 64 : E) <= 1024; }
// [/doc:pick_recurrent]

// [doc:pick]
// Whether segments walked at the same time are faster. By the cost of decays as RWKV-6 has them, of
// which a segment's last hundred rows are all that reaches the next; with mild ones segments read k,
// v and w twice, and where they gain little they lose.
template <class T>
bool prefers_chunked_parallel(int64_t heads, int64_t L, int64_t E, int64_t M) {
  const Blocks blocks = blocks_of<T>(heads, E, M);
  return cost_of(best_cut(L, blocks), blocks) < 0.85 * cost_of({1, L, 0}, blocks);
}
// [/doc:pick]

// RWKV-6 of float (with tf32 products, unless recurrent) or bf16 tensors by the fastest kernel.
template <class T>
void rwkv6_attention(const Rwkv6Operands<T>& x, cudaStream_t stream = 0) {
  if (prefers_recurrent(x.r.L, x.r.D)) {
    vector_recurrent_rwkv6(x, stream);
  } else if (prefers_chunked_parallel<T>(x.r.B * x.r.H, x.r.L, x.r.D, x.v.D)) {
    chunked_parallel_rwkv6(x, stream);
  } else {
    chunked_rwkv6(x, stream);
  }
}

}  // namespace attn::rwkv6
