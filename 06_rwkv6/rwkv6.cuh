// RWKV-6 of stage 06: picks one of its two fast kernels by shape.
#pragma once

#include "06_rwkv6/step3_chunked.cuh"
#include "06_rwkv6/step3_chunked_parallel.cuh"

namespace attn::rwkv6 {

// [doc:pick]
// Whether segments walked at the same time are faster. They cost nearly two walks, each of a
// segment, and three launches. Measured on an H200: with two segments of 64 heads, 1.1 times as slow
// at L = 1024, 1.04 times as fast at 2048 and 1.26 times at 8192.
inline bool prefers_chunked_parallel(int64_t heads, int64_t L, int64_t E, int64_t M) {
  return segments_to_fill(heads, E, M) >= 2 && L >= 2048;
}
// [/doc:pick]

// RWKV-6 of float (with tf32 products) or bf16 tensors by the faster kernel.
template <class T>
void rwkv6_attention(const Rwkv6Operands<T>& x, cudaStream_t stream = 0) {
  if (prefers_chunked_parallel(x.r.B * x.r.H, x.r.L, x.r.D, x.v.D)) {
    chunked_parallel_rwkv6(x, stream);
  } else {
    chunked_rwkv6(x, stream);
  }
}

}  // namespace attn::rwkv6
