#include "common/compare.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace attn {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Compares one slice [1, 1, 2, n / 2].
Comparison compare_values(const std::vector<float>& out, const std::vector<double>& expected,
                          double tolerance = 1e-5) {
  const int64_t cols = out.size() / 2;
  Matrix reference(2, cols);
  reference.data = expected;
  return compare<float>(dense_view(out.data(), 1, 1, 2, cols, Layout::BHLD), 0, 0, reference,
                        tolerance);
}

TEST(Compare, MeasuresRelativeAndLargestError) {
  const Comparison found = compare_values({3, 4, 0, 0.5f}, {3, 4, 0, 0});
  EXPECT_DOUBLE_EQ(found.rel(), 0.5 / 5);
  EXPECT_DOUBLE_EQ(found.max_abs, 0.5);
  EXPECT_EQ(found.elements, 4);
  EXPECT_TRUE(found.passes(0.1000001));
  EXPECT_FALSE(found.passes(0.0999999));
  ASSERT_TRUE(found.first_wrong);
  EXPECT_EQ(found.first_wrong->row, 1);
  EXPECT_EQ(found.first_wrong->col, 1);
  EXPECT_EQ(found.first_wrong->got, 0.5);
  EXPECT_EQ(found.first_wrong->expected, 0);
}

TEST(Compare, PassesWhatIsRight) {
  const Comparison found = compare_values({1, 2, 3, 4.00001f}, {1, 2, 3, 4});
  EXPECT_TRUE(found.passes(1e-5));
  EXPECT_FALSE(found.first_wrong);
  EXPECT_TRUE(compare_values({0, 0}, {0, 0}).passes(1e-5));
}

TEST(Compare, NaNNeverPasses) {
  for (double tolerance : {1e-5, 1e30, kInfinity}) {
    const Comparison found = compare_values({1, float(kNaN), 3, 4}, {1, 2, 3, 4}, tolerance);
    EXPECT_FALSE(found.passes(tolerance));
    EXPECT_EQ(found.unwritten, 1);
    ASSERT_TRUE(found.first_wrong);
    EXPECT_EQ(found.first_wrong->col, 1);
    EXPECT_FALSE(found.first_wrong->never_written);
  }
  EXPECT_FALSE(compare_values({1, 2}, {1, 2}).passes(kNaN));
}

TEST(Compare, TellsPoisonFromComputedNaN) {
  std::vector<float> out = {1, 2, 3, 4};
  std::memset(&out[3], 0xff, sizeof(float));
  const Comparison found = compare_values(out, {1, 2, 3, 4});
  EXPECT_FALSE(found.passes(1e-5));
  ASSERT_TRUE(found.first_wrong);
  EXPECT_TRUE(found.first_wrong->never_written);
}

TEST(Compare, NaNInTheTruthMustBeNaN) {
  EXPECT_TRUE(compare_values({1, float(kNaN)}, {1, kNaN}).passes(1e-5));
  const Comparison found = compare_values({1, 2}, {1, kNaN});
  EXPECT_FALSE(found.passes(1e30));
  EXPECT_TRUE(found.first_wrong);
}

TEST(Compare, InfinityInTheTruthMustBeTheSame) {
  EXPECT_TRUE(compare_values({1, float(kInfinity)}, {1, kInfinity}).passes(1e-5));
  EXPECT_FALSE(compare_values({1, float(-kInfinity)}, {1, kInfinity}).passes(1e30));
  EXPECT_FALSE(compare_values({1, 2}, {1, kInfinity}).passes(1e30));
  EXPECT_FALSE(compare_values({1, float(kInfinity)}, {1, 2}).passes(1e30));
  EXPECT_FALSE(compare_values({1, float(kNaN)}, {1, kInfinity}).passes(1e30));
}

TEST(Compare, NothingComparedIsNotRight) { EXPECT_FALSE(Comparison().passes(1)); }

TEST(Compare, ErrorWhereTheTruthIsZeroIsInfinite) {
  EXPECT_EQ(compare_values({0, 1e-30f}, {0, 0}).rel(), kInfinity);
}

TEST(Compare, ASliceThatFailsNamesAnElement) {
  // Evenly spread small errors, none of which stands out.
  std::vector<float> out(100);
  std::vector<double> expected(100);
  for (int i = 0; i < 100; ++i) {
    expected[i] = std::sin(i);
    out[i] = expected[i] + 2e-5 * (i % 2 ? 1 : -1);
  }
  const Comparison found = compare_values(out, expected);
  EXPECT_FALSE(found.passes(1e-5));
  EXPECT_TRUE(found.first_wrong);
}

TEST(Compare, MergesAsIfComparedInOneGo) {
  Comparison merged = compare_values({3, 4}, {3, 4});
  merged.merge(compare_values({0, 12.5f}, {0, 12}));
  EXPECT_DOUBLE_EQ(merged.rel(), 0.5 / 13);
  EXPECT_EQ(merged.elements, 4);
  EXPECT_EQ(merged.first_wrong->got, 12.5);
  merged.merge(compare_values({float(kNaN), 1}, {1, 1}));
  EXPECT_FALSE(merged.passes(1e30));
  EXPECT_EQ(merged.unwritten, 1);
}

TEST(Compare, PicksTheSliceByLayout) {
  std::vector<float> data(2 * 3 * 4 * 5);
  for (size_t i = 0; i < data.size(); ++i) data[i] = i;
  for (Layout layout : {Layout::BHLD, Layout::BLHD}) {
    const auto view = dense_view<const float>(data.data(), 2, 3, 4, 5, layout);
    Matrix reference(4, 5);
    for (int l = 0; l < 4; ++l)
      for (int d = 0; d < 5; ++d)
        reference(l, d) =
            layout == Layout::BHLD ? ((1 * 3 + 2) * 4 + l) * 5 + d : ((1 * 4 + l) * 3 + 2) * 5 + d;
    EXPECT_EQ(compare<float>(view, 1, 2, reference, 1e-5).max_abs, 0);
  }
  EXPECT_THROW(compare<float>(dense_view<const float>(data.data(), 2, 3, 4, 5, Layout::BHLD), 0, 0,
                              Matrix(4, 6), 1e-5),
               std::logic_error);
}

TEST(FirstNaN, FindsTheFirstInLogicalOrder) {
  std::vector<float> data(3 * 200 * 4 * 5, 1);
  const auto view = dense_view(data.data(), 3, 200, 4, 5, Layout::BLHD);
  EXPECT_FALSE(first_nan<float>(view));
  view.row(2, 0, 0)[0] = kNaN;
  view.row(1, 199, 3)[4] = kNaN;
  const auto found = first_nan<float>(view);
  ASSERT_TRUE(found);
  EXPECT_EQ(std::tuple(found->b, found->h, found->row, found->col), std::tuple(1, 199, 3, 4));
}

}  // namespace
}  // namespace attn
