// What the driver of stage 01 does not reach: step 3 on each instruction set that this machine has
// (the driver takes the best), and where its segments begin and end.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "01_cpu_reference/causal_product.hpp"
#include "01_cpu_reference/step1_scalar.hpp"
#include "01_cpu_reference/step2_openmp.hpp"
#include "01_cpu_reference/step3_chunked.hpp"
#include "common/compare.hpp"
#include "common/shape.hpp"

namespace attn::cpu {
namespace {

std::vector<float> random_floats(int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& element : x) element = normal(engine);
  return x;
}

Matrix slice(const TensorView<const float>& x, int64_t b, int64_t h) {
  Matrix matrix(x.L, x.D);
  for (int64_t l = 0; l < x.L; l++) {
    for (int64_t d = 0; d < x.D; d++) matrix(l, d) = x.row(b, h, l)[d];
  }
  return matrix;
}

class Ladder : public testing::TestWithParam<Shape> {
 protected:
  using View = TensorView<const float>;

  // Runs a step on both layouts, over NaN, and compares every slice with the truth.
  template <class CausalProduct>
  void expect_truth(CausalProduct causal_product) {
    const auto& [B, H, L, E, M] = GetParam();
    const std::vector<float> q_data = random_floats(B * H * L * E, 1);
    const std::vector<float> k_data = random_floats(B * H * L * E, 2);
    const std::vector<float> v_data = random_floats(B * H * L * M, 3);
    for (Layout layout : {Layout::BHLD, Layout::BLHD}) {
      const View q = dense_view(q_data.data(), B, H, L, E, layout);
      const View k = dense_view(k_data.data(), B, H, L, E, layout);
      const View v = dense_view(v_data.data(), B, H, L, M, layout);
      std::vector<float> o_data(v_data.size(), NAN);
      const TensorView<float> o = dense_view(o_data.data(), B, H, L, M, layout);
      causal_product(q, k, v, o);
      Comparison whole;
      for (int64_t b = 0; b < B; b++) {
        for (int64_t h = 0; h < H; h++) {
          whole.merge(compare<float>(
              o, b, h, reference::causal_product(slice(q, b, h), slice(k, b, h), slice(v, b, h)),
              tolerance(Dtype::f32)));
        }
      }
      EXPECT_TRUE(whole.passes(tolerance(Dtype::f32))) << "relative error " << whole.rel();
    }
  }
};

TEST_P(Ladder, Scalar) { expect_truth(causal_product_scalar); }

TEST_P(Ladder, OpenMP) { expect_truth(causal_product_openmp); }

TEST_P(Ladder, ChunkedOnEveryInstructionSet) {
  for (Isa isa : usable_isas()) {
    SCOPED_TRACE(testing::Message() << "instruction set " << static_cast<int>(isa));
    expect_truth([isa](auto... operands) { causal_product_chunked(operands..., isa); });
  }
}

// Lengths around a chunk, head sizes around a tile; one sequence (cut into segments) and many.
INSTANTIATE_TEST_SUITE_P(Shapes, Ladder,
                         testing::Values(Shape{1, 1, 33, 1, 1}, Shape{1, 1, 64, 8, 32},
                                         Shape{1, 1, 65, 10, 33}, Shape{1, 1, 1000, 60, 100},
                                         Shape{1, 1, 4096, 16, 16}, Shape{3, 1, 200, 17, 48},
                                         Shape{2, 5, 127, 100, 60}, Shape{1, 9, 31, 64, 64},
                                         Shape{1, 1, 150, 512, 200}),
                         [](const auto& info) {
                           std::string name = to_string(info.param);
                           for (char& c : name) c = c == ',' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace attn::cpu
