// Second form of the causal product: the masked score matrix, row by row, and no state. It is the
// defining sum itself, at L^2 (E + M) work where the recurrence needs L E M.
#pragma once

#include <cstdint>

#include "common/matrix.hpp"

namespace attn::reference {

// The sum over the rows first <= s < last of (q_t . k_s) v_s, added to row t of o.
inline void add_scored_rows(const Matrix& q, const Matrix& k, const Matrix& v, int64_t t,
                            int64_t first, int64_t last, Matrix& o) {
  for (int64_t s = first; s < last; s++) {
    double score = 0;
    for (int64_t e = 0; e < k.cols; e++) score += q(t, e) * k(s, e);
    for (int64_t m = 0; m < v.cols; m++) o(t, m) += score * v(s, m);
  }
}

// o_t = sum_{s <= t} (q_t . k_s) v_s
inline Matrix quadratic_causal_product(const Matrix& q,    // [L, E]
                                       const Matrix& k,    // [L, E]
                                       const Matrix& v) {  // [L, M]
  Matrix o(q.rows, v.cols);
  for (int64_t t = 0; t < q.rows; t++) add_scored_rows(q, k, v, t, 0, t + 1, o);
  return o;
}

// o_t = sum_{s >= t} (q_t . k_s) v_s
inline Matrix quadratic_reversed_causal_product(const Matrix& q,    // [L, E]
                                                const Matrix& k,    // [L, E]
                                                const Matrix& v) {  // [L, M]
  Matrix o(q.rows, v.cols);
  for (int64_t t = 0; t < q.rows; t++) add_scored_rows(q, k, v, t, t, q.rows, o);
  return o;
}

}  // namespace attn::reference
