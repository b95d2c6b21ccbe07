// Float64 truth: softmax attention.
//
// Source: Vaswani et al., "Attention Is All You Need" (2017), equation 1. The log-sum-exp is the
// one FlashAttention keeps for its backward pass.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/matrix.hpp"

namespace attn::reference {

struct SoftmaxResult {
  Matrix o;    // [Lq, M]
  Matrix lse;  // [Lq, 1]: log sum_j exp(scale * q_i . k_j), natural logarithm
};

// The number of keys that query i sees: all, or with the causal mask those up to its own position,
// counted so that the last query stands at the last key (bottom-right aligned).
inline int64_t visible_keys(int64_t i, int64_t Lq, int64_t Lk, bool causal) {
  return causal ? std::clamp<int64_t>(i + 1 + Lk - Lq, 0, Lk) : Lk;
}

// o = softmax(scale * q k^T + mask) v. A query that sees no key gives o = 0 and lse = -inf. Of a long
// sequence only the queries first, first + step, ... may be asked for.
inline SoftmaxResult softmax_attention(const Matrix& q,  // [Lq, E]
                                       const Matrix& k,  // [Lk, E]
                                       const Matrix& v,  // [Lk, M]
                                       double scale,     // usually E^-1/2
                                       bool causal, int64_t first = 0, int64_t step = 1) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const int64_t rows = (q.rows - 1 - first) / step + 1;
  SoftmaxResult result{Matrix(rows, v.cols), Matrix(rows, 1, -kInfinity)};
  for (int64_t row = 0; row < rows; row++) {
    const int64_t i = first + row * step;
    const int64_t keys = visible_keys(i, q.rows, k.rows, causal);
    if (keys == 0) continue;
    std::vector<double> weights(keys);
    for (int64_t j = 0; j < keys; j++) {
      for (int64_t e = 0; e < k.cols; e++) weights[j] += scale * q(i, e) * k(j, e);
    }
    // exp of a difference <= 0 cannot overflow, and the factor exp(-max) cancels in the fraction.
    const double max = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) {
      weight = std::exp(weight - max);
      sum += weight;
    }
    for (int64_t j = 0; j < keys; j++) {
      for (int64_t m = 0; m < v.cols; m++) result.o(row, m) += weights[j] / sum * v(j, m);
    }
    result.lse(row, 0) = max + std::log(sum);
  }
  return result;
}

}  // namespace attn::reference
