// Float64 truth: the causal product, forward and reversed.
//
// Source: Katharopoulos et al., "Transformers are RNNs" (2020), the sum inside equation 9, without
// feature map and normaliser.
#pragma once

#include <cstdint>

#include "common/matrix.hpp"

namespace attn::reference {

// [doc:step]
// One step of the recurrence: the state takes in row t, then is read.
//   S   += k_t v_t^T
//   o_t  = q_t^T S
inline void causal_product_step(const Matrix& q, const Matrix& k, const Matrix& v, int64_t t,
                                Matrix& S, Matrix& o) {
  for (int64_t e = 0; e < S.rows; e++) {
    for (int64_t m = 0; m < S.cols; m++) S(e, m) += k(t, e) * v(t, m);
  }
  for (int64_t e = 0; e < S.rows; e++) {
    for (int64_t m = 0; m < S.cols; m++) o(t, m) += q(t, e) * S(e, m);
  }
}
// [/doc:step]

// o_t = sum_{s <= t} (q_t . k_s) v_s
inline Matrix causal_product(const Matrix& q,    // [L, E]
                             const Matrix& k,    // [L, E]
                             const Matrix& v) {  // [L, M]
  Matrix S(k.cols, v.cols), o(q.rows, v.cols);
  for (int64_t t = 0; t < q.rows; t++) causal_product_step(q, k, v, t, S, o);
  return o;
}

// o_t = sum_{s >= t} (q_t . k_s) v_s: the same recurrence walked from L-1 to 0. The gradients of
// the causal product with respect to k and v have this form.
inline Matrix reversed_causal_product(const Matrix& q,    // [L, E]
                                      const Matrix& k,    // [L, E]
                                      const Matrix& v) {  // [L, M]
  Matrix S(k.cols, v.cols), o(q.rows, v.cols);
  for (int64_t t = q.rows - 1; t >= 0; t--) causal_product_step(q, k, v, t, S, o);
  return o;
}

}  // namespace attn::reference
