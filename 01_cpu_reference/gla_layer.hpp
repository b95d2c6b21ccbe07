// Float64 truth: the GLA layer, gated linear attention between its projections.
//
// Source: Yang et al., "Gated Linear Attention Transformers with Hardware-Efficient Training"
// (2023, arXiv:2312.06635), section 4.4, for one sequence. As in the authors' library,
// flash-linear-attention, and not as in the paper: the norm of a head is RMSNorm and not LayerNorm,
// the output gate has no bias, and q is scaled by E^-1/2.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "01_cpu_reference/gla.hpp"
#include "common/matrix.hpp"

namespace attn::reference {

inline constexpr double kGateTemperature = 16;  // the paper's tau
inline constexpr double kNormEps = 1e-5;

// d_k = H * E and d_v = H * M: head h has columns h * E .. (h + 1) * E, or M, of a projection.
struct GlaLayer {
  int64_t heads;    // H
  Matrix W_q, W_k;  // [d, d_k]
  Matrix W_v;       // [d, d_v]
  Matrix W_g1;      // [d, 16]: the gate is of low rank
  Matrix W_g2;      // [16, d_k]
  Matrix b_g;       // [1, d_k]
  Matrix W_r;       // [d, d_v]: the output gate
  Matrix w_norm;    // [1, M], shared by the heads
  Matrix W_o;       // [d_v, d]
};

inline Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.cols);
  for (int64_t i = 0; i < a.rows; i++) {
    for (int64_t j = 0; j < b.cols; j++) {
      for (int64_t l = 0; l < a.cols; l++) c(i, j) += a(i, l) * b(l, j);
    }
  }
  return c;
}

// The columns of head h, of `heads`.
inline Matrix head_columns(const Matrix& x, int64_t h, int64_t heads) {
  Matrix head(x.rows, x.cols / heads);
  for (int64_t t = 0; t < x.rows; t++) {
    for (int64_t c = 0; c < head.cols; c++) head(t, c) = x(t, h * head.cols + c);
  }
  return head;
}

// log(1 / (1 + exp(-x))), without the exponential of a large number.
inline double logsigmoid(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); }

inline double silu(double x) { return x / (1 + std::exp(-x)); }

// [doc:gla_layer]
//   q = x W_q,  k = x W_k,  v = x W_v,  g = logsigmoid(x W_g1 W_g2 + b_g) / 16
//   o = gla(q, k, v, g, scale = E^-1/2), head by head
//   y = (RMSNorm(o) * silu(x W_r)) W_o, the norm head by head
inline Matrix gla_layer(const GlaLayer& layer, const Matrix& x) {  // [L, d] -> [L, d]
  const Matrix q = product(x, layer.W_q), k = product(x, layer.W_k), v = product(x, layer.W_v);
  const Matrix r = product(x, layer.W_r);
  Matrix g = product(product(x, layer.W_g1), layer.W_g2);
  for (int64_t t = 0; t < g.rows; t++) {
    for (int64_t e = 0; e < g.cols; e++) {
      g(t, e) = logsigmoid(g(t, e) + layer.b_g(0, e)) / kGateTemperature;
    }
  }

  Matrix gated(v.rows, v.cols);
  for (int64_t h = 0; h < layer.heads; h++) {
    const auto head = [&](const Matrix& of) { return head_columns(of, h, layer.heads); };
    const Matrix q_h = head(q), v_h = head(v);
    const Matrix zeros(q_h.cols, v_h.cols);
    const Matrix o = gla(q_h, head(k), v_h, head(g), default_scale(q_h), zeros).o;
    for (int64_t t = 0; t < o.rows; t++) {
      double squares = 0;
      for (int64_t m = 0; m < o.cols; m++) squares += o(t, m) * o(t, m);
      const double rms = std::sqrt(squares / o.cols + kNormEps);
      for (int64_t m = 0; m < o.cols; m++) {
        const int64_t c = h * o.cols + m;
        gated(t, c) = o(t, m) / rms * layer.w_norm(0, m) * silu(r(t, c));
      }
    }
  }
  return product(gated, layer.W_o);
}
// [/doc:gla_layer]

}  // namespace attn::reference
