// Second form of softmax attention: one pass over the keys. The largest score is not known before
// the last key, so the sums are kept relative to the largest so far and rescaled when it grows.
// Stage 07 builds on this form.
//
// Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "01_cpu_reference/softmax_attention.hpp"
#include "common/matrix.hpp"

namespace attn::reference {

inline SoftmaxResult online_softmax_attention(const Matrix& q,  // [Lq, E]
                                              const Matrix& k,  // [Lk, E]
                                              const Matrix& v,  // [Lk, M]
                                              double scale, bool causal) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  SoftmaxResult result{Matrix(q.rows, v.cols), Matrix(q.rows, 1)};
  for (int64_t i = 0; i < q.rows; i++) {
    double max = -kInfinity;  // not 0: the scores of a row may all be far below it
    double sum = 0;           // sum_j exp(score_j - max)
    for (int64_t j = 0; j < k.rows; j++) {
      if (causal && j - i > k.rows - q.rows) break;
      double score = 0;
      for (int64_t e = 0; e < k.cols; e++) score += q(i, e) * k(j, e);
      score *= scale;
      const double new_max = std::max(max, score);
      const double rescale = std::exp(max - new_max);  // exp(-inf) = 0 at the first key
      const double weight = std::exp(score - new_max);
      sum = rescale * sum + weight;
      for (int64_t m = 0; m < v.cols; m++) {
        result.o(i, m) = rescale * result.o(i, m) + weight * v(j, m);
      }
      max = new_max;
    }
    // No key seen: sum = 0 and max = -inf. The row stays 0 rather than 0 / 0.
    for (int64_t m = 0; m < v.cols; m++) result.o(i, m) /= sum > 0 ? sum : 1;
    result.lse(i, 0) = max + std::log(sum);
  }
  return result;
}

}  // namespace attn::reference
