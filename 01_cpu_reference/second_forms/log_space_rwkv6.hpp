// Second form of RWKV-6: every output by itself, as in log_space_gla.hpp. The decay is exclusive:
// at t, row s < t weighs exp(w_{s+1} + ... + w_{t-1}), and row t itself weighs u.
#pragma once

#include <cstdint>

#include "01_cpu_reference/recurrent_result.hpp"
#include "01_cpu_reference/second_forms/log_space_gla.hpp"
#include "common/matrix.hpp"

namespace attn::reference {

// The rows of x from last to first.
inline Matrix flip(const Matrix& x) {
  Matrix flipped(x.rows, x.cols);
  for (int64_t i = 0; i < x.rows; i++) {
    for (int64_t j = 0; j < x.cols; j++) flipped(i, j) = x(x.rows - 1 - i, j);
  }
  return flipped;
}

inline RecurrentResult log_space_rwkv6(const Matrix& r,              // [L, E]
                                       const Matrix& k,              // [L, E]
                                       const Matrix& v,              // [L, M]
                                       const Matrix& w,              // [L, E], <= 0
                                       const Matrix& u,              // [1, E]
                                       double scale,                 //
                                       const Matrix& initial_state,  // [E, M]
                                       bool reverse = false) {
  if (reverse) {
    const RecurrentResult flipped =
        log_space_rwkv6(flip(r), flip(k), flip(v), flip(w), u, scale, initial_state);
    return {flip(flipped.o), flipped.final_state};
  }
  Matrix o(r.rows, v.cols);
  for (int64_t t = 0; t < r.rows; t++) {
    Matrix x(1, r.cols);
    double bonus = 0;
    for (int64_t e = 0; e < r.cols; e++) {
      x(0, e) = scale * r(t, e);
      bonus += x(0, e) * u(0, e) * k(t, e);
    }
    const Matrix past = read_state_after(t - 1, x, k, v, w, initial_state);
    for (int64_t m = 0; m < v.cols; m++) o(t, m) = past(0, m) + bonus * v(t, m);
  }
  return {o, log_space_final_state(k, v, w, initial_state)};
}

}  // namespace attn::reference
