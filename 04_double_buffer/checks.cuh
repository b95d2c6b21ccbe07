// What stage 04 offers beside the plain causal product, verified: the product reversed, and the
// causal linear attention layer with key lengths and unequal lengths.
#pragma once

#include <string>
#include <vector>

#include "01_cpu_reference/causal_product.hpp"
#include "01_cpu_reference/linear_attention.hpp"
#include "04_double_buffer/causal_product.cuh"
#include "04_double_buffer/layer.cuh"
#include "common/compare.hpp"
#include "common/device_buffer.hpp"
#include "common/driver/stage.hpp"
#include "common/inputs.hpp"

namespace attn::double_buffer {

// A seeded tensor, on the host for the reference and on the device for the kernel.
class Operand {
 public:
  Operand(const char* name, int64_t B, int64_t H, int64_t L, int64_t D, Layout layout)
      : host_(B * H * L * D), host_view_(dense_view(host_.data(), B, H, L, D, layout)) {
    fill_normal(host_view_, /*seed=*/1, name);
    device_ = DeviceBuffer<float>(host_);
  }

  TensorView<float> device() const {
    TensorView<float> view = host_view_;
    view.data = device_.data();
    return view;
  }

  Matrix slice(int64_t b, int64_t h) const {
    Matrix x(host_view_.L, host_view_.D);
    for (int64_t t = 0; t < x.rows; ++t) {
      for (int64_t d = 0; d < x.cols; ++d) x(t, d) = host_view_.row(b, h, t)[d];
    }
    return x;
  }

  // An output: every element NaN until it is written.
  void poison() { cuda_check(cudaMemset(device_.data(), 0xff, device_.size() * sizeof(float))); }

  // Compares the device's content with `truth(b, h)`, slice by slice.
  template <class Truth>
  Comparison compare_with(double tolerance, Truth&& truth) {
    device_.copy_to(host_.data());
    Comparison all;
    for (int64_t b = 0; b < host_view_.B; ++b) {
      for (int64_t h = 0; h < host_view_.H; ++h) {
        all.merge(compare<float>(host_view_, b, h, truth(b, h), tolerance));
      }
    }
    return all;
  }

 private:
  std::vector<float> host_;
  TensorView<float> host_view_;
  DeviceBuffer<float> device_;
};

inline Comparison check_reversed(int64_t heads, int64_t L, int64_t E, int64_t M, Layout layout) {
  const Operand q("q", 1, heads, L, E, layout), k("k", 1, heads, L, E, layout);
  const Operand v("v", 1, heads, L, M, layout);
  Operand o("o", 1, heads, L, M, layout);
  o.poison();
  reversed_causal_product(q.device(), k.device(), v.device(), o.device());
  return o.compare_with(tolerance(Dtype::f32), [&](int64_t b, int64_t h) {
    return reference::reversed_causal_product(q.slice(b, h), k.slice(b, h), v.slice(b, h));
  });
}

inline Comparison check_layer(int64_t Lq, int64_t Lk, int64_t E, int64_t M,
                              const std::vector<int>& key_lengths, Layout layout) {
  const int64_t B = key_lengths.size(), H = 2;
  const Operand q("q", B, H, Lq, E, layout), k("k", B, H, Lk, E, layout);
  const Operand v("v", B, H, Lk, M, layout);
  Operand o("o", B, H, Lq, M, layout);
  o.poison();
  causal_linear_attention(q.device(), k.device(), v.device(), DeviceBuffer<int>(key_lengths).data(),
                          o.device());
  return o.compare_with(tolerance(Dtype::f32), [&](int64_t b, int64_t h) {
    return reference::causal_linear_attention(q.slice(b, h), k.slice(b, h), v.slice(b, h),
                                              key_lengths[b]);
  });
}

inline std::vector<driver::Check> checks() {
  const double bound = tolerance(Dtype::f32);
  return {
      {"reversed, few heads", bound, [] { return check_reversed(2, 997, 64, 64, Layout::BHLD); }},
      {"reversed, many heads", bound, [] { return check_reversed(48, 65, 60, 10, Layout::BLHD); }},
      {"layer, key lengths", bound,
       [] {
         return check_layer(130, 130, 64, 64, {130, 100, 1, 0}, Layout::BHLD);
       }},
      {"layer, more queries than keys", bound,
       [] {
         return check_layer(200, 130, 48, 100, {130, 77}, Layout::BLHD);
       }},
      {"layer, fewer queries than keys", bound,
       [] {
         return check_layer(64, 130, 128, 32, {130, 20}, Layout::BHLD);
       }},
  };
}

}  // namespace attn::double_buffer
