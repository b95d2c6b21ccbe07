// How the driver runs this stage's kernels, and which of them the dispatcher takes.
#pragma once

#include <string>
#include <vector>

#include "01_cpu_reference/causal_product_runner.hpp"
#include "04_double_buffer/causal_product.cuh"
#include "common/driver/stage.hpp"

namespace attn::double_buffer {

inline std::vector<driver::Kernel> driver_kernels() {
  // Every operand once: the tiles of columns of one head run side by side and share q and k in L2.
  const auto bytes = [](const Shape& s) { return 8. * s.B * s.H * s.L * (s.E + s.M); };
  const auto products = [](const Shape& s) { return 2. * s.B * s.H * s.L * s.E * s.M; };
  return {
      {
          .name = "double_buffer",
          .dtype = Dtype::f32,
          .run = reference::causal_product_runner(
              [](auto q, auto k, auto v, auto o) { double_buffer_causal_product(q, k, v, o); }),
          // k v^T and q^T S.
          .cost =
              [=](const Shape& s) {
                return driver::Cost{bytes(s), 2 * products(s)};
              },
      },
      {
          .name = "low_occupancy",
          .dtype = Dtype::f32,
          .run = reference::causal_product_runner(
              [](auto q, auto k, auto v, auto o) { low_occupancy_causal_product(q, k, v, o); }),
          // k v^T twice: for the sums, and on the walk.
          .cost =
              [=](const Shape& s) {
                return driver::Cost{bytes(s), 3 * products(s)};
              },
      },
  };
}

inline std::string picked_kernel(const Shape& s) {
  return prefers_low_occupancy(s.B * s.H, s.L, s.E, s.M) ? "low_occupancy" : "double_buffer";
}

}  // namespace attn::double_buffer
