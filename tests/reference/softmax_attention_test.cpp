// Softmax attention against the online form, where naive forms break.
#include "01_cpu_reference/softmax_attention.hpp"

#include "01_cpu_reference/second_forms/online_softmax_attention.hpp"
#include "test_matrices.hpp"

namespace attn::reference {
namespace {

struct Sizes {
  int64_t Lq, Lk, E, M;
};

void PrintTo(const Sizes& s, std::ostream* out) {
  *out << "Lq " << s.Lq << ", Lk " << s.Lk << ", E " << s.E << ", M " << s.M;
}

class Softmax : public testing::TestWithParam<Sizes> {
 protected:
  const Sizes size = GetParam();
  const double scale = 1 / std::sqrt(static_cast<double>(size.E));
  Matrix q = random_matrix(size.Lq, size.E, 1);
  Matrix k = random_matrix(size.Lk, size.E, 2);
  const Matrix v = random_matrix(size.Lk, size.M, 3);

  void expect_forms_to_agree() {
    for (bool causal : {false, true}) {
      const SoftmaxResult plain = softmax_attention(q, k, v, scale, causal);
      const SoftmaxResult online = online_softmax_attention(q, k, v, scale, causal);
      expect_equal(plain.o, online.o);
      expect_equal(plain.lse, online.lse);
    }
  }
};

TEST_P(Softmax, IsTheOnlineForm) { expect_forms_to_agree(); }

TEST_P(Softmax, IsTheOnlineFormWhereEveryScoreIsFarBelowZero) {
  for (double& x : q.data) x = 40 * std::abs(x) + 1;
  for (double& x : k.data) x = -40 * std::abs(x) - 1;
  expect_forms_to_agree();
}

TEST_P(Softmax, IsTheOnlineFormWhereExpOfAScoreWouldOverflow) {
  for (double& x : q.data) x = 40 * std::abs(x) + 1;
  for (double& x : k.data) x = 40 * std::abs(x) + 1;
  expect_forms_to_agree();
}

TEST_P(Softmax, CausalQueriesAreAlignedToTheLastKey) {
  const SoftmaxResult causal = softmax_attention(q, k, v, scale, true);
  for (int64_t i = 0; i < size.Lq; i++) {
    const int64_t keys = size.Lk - (size.Lq - 1 - i);
    const Matrix row = rows_of(causal.o, i, i + 1);
    if (keys <= 0) {
      expect_equal(row, Matrix(1, size.M), 0);
      EXPECT_EQ(causal.lse(i, 0), -kInfinity);
    } else {
      const SoftmaxResult seen = softmax_attention(rows_of(q, i, i + 1), rows_of(k, 0, keys),
                                                   rows_of(v, 0, keys), scale, false);
      expect_equal(row, seen.o);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Softmax,
                         testing::Values(Sizes{1, 1, 1, 1}, Sizes{2, 2, 10, 8}, Sizes{17, 15, 8, 1},
                                         Sizes{15, 63, 1, 32}, Sizes{64, 64, 48, 60},
                                         Sizes{100, 2, 32, 10}, Sizes{1, 100, 60, 64}));

TEST(Softmax, WithoutKeysIsZeroAndMinusInfinity) {
  for (bool causal : {false, true}) {
    const SoftmaxResult result =
        softmax_attention(Matrix(3, 4, 1), Matrix(0, 4), Matrix(0, 2), 1, causal);
    expect_equal(result.o, Matrix(3, 2), 0);
    expect_equal(result.lse, Matrix(3, 1, -kInfinity));
  }
}

TEST(Softmax, SomeOfTheQueriesAreThoseOfAll) {
  const Matrix q = random_matrix(10, 8, 1), k = random_matrix(13, 8, 2),
               v = random_matrix(13, 5, 3);
  const SoftmaxResult all = softmax_attention(q, k, v, 0.3, true);
  const SoftmaxResult some = softmax_attention(q, k, v, 0.3, true, /*first=*/1, /*step=*/4);
  ASSERT_EQ(some.o.rows, 3);  // 1, 5 and 9
  for (int64_t i = 0; i < 3; i++) {
    expect_equal(rows_of(some.o, i, i + 1), rows_of(all.o, 1 + 4 * i, 2 + 4 * i), 0);
    EXPECT_EQ(some.lse(i, 0), all.lse(1 + 4 * i, 0));
  }
}

TEST(Softmax, IsRightOnAnExampleByHand) {
  Matrix q(1, 1, 1), k(2, 1), v(2, 1);
  k.data = {std::log(1.0), std::log(3.0)};
  v.data = {4, 8};
  const SoftmaxResult result = softmax_attention(q, k, v, 1, false);
  EXPECT_NEAR(result.o(0, 0), (1 * 4 + 3 * 8) / 4.0, 1e-12);
  EXPECT_NEAR(result.lse(0, 0), std::log(4.0), 1e-12);
}

}  // namespace
}  // namespace attn::reference
