// Float64 truth: gated linear attention (GLA).
//
// Source: Yang et al., "Gated Linear Attention Transformers with Hardware-Efficient Training"
// (2023), the recurrence of section 4.1, with the gate in log space.
#pragma once

#include <cmath>
#include <cstdint>

#include "01_cpu_reference/recurrent_result.hpp"
#include "common/matrix.hpp"

namespace attn::reference {

inline double default_scale(const Matrix& q) { return 1 / std::sqrt(static_cast<double>(q.cols)); }

// [doc:gla]
// S_t = diag(exp g_t) S_{t-1} + k_t v_t^T, THEN o_t = scale * q_t^T S_t.
// The decay is inclusive: g_t acts on the past before row t is added, and o_t sees row t whole.
// A gate of -inf is a reset: exp(-inf) = 0 forgets the row of the state.
inline RecurrentResult gla(const Matrix& q,                // [L, E]
                           const Matrix& k,                // [L, E]
                           const Matrix& v,                // [L, M]
                           const Matrix& g,                // [L, E], <= 0, log space
                           double scale,                   // usually default_scale(q)
                           const Matrix& initial_state) {  // [E, M]
  Matrix S = initial_state, o(q.rows, v.cols);
  for (int64_t t = 0; t < q.rows; t++) {
    for (int64_t e = 0; e < k.cols; e++) {
      const double decay = std::exp(g(t, e));
      for (int64_t m = 0; m < v.cols; m++) {
        S(e, m) = decay * S(e, m) + k(t, e) * v(t, m);
        o(t, m) += scale * q(t, e) * S(e, m);
      }
    }
  }
  return {o, S};
}
// [/doc:gla]

}  // namespace attn::reference
