#include "common/driver/tensors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "toy_stage.hpp"

namespace attn::driver {
namespace {

const Shape kShape{2, 3, 5, 7, 4};

TEST(Tensors, AreViewedByNameAndType) {
  const Operator op = toy_stage().op;
  const Tensors tensors(op, kShape, Dtype::f32, Layout::BLHD, true);
  const auto q = tensors.view<const float>("q");
  EXPECT_EQ(std::tuple(q.B, q.H, q.L, q.D), std::tuple(2, 3, 5, 7));
  EXPECT_EQ(std::tuple(q.stride_b, q.stride_h, q.stride_l), std::tuple(5 * 3 * 7, 7, 3 * 7));
  EXPECT_EQ(tensors.view<float>("o").D, 4);

  EXPECT_THROW(tensors.view<float>("q"), std::logic_error);  // an input, to be written?
  EXPECT_THROW(tensors.view<const __nv_bfloat16>("q"), std::logic_error);
  EXPECT_THROW(tensors.view<const float>("w"), std::logic_error);
}

TEST(Tensors, StatesAndBonusesHaveOneLayout) {
  const Operator op{.name = "all axes",
                    .inputs = {{"u", Axes::HE}, {"g", Axes::BHLE}},
                    .outputs = {{"state", Axes::BHEM}},
                    .reference = {},
                    .flops = {}};
  const Tensors tensors(op, kShape, Dtype::f32, Layout::BLHD, true);
  const auto u = tensors.view<const float>("u");
  EXPECT_EQ(std::tuple(u.B, u.H, u.L, u.D), std::tuple(1, 3, 1, 7));
  const auto state = tensors.view<float>("state");
  EXPECT_EQ(std::tuple(state.L, state.D, state.stride_h, state.stride_l),
            std::tuple(7, 4, 7 * 4, 4));
  EXPECT_EQ(operand_bytes(op, kShape, Dtype::bf16), 2 * (3 * 7 + 2 * 3 * 5 * 7 + 2 * 3 * 7 * 4));
}

// On the host and, in the CPU build or with a GPU, on the device.
class TensorsAnywhere : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    int count = 0;
    if (!GetParam() && (cudaGetDeviceCount(&count) != cudaSuccess || count == 0))
      GTEST_SKIP() << "no CUDA device";
  }
};

TEST_P(TensorsAnywhere, InputsAreWhatTheReferenceGets) {
  const Operator op = toy_stage().op;
  for (Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    for (Layout layout : {Layout::BHLD, Layout::BLHD}) {
      Tensors tensors(op, kShape, dtype, layout, GetParam());
      tensors.fill_inputs(11);
      with_element_type(dtype, [&]<class T>() {
        HostBuffer staging;
        const auto k = tensors.template on_host<T>("k", staging);
        for (int64_t b = 0; b < 2; ++b)
          for (int64_t h = 0; h < 3; ++h)
            EXPECT_EQ(
                compare(k, b, h, input_slice(op.inputs[1], kShape, dtype, 11, b, h), 0).max_abs, 0);
      });
    }
  }
}

// A gate that resets is minus infinity here and there.
TEST_P(TensorsAnywhere, AnInfiniteInputIsWhatTheReferenceGets) {
  Operator op = toy_stage().op;
  op.inputs[1].from_normal = [](float draw) {
    return draw > 1 ? -std::numeric_limits<float>::infinity() : draw > 0 ? -1e4f : -std::abs(draw);
  };
  for (Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    Tensors tensors(op, kShape, dtype, Layout::BHLD, GetParam());
    tensors.fill_inputs(11);
    const Matrix expected = input_slice(op.inputs[1], kShape, dtype, 11, 0, 0);
    const float large = dtype == Dtype::f32 ? -1e4f : -9984.f;  // rounded to 8 bits
    for (double element : {-double(INFINITY), double(large)})
      EXPECT_GT(std::count(expected.data.begin(), expected.data.end(), element), 0) << element;
    with_element_type(dtype, [&]<class T>() {
      HostBuffer staging;
      const auto k = tensors.template on_host<T>("k", staging);
      const Comparison found = compare(k, 0, 0, expected, 0);
      EXPECT_EQ(found.max_abs, 0);
      EXPECT_TRUE(found.passes(0));
      EXPECT_FALSE(first_nan(k));
    });
  }
}

TEST(Tensors, KnowTheOperatorsScale) {
  Operator op = toy_stage().op;
  EXPECT_EQ(Tensors(op, kShape, Dtype::f32, Layout::BHLD, true).scale(), 1);
  op.scale = [](const Shape& s) { return 1. / s.E; };
  EXPECT_EQ(Tensors(op, kShape, Dtype::bf16, Layout::BHLD, true).scale(), float(1. / 7));
}

TEST_P(TensorsAnywhere, PoisonIsNaNInEveryOutputAndNoInput) {
  Tensors tensors(toy_stage().op, kShape, Dtype::f32, Layout::BHLD, GetParam());
  tensors.fill_inputs(0);
  tensors.poison_outputs();
  HostBuffer staging;
  const auto o = tensors.on_host<float>("o", staging);
  for (int64_t i = 0; i < 2 * 3 * 5 * 4; ++i) EXPECT_TRUE(std::isnan(o.data[i]));
  HostBuffer other;
  EXPECT_FALSE(first_nan(tensors.on_host<float>("q", other)));
}

INSTANTIATE_TEST_SUITE_P(HostAndDevice, TensorsAnywhere, testing::Values(true, false));

}  // namespace
}  // namespace attn::driver
