// How the driver runs and checks this stage's kernels.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "05_chunked_gla/checks.cuh"
#include "05_chunked_gla/gla.cuh"
#include "05_chunked_gla/step0_recurrent.cuh"
#include "05_chunked_gla/step1_four_kernels.cuh"
#include "05_chunked_gla/step2_one_kernel.cuh"
#include "05_chunked_gla/step3_packets.cuh"
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
      .scale = t.scale(),
  };
}

// What the driver needs to know of one kernel, for tensors of type T.
template <class T>
driver::Kernel driver_kernel(std::string name, void (*gla)(const GlaOperands<T>&, cudaStream_t),
                             driver::Cost (*cost)(const Shape&, Dtype),
                             std::optional<double> tolerance = {}) {
  return {
      .name = std::move(name),
      .dtype = dtype_of<T>,
      .run = [gla](const driver::Tensors& t) { gla(gla_operands<T>(t), 0); },
      .cost = [cost](const Shape& s) { return cost(s, dtype_of<T>); },
      .tolerance = tolerance,
  };
}

// Every operand once.
inline double operand_bytes(const Shape& s, Dtype dtype) {
  return double(s.B) * s.H * s.L * (3 * s.E + 2 * s.M) * bytes_of(dtype);
}

inline driver::Cost recurrent_cost(const Shape& s, Dtype dtype) {
  // Decay, update and output per element of the state.
  const double steps = double(s.B) * s.H * s.L;
  return {operand_bytes(s, dtype), steps * 5 * s.E * s.M};
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

// Products on tensor cores, per step: those with a k or a score take it in so many bf16 parts, but
// those of the engine with a k, for bf16 tensors, up to E = 128 as one fp16; the others are
// tf32 and count twice.
inline double bf16_parts(Dtype dtype) { return dtype == Dtype::f32 ? 3 : 2; }
inline double update_flops(const Shape& s, double parts) { return parts * 2 * s.E * s.M; }  // k v^T

// As the engine, with k in two bf16.
inline driver::Cost one_kernel_cost(const Shape& s, Dtype dtype) {
  const double steps = double(s.B) * s.H * s.L;
  constexpr int kChunk = one_kernel::kChunk;
  const double past = 2 * 2. * s.E * s.M;      // q^T S
  const double gates = 2 * 2. * kChunk * s.E;  // summed up, by products with two matrices
  const double scores = 2 * 2. * kChunk * s.E;
  const double scores_v = 2 * 2. * kChunk * s.M;
  return {.bytes = operand_bytes(s, dtype),
          .flops = 0,
          .matrix_flops = steps * (past + update_flops(s, 2) + gates + scores + scores_v)};
}

inline driver::Cost engine_cost(const Shape& s, Dtype dtype) {
  const double steps = double(s.B) * s.H * s.L;
  const double past = 2 * 2. * s.E * s.M;  // q^T S
  const double gates =
      2 * 2 * chunked::kSubChunk * s.E;  // summed up, by a product with a triangle of ones
  const double scores = 2 * 2 * chunked::kSubChunk * s.E;
  const double scores_v = bf16_parts(dtype) * 2 * chunked::kSubChunk * s.M;
  const double update = update_flops(s, dtype == Dtype::bf16 && s.E <= 128 ? 1 : bf16_parts(dtype));
  return {.bytes = operand_bytes(s, dtype),
          .flops = 0,
          .matrix_flops = steps * (past + update + gates + scores + scores_v)};
}

inline driver::Cost segments_cost(const Shape& s, Dtype dtype) {
  // As the engine, and before it what the segments add, if no gate lets that end early: k, v and g once
  // more, and the update.
  const double steps = double(s.B) * s.H * s.L;
  driver::Cost cost = engine_cost(s, dtype);
  cost.bytes += steps * (2 * s.E + s.M) * bytes_of(dtype);
  cost.matrix_flops += steps * update_flops(s, bf16_parts(dtype));
  return cost;
}

template <class T>
std::vector<driver::Kernel> driver_kernels_of() {
  std::vector<driver::Kernel> kernels = {
      driver_kernel<T>("recurrent", recurrent_gla, recurrent_cost),
      driver_kernel<T>("four_kernels", four_kernels_gla, four_kernels_cost),
  };
  if constexpr (dtype_of<T> == Dtype::bf16) {
    kernels.push_back(driver_kernel<T>("one_kernel", one_kernel_gla, one_kernel_cost));
    kernels.push_back(driver_kernel<T>("packets", packets_gla, one_kernel_cost));
  }
  kernels.push_back(
      driver_kernel<T>("engine", engine_gla, engine_cost, tensor_core_tolerance(dtype_of<T>)));
  kernels.push_back(driver_kernel<T>("segments", segments_gla, segments_cost,
                                     tensor_core_tolerance(dtype_of<T>)));
  return kernels;
}

inline std::vector<driver::Kernel> driver_kernels() {
  std::vector<driver::Kernel> kernels = driver_kernels_of<float>();
  for (auto& kernel : driver_kernels_of<__nv_bfloat16>()) kernels.push_back(std::move(kernel));
  return kernels;
}

template <class T>
void add_all_checks(std::vector<driver::Check>& checks) {
  const double bound = tolerance(dtype_of<T>),
               with_tensor_cores = tensor_core_tolerance(dtype_of<T>);
  add_checks<T>(checks, "recurrent", recurrent_gla, bound, /*all_floats=*/true);
  add_checks<T>(checks, "four_kernels", four_kernels_gla, bound, /*all_floats=*/true);
  if constexpr (dtype_of<T> == Dtype::bf16) {
    add_checks<T>(checks, "one_kernel", one_kernel_gla, bound, /*all_floats=*/false);
    add_checks<T>(checks, "packets", packets_gla, bound, /*all_floats=*/false);
  }
  add_checks<T>(checks, "engine", engine_gla, with_tensor_cores, /*all_floats=*/false);
  add_checks<T>(checks, "segments", segments_gla, with_tensor_cores,
                /*all_floats=*/false);
}

inline std::vector<driver::Check> checks() {
  std::vector<driver::Check> checks;
  add_all_checks<float>(checks);
  add_all_checks<__nv_bfloat16>(checks);
  return checks;
}

inline std::string picked_kernel(const Shape& s, Dtype dtype) {
  return with_element_type(dtype, [&]<class T>() {
    return prefers_segments<T>(s.B * s.H, s.L, s.E, s.M) ? "segments" : "engine";
  });
}

}  // namespace attn::chunked_gla
