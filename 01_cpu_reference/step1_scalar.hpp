// Step 1: the recurrence as it is written, one (b, h) after the other.
//
// Idea: the sum over the past is kept as a state S [E, M], so that a step costs the same at any t:
//     S  += k_t v_t^T      outer product
//     o_t = q_t^T S        vector times matrix
// Who computes what: one thread, everything.
// Work per (b, h): 4 L E M flops; 4 L (2 E + 2 M) bytes of q, k, v and o. S stays in the cache
// (16 KiB at E = M = 64), but it passes through the core three times for every step: the outer
// product loads and stores it, the product loads it again.
// Limited by: that traffic. A multiply-add needs a load, and half of them a store as well. The
// compiler vectorises the loops over m, for the oldest CPU the build must run on (4 floats at a
// time on x86-64); and one core works, whatever the machine has.
// Step 2 removes: the idle cores.
#pragma once

#include <cstdint>
#include <vector>

#include "common/tensor_view.cuh"

namespace attn::cpu {

// [doc:recurrence]
// The causal product of one (b, h).
inline void recurrence(const TensorView<const float>& q, const TensorView<const float>& k,
                       const TensorView<const float>& v, const TensorView<float>& o, int64_t b,
                       int64_t h) {
  const int64_t E = q.D, M = v.D;
  std::vector<float> S(E * M, 0.0f);
  for (int64_t t = 0; t < q.L; t++) {
    const float* q_t = q.row(b, h, t);
    const float* k_t = k.row(b, h, t);
    const float* v_t = v.row(b, h, t);
    float* o_t = o.row(b, h, t);

    for (int64_t e = 0; e < E; e++) {
      for (int64_t m = 0; m < M; m++) S[e * M + m] += k_t[e] * v_t[m];
    }
    for (int64_t m = 0; m < M; m++) o_t[m] = 0;
    for (int64_t e = 0; e < E; e++) {
      for (int64_t m = 0; m < M; m++) o_t[m] += q_t[e] * S[e * M + m];
    }
  }
}
// [/doc:recurrence]

inline void causal_product_scalar(TensorView<const float> q,  // [B, H, L, E]
                                  TensorView<const float> k,  // [B, H, L, E]
                                  TensorView<const float> v,  // [B, H, L, M]
                                  TensorView<float> o) {      // [B, H, L, M]
  for (int64_t b = 0; b < q.B; b++) {
    for (int64_t h = 0; h < q.H; h++) recurrence(q, k, v, o, b, h);
  }
}

}  // namespace attn::cpu
