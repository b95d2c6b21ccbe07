// The causal product against its second form, and the identities of the recurrence.
#include "01_cpu_reference/causal_product.hpp"

#include "01_cpu_reference/second_forms/log_space_rwkv6.hpp"
#include "01_cpu_reference/second_forms/quadratic_causal_product.hpp"
#include "test_matrices.hpp"

namespace attn::reference {
namespace {

struct Sizes {
  int64_t L, E, M;
};

void PrintTo(const Sizes& s, std::ostream* out) {
  *out << "L " << s.L << ", E " << s.E << ", M " << s.M;
}

class CausalProduct : public testing::TestWithParam<Sizes> {
 protected:
  const Sizes size = GetParam();
  const Matrix q = random_matrix(size.L, size.E, 1);
  const Matrix k = random_matrix(size.L, size.E, 2);
  const Matrix v = random_matrix(size.L, size.M, 3);
};

TEST_P(CausalProduct, IsTheMaskedScoresTimesV) {
  expect_equal(causal_product(q, k, v), quadratic_causal_product(q, k, v));
}

TEST_P(CausalProduct, ReversedIsTheTransposedMaskTimesV) {
  expect_equal(reversed_causal_product(q, k, v), quadratic_reversed_causal_product(q, k, v));
}

TEST_P(CausalProduct, ReversedIsFlippedCausalOfFlipped) {
  expect_equal(reversed_causal_product(q, k, v), flip(causal_product(flip(q), flip(k), flip(v))));
}

INSTANTIATE_TEST_SUITE_P(Shapes, CausalProduct,
                         testing::Values(Sizes{1, 1, 1}, Sizes{2, 10, 1}, Sizes{15, 1, 32},
                                         Sizes{17, 48, 60}, Sizes{64, 64, 64}, Sizes{100, 8, 100},
                                         Sizes{127, 60, 10}));

TEST(CausalProduct, IsRightOnAnExampleByHand) {
  Matrix q(2, 1), k(2, 1), v(2, 1);
  q.data = {2, 3};
  k.data = {5, 7};
  v.data = {11, 13};
  expect_equal(causal_product(q, k, v), [] {
    Matrix o(2, 1);
    o.data = {2 * 5 * 11, 3 * (5 * 11 + 7 * 13)};
    return o;
  }());
}

}  // namespace
}  // namespace attn::reference
