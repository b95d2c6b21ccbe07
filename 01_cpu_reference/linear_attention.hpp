// Float64 truth: linear attention, non-causal and causal.
//
// Source: Katharopoulos et al., "Transformers are RNNs" (2020), equations 5 to 9, with their
// feature map phi(x) = elu(x) + 1. The eps under the fraction, the key lengths and the rule for
// unequal lengths are those of the authors' library, fast-transformers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "01_cpu_reference/causal_product.hpp"
#include "common/matrix.hpp"

namespace attn::reference {

inline constexpr double kLinearAttentionEps = 1e-6;

// elu(x) + 1: x + 1 above zero, exp(x) below; always positive.
inline double feature_map(double x) { return x > 0 ? x + 1 : std::exp(x); }

// phi of every row of q.
inline Matrix query_features(const Matrix& q) {
  Matrix features(q.rows, q.cols);
  std::transform(q.data.begin(), q.data.end(), features.data.begin(), feature_map);
  return features;
}

// phi of the first key_length rows of k, zeros below. A masked key must add nothing to any sum, so
// the zero comes after phi: phi(0) is 1.
inline Matrix key_features(const Matrix& k, int64_t key_length) {
  Matrix features(k.rows, k.cols);
  std::transform(k.data.begin(), k.data.begin() + key_length * k.cols, features.data.begin(),
                 feature_map);
  return features;
}

// o_i = phi(q_i)^T KV / (phi(q_i) . z + eps),  KV = sum_j phi(k_j) v_j^T,  z = sum_j phi(k_j),
// the sums over j < key_length.
inline Matrix linear_attention(const Matrix& q,       // [Lq, E]
                               const Matrix& k,       // [Lk, E]
                               const Matrix& v,       // [Lk, M]
                               int64_t key_length) {  // 0 .. Lk
  const Matrix phi_q = query_features(q), phi_k = key_features(k, key_length);
  const int64_t E = k.cols, M = v.cols;
  Matrix KV(E, M), z(1, E), o(q.rows, M);
  for (int64_t j = 0; j < k.rows; j++) {
    for (int64_t e = 0; e < E; e++) {
      z(0, e) += phi_k(j, e);
      for (int64_t m = 0; m < M; m++) KV(e, m) += phi_k(j, e) * v(j, m);
    }
  }
  for (int64_t i = 0; i < q.rows; i++) {
    double normaliser = kLinearAttentionEps;
    for (int64_t e = 0; e < E; e++) {
      normaliser += phi_q(i, e) * z(0, e);
      for (int64_t m = 0; m < M; m++) o(i, m) += phi_q(i, e) * KV(e, m);
    }
    for (int64_t m = 0; m < M; m++) o(i, m) /= normaliser;
  }
  return o;
}

// The first `rows` rows of x; zeros where x has fewer.
inline Matrix with_rows(const Matrix& x, int64_t rows) {
  Matrix result(rows, x.cols);
  std::copy_n(x.data.begin(), std::min(rows, x.rows) * x.cols, result.data.begin());
  return result;
}

// o_t = sum_{s <= t} (phi(q_t) . phi(k_s)) v_s / (phi(q_t) . sum_{s <= t} phi(k_s) + eps), where
// keys past key_length count as zero. With more queries than keys the missing keys are zeros, with
// fewer the surplus keys are cut: position t of q stands at position t of k, from the start.
inline Matrix causal_linear_attention(const Matrix& q,       // [Lq, E]
                                      const Matrix& k,       // [Lk, E]
                                      const Matrix& v,       // [Lk, M]
                                      int64_t key_length) {  // 0 .. Lk
  const Matrix phi_q = query_features(q);
  const Matrix phi_k = with_rows(key_features(k, key_length), q.rows);
  Matrix o = causal_product(phi_q, phi_k, with_rows(v, q.rows));
  Matrix z(1, k.cols);
  for (int64_t t = 0; t < q.rows; t++) {
    double normaliser = kLinearAttentionEps;
    for (int64_t e = 0; e < k.cols; e++) {
      z(0, e) += phi_k(t, e);
      normaliser += phi_q(t, e) * z(0, e);
    }
    for (int64_t m = 0; m < v.cols; m++) o(t, m) /= normaliser;
  }
  return o;
}

}  // namespace attn::reference
