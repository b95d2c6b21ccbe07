// Runs the GLA layer on drawn weights and inputs, and compares it with the float64 layer on the
// same ones. Exits with 1 where the error is above its bound.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

#include "01_cpu_reference/gla_layer.hpp"
#include "05_chunked_gla/examples/gla_layer.cuh"
#include "05_chunked_gla/examples/matmul.cuh"
#include "common/compare.hpp"
#include "common/device.hpp"
#include "common/driver/check_operand.hpp"
#include "common/driver/environment.hpp"
#include "common/element.hpp"

namespace {

using namespace attn;

// In fp32 the rest of the layer adds next to nothing to the operator's error, in tf32.
constexpr double kFloatBound = kTf32Tolerance;

// In bf16 every tensor between the kernels is rounded. That costs kRounding of its norm
// (common/compare.hpp), and as one error is independent of another, their squares add. On the way
// to y are, besides the operator with its own bound, nine of them: q, k, v, r, the normed o and y
// are factors of y, and three roundings make the gate (x W_g1, x W_g1 W_g2, g), which moves y by
// less.
//
// This holds as long as the norm does not magnify what is left of an o_t that all but cancels, as
// o_0 = scale (q_0 . k_0) v_0 does where q_0 and k_0 are orthogonal. In the inputs drawn here
// none are.
constexpr double kRounding = 1.7e-3;
const double kBf16Bound = std::hypot(tolerance(Dtype::bf16), std::sqrt(9.0) * kRounding);

struct Sizes {
  int64_t B, L, d, H, E, M;
};

// The layer's weights, drawn such that a projection keeps the variance of what it projects.
template <class T>
class Weights {
 public:
  explicit Weights(const Sizes& s)
      : heads_(s.H),
        W_q_("W_q", s.d, s.H * s.E),
        W_k_("W_k", s.d, s.H * s.E),
        W_v_("W_v", s.d, s.H * s.M),
        W_g1_("W_g1", s.d, 16),
        W_g2_("W_g2", 16, s.H * s.E),
        b_g_("b_g", 1, s.H * s.E),
        W_r_("W_r", s.d, s.H * s.M),
        w_norm_("w_norm", 1, s.M),
        W_o_("W_o", s.H * s.M, s.d) {}

  chunked_gla::GlaLayer<T> device() const {
    return {heads_,         W_q_.device(), W_k_.device(), W_v_.device(),    W_g1_.device(),
            W_g2_.device(), b_g_.device(), W_r_.device(), w_norm_.device(), W_o_.device()};
  }
  reference::GlaLayer truth() const {
    return {heads_,        W_q_.truth(), W_k_.truth(), W_v_.truth(),    W_g1_.truth(),
            W_g2_.truth(), b_g_.truth(), W_r_.truth(), w_norm_.truth(), W_o_.truth()};
  }

 private:
  class Weight {
   public:
    Weight(const char* name, int64_t rows, int64_t cols)
        : weight_(name, 1, 1, rows, cols, Layout::BHLD,
                  [rows](float x) { return x / std::sqrt(float(rows)); }) {}
    chunked_gla::MatrixView<const T> device() const {
      const TensorView<T> view = weight_.device();
      return {view.data, view.L, view.D};
    }
    Matrix truth() const { return weight_.slice(0, 0); }

   private:
    driver::CheckOperand<T> weight_;
  };

  const int64_t heads_;
  const Weight W_q_, W_k_, W_v_, W_g1_, W_g2_, b_g_, W_r_, w_norm_, W_o_;
};

// Prints the error; returns whether it is within the bound.
template <class T>
bool verify(const chunked_gla::MatmulLibrary& library, const Sizes& s, double bound) {
  const Weights<T> weights(s);
  const driver::CheckOperand<T> x("x", s.B, 1, s.L, s.d, Layout::BHLD);
  driver::CheckOperand<T> y("y", s.B, 1, s.L, s.d, Layout::BHLD);
  y.poison();
  chunked_gla::gla_layer<T>(library, weights.device(), s.B, {x.device().data, s.B * s.L, s.d},
                            {y.device().data, s.B * s.L, s.d});
  const reference::GlaLayer truth = weights.truth();
  const Comparison error = y.compare_with(
      bound, [&](int64_t b, int64_t) { return reference::gla_layer(truth, x.slice(b, 0)); });

  const bool right = error.passes(bound);
  std::printf("%-4s B,L,d = %d,%d,%d, H,E,M = %d,%d,%d: error %.1e, bound %.1e: %s\n",
              to_string(dtype_of<T>).c_str(), int(s.B), int(s.L), int(s.d), int(s.H), int(s.E),
              int(s.M), error.rel(), bound, right ? "ok" : "WRONG");
  return right;
}

}  // namespace

int main() {
  try {
    const driver::Environment environment = driver::find_environment(/*on_host=*/false);
    std::printf("05_gla_layer: the GLA layer against float64\nruns on: %s\n",
                driver::describe(environment, /*on_host=*/false).c_str());
    const chunked_gla::MatmulLibrary library;
    const bool has_bf16 = driver::kEmulated || compute_capability_major() >= 8;
    if (!has_bf16) std::printf("bf16 not run: this GPU lacks it\n");
    bool right = true;
    for (const Sizes& sizes : {Sizes{2, 37, 64, 2, 32, 48}, Sizes{1, 100, 50, 3, 17, 33}}) {
      right &= verify<float>(library, sizes, kFloatBound);
      if (has_bf16) right &= verify<__nv_bfloat16>(library, sizes, kBf16Bound);
    }
    return right ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "05_gla_layer: %s\n", error.what());
    return 1;
  }
}
