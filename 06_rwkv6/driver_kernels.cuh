// How the driver runs and checks this stage's kernels.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "06_rwkv6/checks.cuh"
#include "06_rwkv6/rwkv6.cuh"
#include "06_rwkv6/step0_naive_recurrent.cuh"
#include "06_rwkv6/step1_fused_recurrent.cuh"
#include "06_rwkv6/step2_recurrent.cuh"
#include "06_rwkv6/step3_packets.cuh"
#include "common/driver/stage.hpp"
#include "common/element.hpp"

namespace attn::rwkv6 {

// The operands, named as rwkv6_operator() names them.
template <class T>
Rwkv6Operands<T> rwkv6_operands(const driver::Tensors& t) {
  return {
      .r = t.view<const T>("r"),
      .k = t.view<const T>("k"),
      .v = t.view<const T>("v"),
      .w = t.view<const T>("w"),
      .u = t.view<const T>("u"),
      .o = t.view<T>("o"),
      .scale = t.scale(),
  };
}

// What the driver needs to know of one kernel, for tensors of type T.
template <class T>
driver::Kernel driver_kernel(std::string name, void (*rwkv6)(const Rwkv6Operands<T>&, cudaStream_t),
                             driver::Cost (*cost)(const Shape&, Dtype),
                             std::optional<double> tolerance = {}) {
  return {
      .name = std::move(name),
      .dtype = dtype_of<T>,
      .run = [rwkv6](const driver::Tensors& t) { rwkv6(rwkv6_operands<T>(t), 0); },
      .cost = [cost](const Shape& s) { return cost(s, dtype_of<T>); },
      .tolerance = tolerance,
  };
}

// Every operand once.
inline double operand_bytes(const Shape& s, Dtype dtype) {
  const double steps = double(s.B) * s.H * s.L;
  return (steps * (3 * s.E + 2 * s.M) + double(s.H) * s.E) * bytes_of(dtype);
}

// Flops as the fp32 units count them, two to an instruction. Per element of the state steps 0 and 1
// take four instructions: k v, the bonus, the output, the update.
inline driver::Cost naive_recurrent_cost(const Shape& s, Dtype dtype) {
  return {operand_bytes(s, dtype), double(s.B) * s.H * s.L * 2 * 4 * s.E * s.M};
}

inline driver::Cost fused_recurrent_cost(const Shape& s, Dtype dtype) {
  driver::Cost cost = naive_recurrent_cost(s, dtype);
  const double tiles_k = (s.E + tile_width(s.E) - 1) / tile_width(s.E);
  cost.bytes += double(s.B) * s.H * s.L * tiles_k * s.M * 2 * sizeof(float);
  return cost;
}

// Three, and the bonus once per row and lane: see step2_recurrent.cuh.
inline driver::Cost vector_recurrent_cost(const Shape& s, Dtype dtype) {
  return {operand_bytes(s, dtype), double(s.B) * s.H * s.L * 2 * 3.25 * s.E * s.M};
}

// Products on tensor cores, per step: those with a k or a score take it in so many bf16 parts, but for
// k that is one fp16 (Tiling::kFp16); the others are tf32 and count twice.
inline double bf16_parts(Dtype dtype) { return dtype == Dtype::f32 ? 3 : 2; }
inline double key_parts(const Shape& s, Dtype dtype) {
  return dtype == Dtype::bf16 && s.E <= 128 ? 1 : bf16_parts(dtype);
}

// As the engine, with k in two bf16.
inline driver::Cost packets_cost(const Shape& s, Dtype dtype) {
  const double steps = double(s.B) * s.H * s.L;
  constexpr int kChunk = packets::kChunk;
  const double past = 2 * 2. * s.E * s.M;       // r^T S
  const double update = 2 * 2. * s.E * s.M;     // k v^T
  const double decays = 3 * 2. * kChunk * s.E;  // summed up, by products with matrices of halves
  const double scores = 2 * 2. * kChunk * s.E;
  const double scores_v = 2 * 2. * kChunk * s.M;
  return {.bytes = operand_bytes(s, dtype),
          .flops = 0,
          .matrix_flops = steps * (past + update + decays + scores + scores_v)};
}

inline driver::Cost engine_cost(const Shape& s, Dtype dtype) {
  const double steps = double(s.B) * s.H * s.L;
  const double past = 2 * 2. * s.E * s.M;                     // r^T S
  const double update = key_parts(s, dtype) * 2 * s.E * s.M;  // k v^T
  const double decays =
      3 * 2 * chunked::kSubChunk * s.E;  // summed up, by products with matrices of halves
  const double scores = 2 * 2 * chunked::kSubChunk * s.E;
  const double scores_v = bf16_parts(dtype) * 2 * chunked::kSubChunk * s.M;
  return {.bytes = operand_bytes(s, dtype),
          .flops = 0,
          .matrix_flops = steps * (past + update + decays + scores + scores_v)};
}

inline driver::Cost segments_cost(const Shape& s, Dtype dtype) {
  // As the engine, and before it the sums of the segments: k, v and w once more, and the update, of k in
  // bf16.
  const double steps = double(s.B) * s.H * s.L;
  driver::Cost cost = engine_cost(s, dtype);
  cost.bytes += steps * (2 * s.E + s.M) * bytes_of(dtype);
  cost.matrix_flops += steps * bf16_parts(dtype) * 2 * s.E * s.M;
  return cost;
}

template <class T>
std::vector<driver::Kernel> driver_kernels_of() {
  std::vector<driver::Kernel> kernels = {
      driver_kernel<T>("naive_recurrent", naive_recurrent_rwkv6, naive_recurrent_cost),
      driver_kernel<T>("fused_recurrent", fused_recurrent_rwkv6, fused_recurrent_cost),
      driver_kernel<T>("vector_recurrent", vector_recurrent_rwkv6, vector_recurrent_cost),
  };
  if constexpr (dtype_of<T> == Dtype::bf16) {
    kernels.push_back(driver_kernel<T>("packets", packets_rwkv6, packets_cost));
  }
  kernels.push_back(
      driver_kernel<T>("engine", engine_rwkv6, engine_cost, tensor_core_tolerance(dtype_of<T>)));
  kernels.push_back(driver_kernel<T>("segments", segments_rwkv6, segments_cost,
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
  add_checks<T>(checks, "naive_recurrent", naive_recurrent_rwkv6, tolerance(dtype_of<T>));
  add_checks<T>(checks, "fused_recurrent", fused_recurrent_rwkv6, tolerance(dtype_of<T>));
  add_checks<T>(checks, "vector_recurrent", vector_recurrent_rwkv6, tolerance(dtype_of<T>));
  if constexpr (dtype_of<T> == Dtype::bf16) {
    add_checks<T>(checks, "packets", packets_rwkv6, tolerance(dtype_of<T>));
  }
  add_checks<T>(checks, "engine", engine_rwkv6, tensor_core_tolerance(dtype_of<T>));
  add_checks<T>(checks, "segments", segments_rwkv6, tensor_core_tolerance(dtype_of<T>));
}

inline std::vector<driver::Check> checks() {
  std::vector<driver::Check> checks;
  add_all_checks<float>(checks);
  add_all_checks<__nv_bfloat16>(checks);
  return checks;
}

inline std::string picked_kernel(const Shape& s, Dtype dtype) {
  if (prefers_recurrent(s.L, s.E)) return "vector_recurrent";
  return with_element_type(dtype, [&]<class T>() {
    return prefers_segments<T>(s.B * s.H, s.L, s.E, s.M) ? "segments" : "engine";
  });
}

}  // namespace attn::rwkv6
