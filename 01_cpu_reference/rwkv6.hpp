// Float64 truth: the time mixing of RWKV-6.
//
// Source: Peng et al., "Eagle and Finch: RWKV with Matrix-Valued States and Dynamic Recurrence"
// (2024), the wkv recurrence of section 4.2, with the decay in log space.
#pragma once

#include <cmath>
#include <cstdint>

#include "01_cpu_reference/recurrent_result.hpp"
#include "common/matrix.hpp"

namespace attn::reference {

// [doc:rwkv6]
// o_t = scale * r_t^T (S_{t-1} + diag(u) k_t v_t^T), THEN S_t = diag(exp w_t) S_{t-1} + k_t v_t^T.
// The decay is exclusive: o_t reads the state before w_t acts, and row t comes in through u alone.
// With reverse, the sequence is walked from L-1 to 0 and S_{t-1} is the state left by row t+1.
inline RecurrentResult rwkv6(const Matrix& r,              // [L, E]
                             const Matrix& k,              // [L, E]
                             const Matrix& v,              // [L, M]
                             const Matrix& w,              // [L, E], <= 0, log space
                             const Matrix& u,              // [1, E]
                             double scale,                 // usually 1
                             const Matrix& initial_state,  // [E, M]
                             bool reverse = false) {
  Matrix S = initial_state, o(r.rows, v.cols);
  for (int64_t i = 0; i < r.rows; i++) {
    const int64_t t = reverse ? r.rows - 1 - i : i;
    for (int64_t e = 0; e < k.cols; e++) {
      const double decay = std::exp(w(t, e));
      for (int64_t m = 0; m < v.cols; m++) {
        const double kv = k(t, e) * v(t, m);
        o(t, m) += scale * r(t, e) * (S(e, m) + u(0, e) * kv);
        S(e, m) = decay * S(e, m) + kv;
      }
    }
  }
  return {o, S};
}
// [/doc:rwkv6]

}  // namespace attn::reference
