// How the driver runs this stage's kernel: here, and as the stage before 04.
#pragma once

#include "01_cpu_reference/causal_product_runner.hpp"
#include "03_shared_mem/kernel.cuh"
#include "common/driver/stage.hpp"

namespace attn::shared_mem {

inline driver::Kernel driver_kernel() {
  return {
      .name = "03_shared_mem",
      .dtype = Dtype::f32,
      .run = reference::causal_product_runner(
          [](auto q, auto k, auto v, auto o) { causal_product(q, k, v, o); }),
      // Per step: q and k for each tile of columns; v read, and o read and written by atomics, for
      // each tile of rows; and o zeroed once.
      .cost =
          [](const Shape& s) {
            const double steps = double(s.B) * s.H * s.L;
            const double row_tiles = (s.E + kRows - 1) / kRows;
            const double column_tiles = (s.M + kColumns - 1) / kColumns;
            return driver::Cost{4 * steps * (2 * s.E * column_tiles + 3 * s.M * row_tiles + s.M),
                                4 * steps * s.E * s.M};
          },
  };
}

}  // namespace attn::shared_mem
