// The yardstick of the bf16 kernels: what the rounding to bf16 costs where gated linear attention
// in chunks is written straightforwardly, on a CPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/element.hpp"
#include "common/matrix.hpp"

namespace attn::chunked_gla {

// The output for one (b, h), in chunks of 64 and sub-chunks of 16, from a state of zeros. Rounded
// to bf16 are the output and all that a product of matrices reads: q and k with their exponentials,
// the scores, the state. Nothing else is rounded, so that it asks the more of the kernels: sums and
// exponentials are float64, and within a sub-chunk, where no two factors give the scores without
// overflow, these are float64 until they are rounded.
inline Matrix plain_bf16_gla(const Matrix& q, const Matrix& k,  // [L, E], bf16 numbers; so are
                             const Matrix& v,                   // [L, M]
                             const Matrix& g,                   // [L, E], finite
                             double scale) {
  constexpr int64_t kChunk = 64, kSubChunk = 16;
  const auto rounded = [](double x) -> double {
    return to_float(from_float<__nv_bfloat16>(static_cast<float>(x)));
  };
  const int64_t L = q.rows, E = q.cols, M = v.cols;
  Matrix o(L, M), S(E, M);
  Matrix G = g;  // its sums from the chunk's first row on
  for (int64_t first = 0; first < L; first += kChunk) {
    const int64_t end = std::min(first + kChunk, L);
    for (int64_t t = first + 1; t < end; ++t) {
      for (int64_t e = 0; e < E; ++e) G(t, e) += G(t - 1, e);
    }

    for (int64_t t = first; t < end; ++t) {
      // The first row of its sub-chunk: from there on both factors of a score are at most 1.
      const int64_t base = t / kSubChunk * kSubChunk;
      for (int64_t s = first; s <= t; ++s) {
        double A = 0;
        for (int64_t e = 0; e < E; ++e) {
          A += s >= base ? q(t, e) * k(s, e) * std::exp(G(t, e) - G(s, e))
                         : rounded(q(t, e) * std::exp(G(t, e) - G(base, e))) *
                               rounded(k(s, e) * std::exp(G(base, e) - G(s, e)));
        }
        for (int64_t m = 0; m < M; ++m) o(t, m) += rounded(A) * v(s, m);
      }
      for (int64_t e = 0; e < E; ++e) {
        const double q_decayed = rounded(q(t, e) * std::exp(G(t, e)));
        for (int64_t m = 0; m < M; ++m) o(t, m) += q_decayed * rounded(S(e, m));
      }
      for (int64_t m = 0; m < M; ++m) o(t, m) = rounded(scale * o(t, m));
    }

    for (int64_t e = 0; e < E; ++e) {
      for (int64_t m = 0; m < M; ++m) S(e, m) *= std::exp(G(end - 1, e));
      for (int64_t t = first; t < end; ++t) {
        const double k_decayed = rounded(k(t, e) * std::exp(G(end - 1, e) - G(t, e)));
        for (int64_t m = 0; m < M; ++m) S(e, m) += k_decayed * v(t, m);
      }
    }
  }
  return o;
}

}  // namespace attn::chunked_gla
