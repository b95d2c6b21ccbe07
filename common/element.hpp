// The element types of tensors: conversion to and from float, on the host and in kernels, and the
// step from a Dtype known at run time to a type known to the compiler.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <type_traits>
#include <utility>

#include "common/shape.hpp"

namespace attn {

template <class T>
inline constexpr Dtype dtype_of = [] {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, __nv_bfloat16>);
  return std::is_same_v<T, float> ? Dtype::f32 : Dtype::bf16;
}();

__host__ __device__ inline float to_float(float x) { return x; }
__host__ __device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
__host__ __device__ T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    return __float2bfloat16(x);  // to nearest, ties to even
  }
}

// Calls f.operator()<T>() with the type that `dtype` names.
template <class F>
decltype(auto) with_element_type(Dtype dtype, F&& f) {
  if (dtype == Dtype::f32) return std::forward<F>(f).template operator()<float>();
  return std::forward<F>(f).template operator()<__nv_bfloat16>();
}

}  // namespace attn
