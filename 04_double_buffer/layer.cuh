// The causal linear attention layer, on top of the fastest causal product.
//
//   o_t = phi(q_t)^T S_t / (phi(q_t) . z_t + eps)
//   S_t = sum over s <= t of phi(k_s) v_s^T,  z_t = sum over s <= t of phi(k_s)
//   phi(x) = elu(x) + 1          (Katharopoulos et al. 2020, arXiv:2006.16236, eq. 7 and 8)
//
// The normaliser is a causal product too, with a single value column of ones. A view with strides
// of zero makes one float look like that column, so the kernels need to know nothing of it.
//
// What memory moves: phi(q) and phi(k) are written once and read by both products, the numerator
// is rewritten once. Fusing phi and the division into the product would save all of it.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "04_double_buffer/causal_product.cuh"
#include "common/device.hpp"
#include "common/device_buffer.hpp"
#include "common/launch.cuh"
#include "common/tensor_view.cuh"

namespace attn::double_buffer {

constexpr float kEpsilon = 1e-6f;  // of the normaliser, as in fast-transformers
constexpr int kRowThreads = 128;   // of the elementwise kernels; their blocks take rows in turn

// y = phi(x), and zero for rows from lengths[b] on (null: no such rows).
inline __global__ void feature_map_kernel(TensorView<const float> x,
                                          TensorView<float> y,   // [B, H, L, D]
                                          const int* lengths) {  // [B] or null
  for (int64_t row = blockIdx.x; row < x.B * x.H * x.L; row += gridDim.x) {
    const int64_t t = row % x.L, h = row / x.L % x.H, b = row / x.L / x.H;
    const bool counts = lengths == nullptr || t < lengths[b];
    for (int64_t d = threadIdx.x; d < x.D; d += blockDim.x) {
      const float x_d = x.row(b, h, t)[d];
      y.row(b, h, t)[d] = counts ? (x_d > 0 ? x_d + 1 : expf(x_d)) : 0;
    }
  }
}

// o = o / (normaliser + eps), row by row.
inline __global__ void normalise_kernel(TensorView<float> o,                   // [B, H, L, M]
                                        TensorView<const float> normaliser) {  // [B, H, L, 1]
  for (int64_t row = blockIdx.x; row < o.B * o.H * o.L; row += gridDim.x) {
    const int64_t t = row % o.L, h = row / o.L % o.H, b = row / o.L / o.H;
    const float scale = 1 / (*normaliser.row(b, h, t) + kEpsilon);
    for (int64_t m = threadIdx.x; m < o.D; m += blockDim.x) o.row(b, h, t)[m] *= scale;
  }
}

// [doc:layer]
// Causal linear attention. Keys from key_lengths[b] on count as zero; so do keys past Lk for
// queries beyond it, and keys past Lq are not read. key_lengths is in device memory, or null for
// all. Throws CudaError when scratch memory (two tensors like q and k, one float per query) or a
// launch fails.
inline void causal_linear_attention(TensorView<const float> q,  // [B, H, Lq, E]
                                    TensorView<const float> k,  // [B, H, Lk, E]
                                    TensorView<const float> v,  // [B, H, Lk, M]
                                    const int* key_lengths,     // [B] or null
                                    TensorView<float> o,        // [B, H, Lq, M]
                                    cudaStream_t stream = 0) {
  DeviceBuffer<float> phi_q_memory(q.B * q.H * q.L * q.D), phi_k_memory(k.B * k.H * k.L * k.D);
  DeviceBuffer<float> normaliser_memory(q.B * q.H * q.L), one(1);
  auto phi_q = dense_view(phi_q_memory.data(), q.B, q.H, q.L, q.D, Layout::BHLD);
  auto phi_k = dense_view(phi_k_memory.data(), k.B, k.H, k.L, k.D, Layout::BHLD);
  auto normaliser = dense_view(normaliser_memory.data(), q.B, q.H, q.L, 1, Layout::BHLD);
  one.copy_from({1.0f});
  const TensorView<const float> ones = {one.data(), k.B, k.H, k.L, 1, 0, 0, 0};

  auto rows = [&](const auto& x) {
    return LaunchConfig(std::min<int64_t>(x.B * x.H * x.L, 32 * multiprocessors()), kRowThreads, 0,
                        stream);
  };
  launch(rows(q), feature_map_kernel, q, phi_q, nullptr);
  launch(rows(k), feature_map_kernel, k, phi_k, key_lengths);
  causal_product(phi_q, phi_k, v, o, stream);
  causal_product(phi_q, phi_k, ones, normaliser, stream);
  launch(rows(o), normalise_kernel, o, normaliser);
  cuda_check(cudaStreamSynchronize(stream));  // before the scratch memory goes
}
// [/doc:layer]

}  // namespace attn::double_buffer
