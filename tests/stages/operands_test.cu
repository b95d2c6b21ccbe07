// Operands that do not fit together get one line that names what is wrong, before any launch.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "02_naive_cuda/kernel.cuh"
#include "03_shared_mem/kernel.cuh"
#include "04_double_buffer/causal_product.cuh"
#include "05_chunked_gla/operands.cuh"
#include "06_rwkv6/operands.cuh"
#include "07_flash/operands.cuh"

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

chunked_gla::GlaOperands<float> gla_operands() {
  const auto q = view(2, 8, 16), v = view(2, 8, 32);
  return {q, q, v, q, v, /*scale=*/1};
}

std::string error_of(const chunked_gla::GlaOperands<float>& x) {
  try {
    check_gla(x);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Operands, GatedLinearAttentionChecksThem) {
  const std::string prefix = "gated linear attention: ";
  EXPECT_EQ(error_of(gla_operands()), "no error");
  auto x = gla_operands();
  x.g = view(1, 8, 16);
  EXPECT_EQ(error_of(x), prefix + "q, k, v, g and o differ in H");
  x = gla_operands();
  x.o = view(2, 9, 32);
  EXPECT_EQ(error_of(x), prefix + "q, k, v, g and o differ in L");
  x = gla_operands();
  x.g = view(2, 8, 1);
  EXPECT_EQ(error_of(x), prefix + "q, k and g differ in head size");
  x = gla_operands();
  x.o = view(2, 8, 16);
  EXPECT_EQ(error_of(x), prefix + "v and o differ in head size");
  x = gla_operands();
  x.q = x.k = x.g = view(2, 8, 513);
  EXPECT_EQ(error_of(x), prefix + "the head size of q and k is over 512");
}

TEST(Operands, GatedLinearAttentionChecksItsStates) {
  const std::string prefix = "gated linear attention: ";
  float memory = 0;
  const auto state = [&](int64_t E, int64_t M) {
    return dense_view(&memory, 1, 2, E, M, Layout::BHLD);
  };
  auto x = gla_operands();
  x.initial_state = state(16, 32);
  x.final_state = state(16, 32);
  EXPECT_EQ(error_of(x), "no error");
  x.initial_state = state(32, 16);
  EXPECT_EQ(error_of(x), prefix + "the initial state is not [B, H, E, M]");
  x = gla_operands();
  x.final_state = state(16, 31);
  EXPECT_EQ(error_of(x), prefix + "the final state is not [B, H, E, M]");
}

rwkv6::Rwkv6Operands<float> rwkv6_operands() {
  const TensorView<float> x = dense_view<float>(nullptr, 2, 3, 5, 8, Layout::BHLD);
  const TensorView<float> u = dense_view<float>(nullptr, 1, 3, 1, 8, Layout::BHLD);
  return {x, x, x, x, u, x};
}

std::string error_of(const rwkv6::Rwkv6Operands<float>& x) {
  try {
    in_walking_order(x);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Operands, Rwkv6ChecksThem) {
  EXPECT_EQ(error_of(rwkv6_operands()), "no error");
  auto x = rwkv6_operands();
  x.k.B = 1;
  EXPECT_EQ(error_of(x), "RWKV-6: r, k, v, w and o differ in B");
  x = rwkv6_operands();
  x.w.D = 7;
  EXPECT_EQ(error_of(x), "RWKV-6: r, k and w differ in head size");
  x = rwkv6_operands();
  x.u.H = 2;
  EXPECT_EQ(error_of(x), "RWKV-6: u is not [H, E]");
  x = rwkv6_operands();
  float state = 0;
  x.final_state = dense_view(&state, 2, 3, 8, 7, Layout::BHLD);
  EXPECT_EQ(error_of(x), "RWKV-6: the final state is not [B, H, E, M]");
}

// Backwards is the same with rows from last to first; u and the states have no rows in time.
TEST(Operands, Rwkv6WalksBackwardsByStrides) {
  float data[2 * 3 * 5 * 8] = {};
  auto x = rwkv6_operands();
  x.r.data = data;
  x.reverse = true;
  const auto walked = in_walking_order(x);
  EXPECT_FALSE(walked.reverse);
  EXPECT_EQ(walked.r.row(1, 2, 0), x.r.row(1, 2, 4));
  EXPECT_EQ(walked.r.row(1, 2, 4), x.r.row(1, 2, 0));
  EXPECT_EQ(walked.u.stride_l, x.u.stride_l);
}

flash::AttentionOperands<float> attention_operands() {
  return {view(6, 8, 16), view(2, 9, 16), view(2, 9, 32), view(6, 8, 32), /*scale=*/1, true};
}

std::string error_of(const flash::AttentionOperands<float>& x) {
  try {
    check_attention(x);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Operands, SoftmaxAttentionChecksThem) {
  const std::string prefix = "softmax attention: ";
  EXPECT_EQ(error_of(attention_operands()), "no error");
  auto x = attention_operands();
  x.k = view(4, 9, 16);
  x.v = view(4, 9, 32);
  EXPECT_EQ(error_of(x), prefix + "the heads of q are no multiple of those of k and v");
  x = attention_operands();
  x.v = view(2, 8, 32);
  EXPECT_EQ(error_of(x), prefix + "k and v differ in L");
  x = attention_operands();
  x.k = view(2, 9, 17);
  EXPECT_EQ(error_of(x), prefix + "q and k differ in head size");
  x = attention_operands();
  x.v = view(2, 9, 257);
  x.o = view(6, 8, 257);
  EXPECT_EQ(error_of(x), prefix + "the head size of v is not 1 to 256");
  x = attention_operands();
  x.scale = 0;
  EXPECT_EQ(error_of(x), prefix + "the scale is not positive");
  float memory = 0;
  x = attention_operands();
  x.lse = dense_view(&memory, 1, 6, 1, 9, Layout::BHLD);
  EXPECT_EQ(error_of(x), prefix + "the log-sum-exp is not [B, H, 1, Lq]");
  x = attention_operands();
  x.k.L = x.v.L = 0;
  EXPECT_EQ(error_of(x), "no error");
}

}  // namespace
}  // namespace attn
