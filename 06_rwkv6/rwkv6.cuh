// RWKV-6 of stage 06: picks one of the two chunked kernels by shape.
#pragma once

#include "06_rwkv6/step3_chunked.cuh"
#include "06_rwkv6/step3_chunked_parallel.cuh"

namespace attn::rwkv6 {

// [doc:pick]
// Whether segments walked at the same time are faster: they cost nearly two walks, each of a segment.
// Measured on an H200 with 64 heads of E = M = 64 at L = 1024: 1.06 times as fast with two segments,
// 1.47 times with four. Shorter sequences were not measured.
template <class T>
bool prefers_chunked_parallel(int64_t heads, int64_t L, int64_t E, int64_t M) {
  return segments_to_fill<T>(heads, E, M) >= 2 && L >= 1024;
}
// [/doc:pick]

// RWKV-6 of float (with tf32 products) or bf16 tensors by the faster kernel.
template <class T>
void rwkv6_attention(const Rwkv6Operands<T>& x, cudaStream_t stream = 0) {
  if (prefers_chunked_parallel<T>(x.r.B * x.r.H, x.r.L, x.r.D, x.v.D)) {
    chunked_parallel_rwkv6(x, stream);
  } else {
    chunked_rwkv6(x, stream);
  }
}

}  // namespace attn::rwkv6
