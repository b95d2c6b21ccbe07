// Linear attention against its second form, over key lengths and unequal lengths.
#include "01_cpu_reference/linear_attention.hpp"

#include "01_cpu_reference/second_forms/quadratic_linear_attention.hpp"
#include "test_matrices.hpp"

namespace attn::reference {
namespace {

struct Sizes {
  int64_t Lq, Lk, E, M;
};

void PrintTo(const Sizes& s, std::ostream* out) {
  *out << "Lq " << s.Lq << ", Lk " << s.Lk << ", E " << s.E << ", M " << s.M;
}

class LinearAttention : public testing::TestWithParam<Sizes> {
 protected:
  const Sizes size = GetParam();
  const Matrix q = random_matrix(size.Lq, size.E, 1);
  const Matrix k = random_matrix(size.Lk, size.E, 2);
  const Matrix v = random_matrix(size.Lk, size.M, 3);
  const std::vector<int64_t> key_lengths = {0, 1, size.Lk / 2, size.Lk};
};

TEST_P(LinearAttention, IsTheWeightedMean) {
  for (int64_t length : key_lengths) {
    expect_equal(linear_attention(q, k, v, length), quadratic_linear_attention(q, k, v, length));
  }
}

TEST_P(LinearAttention, CausalIsTheWeightedMeanOfThePast) {
  for (int64_t length : key_lengths) {
    expect_equal(causal_linear_attention(q, k, v, length),
                 quadratic_causal_linear_attention(q, k, v, length));
  }
}

TEST_P(LinearAttention, MaskedKeysDoNotMatter) {
  const int64_t length = size.Lk / 2;
  Matrix other_k = k, other_v = v;
  for (int64_t j = length; j < size.Lk; j++) {
    for (int64_t e = 0; e < size.E; e++) other_k(j, e) = 100;
    for (int64_t m = 0; m < size.M; m++) other_v(j, m) = -100;
  }
  expect_equal(linear_attention(q, other_k, other_v, length), linear_attention(q, k, v, length));
  expect_equal(causal_linear_attention(q, other_k, other_v, length),
               causal_linear_attention(q, k, v, length));
}

TEST_P(LinearAttention, TheLastCausalQueryOfEqualLengthsSeesAllKeys) {
  const int64_t L = std::min(size.Lq, size.Lk);
  const Matrix q_cut = rows_of(q, 0, L), k_cut = rows_of(k, 0, L), v_cut = rows_of(v, 0, L);
  expect_equal(rows_of(causal_linear_attention(q_cut, k_cut, v_cut, L), L - 1, L),
               rows_of(linear_attention(q_cut, k_cut, v_cut, L), L - 1, L));
}

INSTANTIATE_TEST_SUITE_P(Shapes, LinearAttention,
                         testing::Values(Sizes{1, 1, 1, 1}, Sizes{2, 2, 10, 8}, Sizes{17, 15, 8, 1},
                                         Sizes{15, 63, 1, 32}, Sizes{64, 64, 48, 60},
                                         Sizes{100, 1, 32, 10}, Sizes{1, 100, 60, 64}));

TEST(LinearAttention, WithoutKeysIsZero) {
  const Matrix q = random_matrix(5, 4, 1), k = random_matrix(6, 4, 2), v = random_matrix(6, 3, 3);
  expect_equal(linear_attention(q, k, v, 0), Matrix(5, 3), 0);
  expect_equal(causal_linear_attention(q, k, v, 0), Matrix(5, 3), 0);
}

TEST(LinearAttention, FeatureMapIsPositiveAndContinuous) {
  EXPECT_EQ(feature_map(2), 3);
  EXPECT_EQ(feature_map(0), 1);
  EXPECT_NEAR(feature_map(-1e-9), 1, 1e-8);
  EXPECT_GT(feature_map(-50), 0);
}

}  // namespace
}  // namespace attn::reference
