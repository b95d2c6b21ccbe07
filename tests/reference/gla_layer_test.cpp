// The GLA layer, written out element by element.
#include "01_cpu_reference/gla_layer.hpp"

#include <cmath>
#include <vector>

#include "01_cpu_reference/causal_product.hpp"
#include "test_matrices.hpp"

namespace attn::reference {
namespace {

constexpr int64_t L = 19, d = 10, H = 3, E = 4, M = 5;
constexpr int64_t d_k = H * E, d_v = H * M;

class Layer : public testing::Test {
 protected:
  // y from what the operator makes of each head: norm, output gate and projection, element by
  // element.
  Matrix finish(const std::vector<Matrix>& o) const {
    Matrix y(L, d);
    for (int64_t t = 0; t < L; t++) {
      for (int64_t c = 0; c < d_v; c++) {
        double r = 0, mean_square = 0;
        for (int64_t i = 0; i < d; i++) r += x(t, i) * layer.W_r(i, c);
        for (int64_t m = 0; m < M; m++) mean_square += std::pow(o[c / M](t, m), 2) / M;
        const double gated = o[c / M](t, c % M) / std::sqrt(mean_square + 1e-5) *
                             layer.w_norm(0, c % M) * r / (1 + std::exp(-r));
        for (int64_t j = 0; j < d; j++) y(t, j) += gated * layer.W_o(c, j);
      }
    }
    return y;
  }

  // Head h of the projection of x, times `factor`.
  Matrix project(const Matrix& W, int64_t h, double factor = 1) const {
    const int64_t cols = W.cols / H;
    Matrix result(L, cols);
    for (int64_t t = 0; t < L; t++) {
      for (int64_t c = 0; c < cols; c++) {
        for (int64_t i = 0; i < d; i++) result(t, c) += factor * x(t, i) * W(i, h * cols + c);
      }
    }
    return result;
  }

  GlaLayer layer = {
      .heads = H,
      .W_q = random_matrix(d, d_k, 1),
      .W_k = random_matrix(d, d_k, 2),
      .W_v = random_matrix(d, d_v, 3),
      .W_g1 = random_matrix(d, 16, 4),
      .W_g2 = random_matrix(16, d_k, 5),
      .b_g = random_matrix(1, d_k, 6),
      .W_r = random_matrix(d, d_v, 7),
      .w_norm = random_matrix(1, M, 8),
      .W_o = random_matrix(d_v, d, 9),
  };
  const Matrix x = random_matrix(L, d, 10);
  const double scale = 1 / std::sqrt(double(E));
};

TEST_F(Layer, WithOpenGatesIsTheCausalProduct) {
  layer.W_g2 = Matrix(16, d_k);
  layer.b_g = Matrix(1, d_k, 1000);
  std::vector<Matrix> o;
  for (int64_t h = 0; h < H; h++) {
    o.push_back(
        causal_product(project(layer.W_q, h, scale), project(layer.W_k, h), project(layer.W_v, h)));
  }
  expect_equal(gla_layer(layer, x), finish(o));
}

// Position t weighs the one s before it by the product of sigmoids, each to the power 1/16.
TEST_F(Layer, DecaysByTheSigmoidOfItsGate) {
  std::vector<Matrix> o(H, Matrix(L, M));
  for (int64_t h = 0; h < H; h++) {
    const Matrix q = project(layer.W_q, h, scale), k = project(layer.W_k, h);
    const Matrix v = project(layer.W_v, h);
    for (int64_t e = 0; e < E; e++) {
      const int64_t c = h * E + e;
      for (int64_t t = 0; t < L; t++) {
        double weight = 1;
        for (int64_t s = t; s >= 0; s--) {
          for (int64_t m = 0; m < M; m++) o[h](t, m) += q(t, e) * weight * k(s, e) * v(s, m);
          double gate = layer.b_g(0, c);
          for (int64_t i = 0; i < d; i++) {
            for (int64_t l = 0; l < 16; l++) gate += x(s, i) * layer.W_g1(i, l) * layer.W_g2(l, c);
          }
          weight *= std::pow(1 / (1 + std::exp(-gate)), 1.0 / 16);
        }
      }
    }
  }
  expect_equal(gla_layer(layer, x), finish(o));
}

}  // namespace
}  // namespace attn::reference
