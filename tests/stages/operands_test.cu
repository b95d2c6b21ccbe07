// Operands that do not fit together get one line that names what is wrong, before any launch.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "02_naive_cuda/kernel.cuh"
#include "03_shared_mem/kernel.cuh"
#include "04_double_buffer/causal_product.cuh"

namespace attn {
namespace {

// Views of no memory: nothing may be launched on them.
TensorView<float> view(int64_t H, int64_t L, int64_t D) {
  return dense_view<float>(nullptr, 1, H, L, D, Layout::BHLD);
}

template <class Product>
std::string error_of(Product product, TensorView<float> q, TensorView<float> k, TensorView<float> v,
                     TensorView<float> o) {
  try {
    product(q, k, v, o);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

template <class Product>
void expect_checked(Product product) {
  const auto q = view(2, 8, 16), v = view(2, 8, 32);
  EXPECT_EQ(error_of(product, q, view(3, 8, 16), v, v),
            "causal product: q, k, v and o differ in H");
  EXPECT_EQ(error_of(product, q, view(2, 8, 17), v, v),
            "causal product: q and k differ in head size");
  EXPECT_EQ(error_of(product, q, q, view(2, 9, 32), v), "causal product: k and v differ in L");
  EXPECT_EQ(error_of(product, q, q, v, view(2, 7, 32)), "causal product: q and o differ in L");
  EXPECT_EQ(error_of(product, view(2, 8, 513), view(2, 8, 513), v, v),
            "causal product: the head size of q and k is over 512");
  const int64_t L = (int64_t{1} << 30) + 1;
  EXPECT_EQ(error_of(product, view(2, L, 16), view(2, L, 16), view(2, L, 32), view(2, L, 32)),
            "causal product: a length is over 2^30");
}

const auto reversed = [](auto q, auto k, auto v, auto o) {
  double_buffer::reversed_causal_product(q, k, v, o);
};

TEST(Operands, EveryStageChecksThem) {
  expect_checked([](auto q, auto k, auto v, auto o) { naive::causal_product(q, k, v, o); });
  expect_checked([](auto q, auto k, auto v, auto o) { shared_mem::causal_product(q, k, v, o); });
  expect_checked([](auto q, auto k, auto v, auto o) { double_buffer::causal_product(q, k, v, o); });
}

TEST(Operands, OnlyStage04TakesUnequalLengthsAndOnlyForward) {
  const auto q = view(2, 8, 16), k = view(2, 9, 16), v = view(2, 9, 32), o = view(2, 8, 32);
  const std::string expected = "causal product: q and k differ in L";
  EXPECT_EQ(error_of([](auto... x) { naive::causal_product(x...); }, q, k, v, o), expected);
  EXPECT_EQ(error_of([](auto... x) { shared_mem::causal_product(x...); }, q, k, v, o), expected);
  EXPECT_EQ(error_of(reversed, q, k, v, o), expected);
}

}  // namespace
}  // namespace attn
