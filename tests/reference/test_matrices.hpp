// What the tests of the references share: seeded matrices, slices of them, and the comparison.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "common/matrix.hpp"

namespace attn::reference {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Draws of N(0, 1).
inline Matrix random_matrix(int64_t rows, int64_t cols, unsigned seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  Matrix x(rows, cols);
  for (double& element : x.data) element = normal(engine);
  return x;
}

// Gates in log space: -|N(0, 1)| * strength, and `reset` in about one element of ten.
inline Matrix random_gates(int64_t rows, int64_t cols, unsigned seed, double strength,
                           double reset) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  Matrix g(rows, cols);
  for (double& element : g.data) {
    element = engine() % 10 == 0 ? reset : -std::abs(normal(engine)) * strength;
  }
  return g;
}

// Rows first <= i < last.
inline Matrix rows_of(const Matrix& x, int64_t first, int64_t last) {
  Matrix slice(last - first, x.cols);
  std::copy(x.data.begin() + first * x.cols, x.data.begin() + last * x.cols, slice.data.begin());
  return slice;
}

// Float64 against float64: they differ by rounding and by the order of sums. A NaN on either side
// fails, two infinities of one sign agree.
inline void expect_equal(const Matrix& actual, const Matrix& expected, double tolerance = 1e-11) {
  ASSERT_EQ(actual.rows, expected.rows);
  ASSERT_EQ(actual.cols, expected.cols);
  double largest = 1;
  for (double x : expected.data) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  }
  for (int64_t i = 0; i < expected.rows; i++) {
    for (int64_t j = 0; j < expected.cols; j++) {
      const double a = actual(i, j), b = expected(i, j);
      const bool equal = a == b || std::abs(a - b) <= tolerance * largest;
      ASSERT_TRUE(equal) << "at row " << i << ", column " << j << ": " << a << " against " << b;
    }
  }
}

}  // namespace attn::reference
