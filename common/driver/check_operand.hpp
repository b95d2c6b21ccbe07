// The operands of a stage's own checks (driver::Check), which call its functions directly.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "common/compare.hpp"
#include "common/device_buffer.hpp"
#include "common/element.hpp"
#include "common/inputs.hpp"
#include "common/matrix.hpp"
#include "common/tensor_view.cuh"

namespace attn::driver {

// A seeded tensor, on the host for the reference and on the device for the kernel. T is float or
// __nv_bfloat16.
template <class T>
class CheckOperand {
 public:
  // `from_normal`, if given, makes the element from a draw of N(0, 1).
  CheckOperand(std::string_view name, int64_t B, int64_t H, int64_t L, int64_t D, Layout layout,
               const std::function<float(float)>& from_normal = {})
      : host_(B * H * L * D), host_view_(dense_view(host_.data(), B, H, L, D, layout)) {
    fill_normal(host_view_, /*seed=*/1, name, from_normal);
    device_ = DeviceBuffer<T>(host_);
  }

  TensorView<T> device() const {
    TensorView<T> view = host_view_;
    view.data = device_.data();
    return view;
  }

  Matrix slice(int64_t b, int64_t h) const {
    Matrix x(host_view_.L, host_view_.D);
    for (int64_t t = 0; t < x.rows; ++t) {
      for (int64_t d = 0; d < x.cols; ++d) x(t, d) = to_float(host_view_.row(b, h, t)[d]);
    }
    return x;
  }

  // Gives one element another value, on the host and on the device.
  void set(int64_t b, int64_t h, int64_t l, int64_t d, float value) {
    host_view_.row(b, h, l)[d] = from_float<T>(value);
    device_.copy_from(host_);
  }

  // An output: every element NaN until it is written.
  void poison() { cuda_check(cudaMemset(device_.data(), 0xff, device_.size() * sizeof(T))); }

  // Compares the device's content with `truth(b, h)`, slice by slice.
  template <class Truth>
  Comparison compare_with(double tolerance, Truth&& truth) {
    device_.copy_to(host_.data());
    Comparison all;
    for (int64_t b = 0; b < host_view_.B; ++b) {
      for (int64_t h = 0; h < host_view_.H; ++h) {
        all.merge(compare<T>(host_view_, b, h, truth(b, h), tolerance));
      }
    }
    return all;
  }

 private:
  std::vector<T> host_;
  TensorView<T> host_view_;
  DeviceBuffer<T> device_;
};

}  // namespace attn::driver
