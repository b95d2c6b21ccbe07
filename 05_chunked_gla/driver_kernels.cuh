// How the driver runs and checks this stage's kernels.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "05_chunked_gla/checks.cuh"
#include "05_chunked_gla/step0_recurrent.cuh"
#include "05_chunked_gla/step1_four_kernels.cuh"
#include "common/driver/stage.hpp"
#include "common/element.hpp"

namespace attn::chunked_gla {

// The operands, named as gla_operator() names them.
template <class T>
GlaOperands<T> gla_operands(const driver::Tensors& t) {
  return {
      .q = t.view<const T>("q"),
      .k = t.view<const T>("k"),
      .v = t.view<const T>("v"),
      .g = t.view<const T>("g"),
      .o = t.view<T>("o"),
      .scale = 1 / std::sqrt(float(t.shape().E)),
  };
}

// What the driver needs to know of one kernel, for tensors of type T.
template <class T>
driver::Kernel driver_kernel(std::string name, void (*gla)(const GlaOperands<T>&, cudaStream_t),
                             driver::Cost (*cost)(const Shape&, Dtype)) {
  return {
      .name = std::move(name),
      .dtype = dtype_of<T>,
      .run = [gla](const driver::Tensors& t) { gla(gla_operands<T>(t), 0); },
      .cost = [cost](const Shape& s) { return cost(s, dtype_of<T>); },
  };
}

inline driver::Cost recurrent_cost(const Shape& s, Dtype dtype) {
  // Every operand once; decay, update and output per element of the state.
  const double steps = double(s.B) * s.H * s.L;
  return {steps * (3 * s.E + 2 * s.M) * bytes_of(dtype), steps * 5 * s.E * s.M};
}

inline driver::Cost four_kernels_cost(const Shape& s, Dtype dtype) {
  const double steps = double(s.B) * s.H * s.L;
  constexpr int kChunk = four_kernels::kChunk;
  // The table of step1_four_kernels.cuh.
  const double elements = 7 * s.E + 3 * s.M;
  const double floats = (1 + 1 + 2 + 2 + 1.0 / kChunk) * s.E + 2 * s.M + 2 * kChunk;
  // In fused_chunk as in the recurrence, but for the decay; then scores and their product with v,
  // for the lower half of the chunk.
  const double flops = 4. * s.E * s.M + 0.5 * (kChunk + 1) * (4. * s.E + 2. * s.M);
  return {steps * (elements * bytes_of(dtype) + floats * sizeof(float)), steps * flops};
}

template <class T>
std::vector<driver::Kernel> driver_kernels_of() {
  return {
      driver_kernel<T>("recurrent", recurrent_gla, recurrent_cost),
      driver_kernel<T>("four_kernels", four_kernels_gla, four_kernels_cost),
  };
}

inline std::vector<driver::Kernel> driver_kernels() {
  std::vector<driver::Kernel> kernels = driver_kernels_of<float>();
  for (auto& kernel : driver_kernels_of<__nv_bfloat16>()) kernels.push_back(std::move(kernel));
  return kernels;
}

inline std::vector<driver::Check> checks() {
  std::vector<driver::Check> checks;
  add_checks<float>(checks, "recurrent", recurrent_gla, tolerance(Dtype::f32));
  add_checks<__nv_bfloat16>(checks, "recurrent", recurrent_gla, tolerance(Dtype::bf16));
  add_checks<float>(checks, "four_kernels", four_kernels_gla, tolerance(Dtype::f32));
  add_checks<__nv_bfloat16>(checks, "four_kernels", four_kernels_gla, tolerance(Dtype::bf16));
  return checks;
}

}  // namespace attn::chunked_gla
