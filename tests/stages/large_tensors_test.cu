// Tensors of more than 2^31 elements: offsets must be 64-bit everywhere. The memory is reserved,
// not backed; a few rows, 2^31 elements and more apart, are all that is ever touched.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

#include "02_naive_cuda/kernel.cuh"
#include "03_shared_mem/kernel.cuh"
#include "04_double_buffer/causal_product.cuh"
#include "common/inputs.hpp"

namespace attn {
namespace {

constexpr int64_t kFar = (int64_t{1} << 31) + 64;  // elements: past what 32 bits can hold

// A tensor whose neighbours along one dimension lie kFar elements apart.
class SparseTensor {
 public:
  SparseTensor(TensorView<float> dense, int64_t TensorView<float>::*far_stride) : view_(dense) {
    view_.*far_stride = kFar;
    const int64_t last = (view_.B - 1) * view_.stride_b + (view_.H - 1) * view_.stride_h +
                         (view_.L - 1) * view_.stride_l + view_.D;
    bytes_ = last * sizeof(float);
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
    view_.data = static_cast<float*>(memory);
  }
  SparseTensor(const SparseTensor&) = delete;
  ~SparseTensor() { munmap(view_.data, bytes_); }

  const TensorView<float>& view() const { return view_; }

 private:
  TensorView<float> view_;
  size_t bytes_;
};

using Product = std::function<void(TensorView<const float>, TensorView<const float>,
                                   TensorView<const float>, TensorView<float>)>;

// The same product with rows close together and far apart must be the same, to the bit.
void expect_far_equals_near(const Product& product, int64_t TensorView<float>::*far_stride) {
  constexpr int64_t B = 2, H = 2, L = 3, E = 16, M = 8;
  std::vector<float> memory[4];
  TensorView<float> near[4];
  for (int i = 0; i < 4; ++i) {
    const int64_t D = i < 2 ? E : M;
    memory[i].resize(B * H * L * D);
    near[i] = dense_view(memory[i].data(), B, H, L, D, Layout::BHLD);
  }
  const SparseTensor far[4] = {
      {near[0], far_stride}, {near[1], far_stride}, {near[2], far_stride}, {near[3], far_stride}};
  const char* const names[3] = {"q", "k", "v"};
  for (int i = 0; i < 3; ++i) {
    fill_normal(near[i], 1, names[i]);
    fill_normal(far[i].view(), 1, names[i]);
  }
  product(near[0], near[1], near[2], near[3]);
  product(far[0].view(), far[1].view(), far[2].view(), far[3].view());
  double largest = 0;
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t t = 0; t < L; ++t) {
        for (int64_t m = 0; m < M; ++m) {
          const float expected = near[3].row(b, h, t)[m];
          ASSERT_EQ(far[3].view().row(b, h, t)[m], expected);
          largest = std::fmax(largest, std::fabs(expected));
        }
      }
    }
  }
  EXPECT_GT(largest, 0);  // a product of nothing would be equal too
}

class LargeTensors : public testing::TestWithParam<int64_t TensorView<float>::*> {};

TEST_P(LargeTensors, Naive) {
  expect_far_equals_near([](auto... x) { naive::causal_product(x...); }, GetParam());
}
TEST_P(LargeTensors, SharedMem) {
  // Its partial sums are added in the order in which blocks come. With 16 rows there are two, and
  // a + b is b + a.
  expect_far_equals_near([](auto... x) { shared_mem::causal_product(x...); }, GetParam());
}
TEST_P(LargeTensors, DoubleBuffer) {
  expect_far_equals_near([](auto... x) { double_buffer::double_buffer_causal_product(x...); },
                         GetParam());
}
TEST_P(LargeTensors, LowOccupancy) {
  expect_far_equals_near([](auto... x) { double_buffer::low_occupancy_causal_product(x...); },
                         GetParam());
}
TEST_P(LargeTensors, Reversed) {
  expect_far_equals_near([](auto... x) { double_buffer::reversed_causal_product(x...); },
                         GetParam());
}

INSTANTIATE_TEST_SUITE_P(Strides, LargeTensors,
                         testing::Values(&TensorView<float>::stride_b, &TensorView<float>::stride_h,
                                         &TensorView<float>::stride_l));

}  // namespace
}  // namespace attn
