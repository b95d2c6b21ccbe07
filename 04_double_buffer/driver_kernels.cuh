// How the driver runs this stage's kernels, and which of them the dispatcher takes.
#pragma once

#include <string>
#include <vector>

#include "01_cpu_reference/causal_product_runner.hpp"
#include "04_double_buffer/causal_product.cuh"
#include "04_double_buffer/step3_chunks.cuh"
#include "common/ceil_div.hpp"
#include "common/driver/stage.hpp"
#include "common/element.hpp"

namespace attn::double_buffer {

// Every operand once (the tiles of columns of one head run side by side and share q and k in L2),
// and so many multiply-adds per (t, e, m).
inline driver::Cost cost_of(const Shape& s, Dtype dtype, int multiply_adds) {
  const double steps = double(s.B) * s.H * s.L;
  return {2 * steps * (s.E + s.M) * bytes_of(dtype), 2 * steps * s.E * s.M * multiply_adds};
}

// `queries` is what the operator calls q.
template <class T>
driver::Kernel double_buffer_driver_kernel(const char* queries) {
  return {
      .name = "double_buffer",
      .dtype = dtype_of<T>,
      .run = reference::causal_product_runner<T>(
          [](auto q, auto k, auto v, auto o) { double_buffer_causal_product(q, k, v, o); },
          queries),
      // k v^T and q^T S.
      .cost = [](const Shape& s) { return cost_of(s, dtype_of<T>, 2); },
  };
}

inline driver::Kernel low_occupancy_driver_kernel(const char* queries) {
  return {
      .name = "low_occupancy",
      .dtype = Dtype::f32,
      .run = reference::causal_product_runner(
          [](auto q, auto k, auto v, auto o) { low_occupancy_causal_product(q, k, v, o); },
          queries),
      // k v^T twice: for the sums, and on the walk.
      .cost = [](const Shape& s) { return cost_of(s, Dtype::f32, 3); },
  };
}

inline driver::Kernel chunks_driver_kernel(const char* queries) {
  return {
      .name = "chunks",
      .dtype = Dtype::bf16,
      .run = reference::causal_product_runner<__nv_bfloat16>(
          [](auto q, auto k, auto v, auto o) { chunks_causal_product(q, k, v, o); }, queries),
      // Products on tensor cores: q S in tf32, which counts twice, and v^T k; and, for each warp,
      // scores, and these in two bf16 times v.
      .cost =
          [](const Shape& s) {
            const double steps = double(s.B) * s.H * s.L;
            const double warps = double(ceil_div(s.M, 16)), kChunk = chunks::kChunk;
            driver::Cost cost = cost_of(s, Dtype::bf16, 0);
            cost.matrix_flops = steps * 2 * (3. * s.E * s.M + kChunk * (warps * s.E + 2. * s.M));
            return cost;
          },
  };
}

inline std::vector<driver::Kernel> driver_kernels(const char* queries = "q") {
  return {double_buffer_driver_kernel<float>(queries), low_occupancy_driver_kernel(queries),
          double_buffer_driver_kernel<__nv_bfloat16>(queries), chunks_driver_kernel(queries)};
}

inline std::string picked_kernel(const Shape& s, Dtype dtype) {
  if (dtype == Dtype::bf16) return "chunks";
  return prefers_low_occupancy(s.B * s.H, s.L, s.E, s.M) ? "low_occupancy" : "double_buffer";
}

}  // namespace attn::double_buffer
