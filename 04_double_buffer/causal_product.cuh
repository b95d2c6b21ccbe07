// The causal product of stage 04: picks one of its kernels by element type and shape.
#pragma once

#include "04_double_buffer/step1_double_buffer.cuh"
#include "04_double_buffer/step2_low_occupancy.cuh"
#include "04_double_buffer/step3_chunks.cuh"

namespace attn::double_buffer {

// [doc:pick]
// Whether the low-occupancy kernel is the faster one. Measured on an H200 at L = 4096: with 32 heads
// of 64 it takes 0.8 times as long as the double-buffered one, with 64 heads 1.5 times. Beyond
// E = 128 its rounds are too short to pay.
inline bool prefers_low_occupancy(int64_t heads, int64_t L, int64_t E, int64_t M) {
  return heads * ((M + 63) / 64) < 44 && L >= 128 && E <= 128;
}
// [/doc:pick]

// The causal product of float tensors by the faster kernel; see double_buffer_causal_product. (Of bf16
// tensors it is chunks_causal_product() at every shape.)
inline void causal_product(TensorView<const float> q,  // [B, H, L, E]
                           TensorView<const float> k,  // [B, H, Lk, E]
                           TensorView<const float> v,  // [B, H, Lk, M]
                           TensorView<float> o,        // [B, H, L, M]
                           cudaStream_t stream = 0) {
  if (prefers_low_occupancy(q.B * q.H, q.L, q.D, v.D)) {
    low_occupancy_causal_product(q, k, v, o, stream);
  } else {
    double_buffer_causal_product(q, k, v, o, stream);
  }
}

// [doc:reversed]
// o_t = sum over s >= t of (q_t . k_s) v_s, which the backward pass needs: the same walk over the
// same tensors with time running backwards. All lengths must be equal.
inline void reversed_causal_product(TensorView<const float> q,  // [B, H, L, E]
                                    TensorView<const float> k,  // [B, H, L, E]
                                    TensorView<const float> v,  // [B, H, L, M]
                                    TensorView<float> o,        // [B, H, L, M]
                                    cudaStream_t stream = 0) {
  check_equal_lengths(q, k);
  causal_product(flip(q), flip(k), flip(v), flip(o), stream);
}
// [/doc:reversed]

}  // namespace attn::double_buffer
