// GLA and RWKV-6 against their log-space forms, and the identities between the operators.
#include "01_cpu_reference/causal_product.hpp"
#include "01_cpu_reference/gla.hpp"
#include "01_cpu_reference/rwkv6.hpp"
#include "01_cpu_reference/second_forms/log_space_gla.hpp"
#include "01_cpu_reference/second_forms/log_space_rwkv6.hpp"
#include "test_matrices.hpp"

namespace attn::reference {
namespace {

struct Case {
  int64_t L, E, M;
  double strength;  // of the gates
  double reset;     // what one gate in ten is
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << "L " << c.L << ", E " << c.E << ", M " << c.M << ", gates of about " << -c.strength
       << ", one in ten " << c.reset;
}

class Gated : public testing::TestWithParam<Case> {
 protected:
  const Case c = GetParam();
  const Matrix q = random_matrix(c.L, c.E, 1);
  const Matrix k = random_matrix(c.L, c.E, 2);
  const Matrix v = random_matrix(c.L, c.M, 3);
  const Matrix gates = random_gates(c.L, c.E, 4, c.strength, c.reset);
  const Matrix u = random_matrix(1, c.E, 5);
  const Matrix state = random_matrix(c.E, c.M, 6);
  const Matrix ones = Matrix(1, c.E, 1);
  const Matrix zero_state = Matrix(c.E, c.M);
  const Matrix no_decay = Matrix(c.L, c.E);
};

void expect_equal_results(const RecurrentResult& actual, const RecurrentResult& expected) {
  expect_equal(actual.o, expected.o);
  expect_equal(actual.final_state, expected.final_state);
}

TEST_P(Gated, GlaIsItsLogSpaceForm) {
  const double scale = default_scale(q);
  expect_equal_results(gla(q, k, v, gates, scale, state),
                       log_space_gla(q, k, v, gates, scale, state));
}

TEST_P(Gated, Rwkv6IsItsLogSpaceForm) {
  for (bool reverse : {false, true}) {
    expect_equal_results(rwkv6(q, k, v, gates, u, 0.5, state, reverse),
                         log_space_rwkv6(q, k, v, gates, u, 0.5, state, reverse));
  }
}

TEST_P(Gated, WithoutDecayBothAreTheCausalProduct) {
  const Matrix expected = causal_product(q, k, v);
  expect_equal(gla(q, k, v, no_decay, 1, zero_state).o, expected);
  expect_equal(rwkv6(q, k, v, no_decay, ones, 1, zero_state).o, expected);
  expect_equal(rwkv6(q, k, v, no_decay, ones, 1, zero_state, true).o,
               reversed_causal_product(q, k, v));
}

TEST_P(Gated, GlaInTwoPartsIsOnePass) {
  const int64_t cut = c.L / 3;
  const RecurrentResult whole = gla(q, k, v, gates, 0.5, state);
  const RecurrentResult first = gla(rows_of(q, 0, cut), rows_of(k, 0, cut), rows_of(v, 0, cut),
                                    rows_of(gates, 0, cut), 0.5, state);
  const RecurrentResult second =
      gla(rows_of(q, cut, c.L), rows_of(k, cut, c.L), rows_of(v, cut, c.L),
          rows_of(gates, cut, c.L), 0.5, first.final_state);
  expect_equal(first.o, rows_of(whole.o, 0, cut));
  expect_equal(second.o, rows_of(whole.o, cut, c.L));
  expect_equal(second.final_state, whole.final_state);
}

TEST_P(Gated, Rwkv6InTwoPartsIsOnePass) {
  const int64_t cut = c.L / 3;
  for (bool reverse : {false, true}) {
    const RecurrentResult whole = rwkv6(q, k, v, gates, u, 1, state, reverse);
    const auto part = [&](int64_t first, int64_t last, const Matrix& initial_state) {
      return rwkv6(rows_of(q, first, last), rows_of(k, first, last), rows_of(v, first, last),
                   rows_of(gates, first, last), u, 1, initial_state, reverse);
    };
    // Backwards, the part with the last rows comes first.
    const RecurrentResult early = reverse ? part(cut, c.L, state) : part(0, cut, state);
    const RecurrentResult late =
        reverse ? part(0, cut, early.final_state) : part(cut, c.L, early.final_state);
    expect_equal(reverse ? late.o : early.o, rows_of(whole.o, 0, cut));
    expect_equal(reverse ? early.o : late.o, rows_of(whole.o, cut, c.L));
    expect_equal(late.final_state, whole.final_state);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Gated,
                         testing::Values(Case{1, 1, 1, 0.1, -0.1}, Case{2, 10, 8, 1, -1},
                                         Case{17, 8, 1, 0.06, -1e4}, Case{15, 1, 32, 2, -kInfinity},
                                         Case{64, 32, 10, 0.06, -kInfinity},
                                         Case{65, 10, 48, 2, -1e4},
                                         Case{100, 17, 20, 8, -kInfinity}));

TEST(Gated, ResetEverywhereLeavesTheLastRowAlone) {
  const int64_t L = 9, E = 4, M = 3;
  const Matrix q = random_matrix(L, E, 1), k = random_matrix(L, E, 2), v = random_matrix(L, M, 3);
  for (double reset : {-1e4, -kInfinity}) {
    const RecurrentResult result = gla(q, k, v, Matrix(L, E, reset), 1, random_matrix(E, M, 4));
    Matrix o(L, M), final_state(E, M);
    for (int64_t m = 0; m < M; m++) {
      for (int64_t e = 0; e < E; e++) {
        for (int64_t t = 0; t < L; t++) o(t, m) += q(t, e) * k(t, e) * v(t, m);
        final_state(e, m) = k(L - 1, e) * v(L - 1, m);
      }
    }
    expect_equal(result.o, o);
    expect_equal(result.final_state, final_state);
  }
}

// The published bug: one decay too many, or too few. Two rows tell the two operators apart.
TEST(Gated, GlaDecaysBeforeAndRwkv6AfterTheRead) {
  const double half = std::log(0.5);
  const Matrix one(2, 1, 1), state(1, 1, 1);
  Matrix gates(2, 1);
  gates.data = {half, 2 * half};
  // S: 1 -> 1/2 + 1 = 3/2 -> 3/8 + 1
  Matrix expected(2, 1);
  expected.data = {1.5, 1.375};
  expect_equal(gla(one, one, one, gates, 1, state).o, expected);
  // o_t reads S_{t-1} + 1: 1 + 1, then 3/2 + 1
  expected.data = {2, 2.5};
  expect_equal(rwkv6(one, one, one, gates, Matrix(1, 1, 1), 1, state).o, expected);
}

}  // namespace
}  // namespace attn::reference
