// How the driver runs and checks this stage's kernels.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "07_flash/checks.cuh"
#include "07_flash/step1_three_passes.cuh"
#include "07_flash/step2_tiled.cuh"
#include "07_flash/step3_flash.cuh"
#include "07_flash/step4_tensor_cores.cuh"
#include "07_flash/step5_hopper.cuh"
#include "common/driver/stage.hpp"
#include "common/element.hpp"

namespace attn::flash {

// What a kernel asks of memory and arithmetic; `seen` is the part of the scores that it computes.
using CostModel = driver::Cost (*)(const Shape&, Dtype, double seen);

// What the driver needs to know of one kernel, for tensors of type T.
template <class T>
driver::Kernel driver_kernel(std::string name, Attention<T>* attention, CostModel cost,
                             double bound) {
  return {
      .name = std::move(name),
      .dtype = dtype_of<T>,
      .run =
          [attention](const driver::Tensors& t) {
            // The operands, named as softmax_attention_operator() names them.
            attention({.q = t.view<const T>("q"),
                       .k = t.view<const T>("k"),
                       .v = t.view<const T>("v"),
                       .o = t.view<T>("o"),
                       .scale = t.scale(),
                       .causal = t.causal()},
                      0);
          },
      .cost = [cost](const Shape& s) { return cost(s, dtype_of<T>, 1); },
      .tolerance = bound,
      .causal_cost = [cost](const Shape& s) { return cost(s, dtype_of<T>, 0.5); },
  };
}

inline double score_count(const Shape& s) { return double(s.B) * s.H * s.L * s.L; }
inline double operand_bytes(const Shape& s, Dtype dtype) {
  return double(s.B) * s.H * s.L * (2 * s.E + 2 * s.M) * bytes_of(dtype);
}

// The scores are written and read, so many times each 4 bytes; with the mask or without.
inline driver::Cost scores_in_memory(const Shape& s, Dtype dtype, double accesses, double flops) {
  return {operand_bytes(s, dtype) + accesses * sizeof(float) * score_count(s), flops};
}
inline double all_flops(const Shape& s) { return 2 * score_count(s) * (s.E + s.M); }

inline driver::Cost three_passes_cost(const Shape& s, Dtype dtype, double seen) {
  // The second product, but not the first, leaves out what is masked.
  return scores_in_memory(s, dtype, 6, 2 * score_count(s) * (s.E + seen * s.M));
}
inline driver::Cost product_softmax_cost(const Shape& s, Dtype dtype, double seen) {
  return scores_in_memory(s, dtype, 2 * seen, seen * all_flops(s));
}
inline driver::Cost flash_cost(const Shape& s, Dtype dtype, double seen) {
  return {operand_bytes(s, dtype), seen * all_flops(s)};
}
inline driver::Cost tensor_core_cost(const Shape& s, Dtype dtype, double seen) {
  return {.bytes = operand_bytes(s, dtype), .flops = 0, .matrix_flops = seen * all_flops(s)};
}

// The steps that compute in fp32, whatever the tensors' type.
template <class T>
std::vector<driver::Kernel> fp32_kernels() {
  const double bound = tolerance(dtype_of<T>);
  return {
      driver_kernel<T>("three_passes", three_passes_attention, three_passes_cost, bound),
      driver_kernel<T>("tiled", tiled_attention, three_passes_cost, bound),
      driver_kernel<T>("product_softmax", product_softmax_attention, product_softmax_cost, bound),
      driver_kernel<T>("flash", flash_attention, flash_cost, bound),
  };
}

// Why step 5 cannot run on the current device, or nothing.
inline std::string why_not_hopper() {
  std::string reason;
  return hopper_available(reason) ? "" : reason;
}

inline std::vector<driver::Kernel> driver_kernels() {
  std::vector<driver::Kernel> kernels = fp32_kernels<float>();
  for (auto& kernel : fp32_kernels<__nv_bfloat16>()) kernels.push_back(std::move(kernel));
  kernels.push_back(driver_kernel<__nv_bfloat16>("tensor_cores", tensor_cores_attention,
                                                 tensor_core_cost, kBf16ProductTolerance));
  driver::Kernel hopper = driver_kernel<__nv_bfloat16>("hopper", hopper_attention, tensor_core_cost,
                                                       kBf16ProductTolerance);
  hopper.why_not = why_not_hopper;
  kernels.push_back(std::move(hopper));
  return kernels;
}

template <class T>
void add_fp32_checks(std::vector<driver::Check>& checks) {
  const double bound = tolerance(dtype_of<T>);
  add_checks<T>(checks, "three_passes", three_passes_attention, bound);
  add_checks<T>(checks, "tiled", tiled_attention, bound);
  add_checks<T>(checks, "product_softmax", product_softmax_attention, bound);
  add_checks<T>(checks, "flash", flash_attention, bound);
}

inline std::vector<driver::Check> checks() {
  std::vector<driver::Check> checks;
  add_fp32_checks<float>(checks);
  add_fp32_checks<__nv_bfloat16>(checks);
  add_checks<__nv_bfloat16>(checks, "tensor_cores", tensor_cores_attention, kBf16ProductTolerance);
  add_checks<__nv_bfloat16>(checks, "hopper", hopper_attention, kBf16ProductTolerance);
  return checks;
}

inline std::string picked_kernel(const Shape&, Dtype dtype) {
  if (dtype == Dtype::f32) return "flash";
  return why_not_hopper().empty() ? "hopper" : "tensor_cores";
}

}  // namespace attn::flash
