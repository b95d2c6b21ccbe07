// Second form of linear attention: attention as a weighted mean. Each pair of a query and a key has
// a weight phi(q_i) . phi(k_j); a masked pair is skipped, where the first form adds zeros to a sum.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/matrix.hpp"

namespace attn::reference {

// elu(x) + 1, through the definition of elu.
inline double elu_plus_one(double x) { return (x > 0 ? x : std::expm1(x)) + 1; }

// o_i = sum_j weight_ij v_j / (sum_j weight_ij + 1e-6), over the keys j < keys(i).
template <class VisibleKeys>
Matrix weighted_mean(const Matrix& q, const Matrix& k, const Matrix& v, VisibleKeys keys) {
  Matrix o(q.rows, v.cols);
  for (int64_t i = 0; i < q.rows; i++) {
    double sum = 0;
    for (int64_t j = 0; j < keys(i); j++) {
      double weight = 0;
      for (int64_t e = 0; e < k.cols; e++) weight += elu_plus_one(q(i, e)) * elu_plus_one(k(j, e));
      for (int64_t m = 0; m < v.cols; m++) o(i, m) += weight * v(j, m);
      sum += weight;
    }
    for (int64_t m = 0; m < v.cols; m++) o(i, m) /= sum + 1e-6;
  }
  return o;
}

inline Matrix quadratic_linear_attention(const Matrix& q,       // [Lq, E]
                                         const Matrix& k,       // [Lk, E]
                                         const Matrix& v,       // [Lk, M]
                                         int64_t key_length) {  // 0 .. Lk
  return weighted_mean(q, k, v, [=](int64_t) { return key_length; });
}

// Query i sees the keys up to position i, as far as there are any.
inline Matrix quadratic_causal_linear_attention(const Matrix& q,       // [Lq, E]
                                                const Matrix& k,       // [Lk, E]
                                                const Matrix& v,       // [Lk, M]
                                                int64_t key_length) {  // 0 .. Lk
  return weighted_mean(q, k, v, [=](int64_t i) { return std::min(i + 1, key_length); });
}

}  // namespace attn::reference
