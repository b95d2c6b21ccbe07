// Second form of GLA: every output by itself from all rows before it, as a kernel that works in
// parallel over t would have it. What row s still weighs at t is kept in log space,
//   a_s = g_{s+1} + ... + g_t,
// and summed backwards from s = t. The usual shortcut, the difference b_t - b_s of two running
// sums, is the same number until a gate is -inf: then it is -inf - -inf, NaN.
#pragma once

#include <cmath>
#include <cstdint>

#include "01_cpu_reference/recurrent_result.hpp"
#include "common/matrix.hpp"

namespace attn::reference {

// [doc:read_state]
// What a query x reads from the state after row t:
//   sum_{s <= t} (x . exp(g_{s+1} + ... + g_t) k_s) v_s  +  x^T diag(exp(g_0 + ... + g_t)) S_0
// x is one row [1, E], the result one row [1, M]. At t = -1 it is x^T S_0.
inline Matrix read_state_after(int64_t t, const Matrix& x, const Matrix& k, const Matrix& v,
                               const Matrix& g, const Matrix& initial_state) {
  Matrix result(1, v.cols), log_decay(1, k.cols);
  for (int64_t s = t; s >= 0; s--) {
    double score = 0;
    for (int64_t e = 0; e < k.cols; e++) {
      score += x(0, e) * std::exp(log_decay(0, e)) * k(s, e);
      log_decay(0, e) += g(s, e);
    }
    for (int64_t m = 0; m < v.cols; m++) result(0, m) += score * v(s, m);
  }
  for (int64_t e = 0; e < k.cols; e++) {
    const double weight = x(0, e) * std::exp(log_decay(0, e));
    for (int64_t m = 0; m < v.cols; m++) result(0, m) += weight * initial_state(e, m);
  }
  return result;
}
// [/doc:read_state]

// The state after the last row, read out row by row with unit vectors.
inline Matrix log_space_final_state(const Matrix& k, const Matrix& v, const Matrix& g,
                                    const Matrix& initial_state) {
  Matrix S(k.cols, v.cols);
  for (int64_t e = 0; e < k.cols; e++) {
    Matrix unit(1, k.cols);
    unit(0, e) = 1;
    const Matrix row = read_state_after(k.rows - 1, unit, k, v, g, initial_state);
    for (int64_t m = 0; m < v.cols; m++) S(e, m) = row(0, m);
  }
  return S;
}

inline RecurrentResult log_space_gla(const Matrix& q,                // [L, E]
                                     const Matrix& k,                // [L, E]
                                     const Matrix& v,                // [L, M]
                                     const Matrix& g,                // [L, E], <= 0
                                     double scale,                   //
                                     const Matrix& initial_state) {  // [E, M]
  Matrix o(q.rows, v.cols);
  for (int64_t t = 0; t < q.rows; t++) {
    Matrix x(1, q.cols);
    for (int64_t e = 0; e < q.cols; e++) x(0, e) = scale * q(t, e);
    const Matrix row = read_state_after(t, x, k, v, g, initial_state);
    for (int64_t m = 0; m < v.cols; m++) o(t, m) = row(0, m);
  }
  return {o, log_space_final_state(k, v, g, initial_state)};
}

}  // namespace attn::reference
