#include "common/inputs.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "common/element.hpp"

namespace attn {
namespace {

struct Filled {
  std::vector<float> data;
  TensorView<float> view;

  Filled(int64_t B, int64_t H, int64_t L, int64_t D, Layout layout, uint64_t seed, const char* name)
      : data(B * H * L * D), view(dense_view(data.data(), B, H, L, D, layout)) {
    fill_normal(view, seed, name);
  }
};

TEST(Inputs, HaveMeanZeroVarianceOneAndNormalTails) {
  const Filled tensor(4, 4, 1000, 63, Layout::BHLD, 1, "q");
  double sum = 0, squares = 0, fourths = 0, beyond_two = 0;
  for (double x : tensor.data) {
    sum += x;
    squares += x * x;
    fourths += x * x * x * x;
    beyond_two += std::abs(x) > 2;
  }
  const double n = tensor.data.size();
  // Five standard errors.
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourths / n, 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(beyond_two / n, 0.0455, 5 * std::sqrt(0.0455 / n));
}

TEST(Inputs, NeighboursAreUncorrelated) {
  const Filled tensor(2, 2, 1000, 64, Layout::BHLD, 1, "q");
  const auto& x = tensor.data;
  for (size_t distance : {1, 2, 64, 64000}) {
    double sum = 0;
    for (size_t i = distance; i < x.size(); ++i) sum += double(x[i]) * x[i - distance];
    const double n = x.size() - distance;
    EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n)) << "at distance " << distance;
  }
}

TEST(Inputs, DependOnIndexNotOnLayoutOrSize) {
  const Filled tensor(2, 3, 40, 10, Layout::BHLD, 7, "v");
  const Filled turned(2, 3, 40, 10, Layout::BLHD, 7, "v");
  const Filled larger(3, 5, 41, 13, Layout::BLHD, 7, "v");
  for (int b = 0; b < 2; ++b) {
    for (int h = 0; h < 3; ++h) {
      for (int l = 0; l < 40; ++l) {
        for (int d = 0; d < 10; ++d) {
          EXPECT_EQ(tensor.view.row(b, h, l)[d], turned.view.row(b, h, l)[d]);
          EXPECT_EQ(tensor.view.row(b, h, l)[d], larger.view.row(b, h, l)[d]);
        }
      }
    }
  }
}

TEST(Inputs, AreTheSameAgainAndDifferByTensorAndSeed) {
  const Filled first(2, 2, 100, 16, Layout::BHLD, 7, "q");
  EXPECT_EQ(first.data, Filled(2, 2, 100, 16, Layout::BHLD, 7, "q").data);
  const Filled other_tensor(2, 2, 100, 16, Layout::BHLD, 7, "k");
  const Filled other_seed(2, 2, 100, 16, Layout::BHLD, 8, "q");
  int equal = 0;
  for (size_t i = 0; i < first.data.size(); ++i)
    equal += (first.data[i] == other_tensor.data[i]) + (first.data[i] == other_seed.data[i]);
  EXPECT_LT(equal, 5);
}

TEST(Inputs, AreTransformedThenRounded) {
  std::vector<__nv_bfloat16> data(64);
  fill_normal(dense_view(data.data(), 1, 1, 1, 64, Layout::BHLD), 3, "g",
              [](float x) { return -std::abs(x); });
  std::vector<float> draws(64);
  normal_row(3, "g", 0, 0, 0, draws.data(), 64);
  for (int d = 0; d < 64; ++d)
    EXPECT_EQ(to_float(data[d]), to_float(from_float<__nv_bfloat16>(-std::abs(draws[d]))));
}

}  // namespace
}  // namespace attn
