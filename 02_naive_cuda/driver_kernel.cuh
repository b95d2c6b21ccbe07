// How the driver runs this stage's kernel: here, and as the stage before 03.
#pragma once

#include "01_cpu_reference/causal_product_runner.hpp"
#include "02_naive_cuda/kernel.cuh"
#include "common/driver/stage.hpp"

namespace attn::naive {

inline driver::Kernel driver_kernel() {
  return {
      .name = "02_naive_cuda",
      .dtype = Dtype::f32,
      .run = reference::causal_product_runner(
          [](auto q, auto k, auto v, auto o) { causal_product(q, k, v, o); }),
      // The state is read and written at every step; q, k, v and o go by once.
      .cost =
          [](const Shape& s) {
            const double steps = double(s.B) * s.H * s.L;
            return driver::Cost{4 * steps * (2. * s.E * s.M + 2. * s.E + 2. * s.M),
                                4 * steps * s.E * s.M};
          },
  };
}

}  // namespace attn::naive
