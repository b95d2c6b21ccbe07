// The GLA layer: what a model calls, on top of this stage's operator.
//
//   q = x W_q,  k = x W_k,  v = x W_v,  g = logsigmoid(x W_g1 W_g2 + b_g) / 16
//   o = gated_linear_attention(q, k, v, g, scale = E^-1/2)
//   y = (RMSNorm(o) * silu(x W_r)) W_o          (Yang et al. 2023, arXiv:2312.06635, section 4.4)
//
// Operator and norm work on each head by itself. A head is a block of columns of a projection, so
// the operator takes the projections as they are, as [B, L, H, E] tensors, without a copy.
//
// What memory moves, besides the operator and the products: gate and norm rewrite g and o in place.
// A bf16 layer holds everything between its kernels in bf16, and computes in fp32.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "05_chunked_gla/examples/matmul.cuh"
#include "05_chunked_gla/gla.cuh"
#include "common/element.hpp"
#include "common/launch.cuh"
#include "common/stream_buffer.hpp"
#include "common/tensor_view.cuh"
#include "common/warp.cuh"

namespace attn::chunked_gla {

constexpr float kGateTemperature = 16;
constexpr float kNormEps = 1e-5f;
constexpr int kLayerThreads = 128;

// d_k = H * E and d_v = H * M: head h has columns h * E .. (h + 1) * E, or M, of a projection.
template <class T>
struct GlaLayer {
  int64_t heads;                   // H
  MatrixView<const T> W_q, W_k;    // [d, d_k]
  MatrixView<const T> W_v;         // [d, d_v]
  MatrixView<const T> W_g1, W_g2;  // [d, 16] and [16, d_k]; any rank
  MatrixView<const T> b_g;         // [1, d_k]
  MatrixView<const T> W_r;         // [d, d_v]
  MatrixView<const T> w_norm;      // [1, M], shared by the heads
  MatrixView<const T> W_o;         // [d_v, d]
};

// g = logsigmoid(g + b) / 16, row by row.
template <class T>
__global__ void gate_kernel(MatrixView<T> g,          // [B * L, d_k]
                            MatrixView<const T> b) {  // [1, d_k]
  const int64_t first = int64_t(blockIdx.x) * g.cols;
  for (int64_t e = threadIdx.x; e < g.cols; e += blockDim.x) {
    const float x = to_float(g.data[first + e]) + to_float(b.data[e]);
    // Without the exponential of a large number.
    const float logsigmoid = fminf(x, 0.0f) - log1pf(expf(-fabsf(x)));
    g.data[first + e] = from_float<T>(logsigmoid / kGateTemperature);
  }
}

// o = RMSNorm(o) * silu(r). A warp for each position and head.
template <class T>
__global__ void gated_norm_kernel(MatrixView<T> o,          // [B * L * H, M]
                                  MatrixView<const T> r,    // [B * L * H, M]
                                  MatrixView<const T> w) {  // [1, M]
  const int lane = threadIdx.x % 32;
  const int64_t row = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (row >= o.rows) return;  // whole warps, and no barrier follows
  float squares[1] = {};
  for (int64_t m = lane; m < o.cols; m += 32) {
    const float o_m = to_float(o.data[row * o.cols + m]);
    squares[0] += o_m * o_m;
  }
  reduce_scatter<32, 1>(squares, lane);
  const float scale = rsqrtf(squares[0] / o.cols + kNormEps);
  for (int64_t m = lane; m < o.cols; m += 32) {
    const int64_t i = row * o.cols + m;
    const float r_m = to_float(r.data[i]);
    const float silu = r_m / (1 + expf(-r_m));
    o.data[i] = from_float<T>(to_float(o.data[i]) * scale * to_float(w.data[m]) * silu);
  }
}

// [doc:gla_layer]
// Enqueues y = layer(x) for B sequences; B and the number of heads are at least 1. T is float or
// __nv_bfloat16. Throws std::invalid_argument for matrices that do not fit together, CudaError when
// scratch memory (q, k, v, g, r, o) or a launch fails.
template <class T>
void gla_layer(const MatmulLibrary& library, const GlaLayer<T>& layer, int64_t B,
               MatrixView<const T> x,  // [B * L, d]
               MatrixView<T> y,        // [B * L, d]
               cudaStream_t stream = 0) {
  const int64_t H = layer.heads, d_k = layer.W_q.cols, d_v = layer.W_v.cols;
  if (x.rows % B || d_k % H || d_v % H || layer.b_g.cols != d_k || layer.w_norm.cols != d_v / H)
    throw std::invalid_argument("GLA layer: B, H and the weights' sizes do not fit together");
  const int64_t L = x.rows / B, E = d_k / H;

  const auto scratch = [&](int64_t cols) { return StreamBuffer<T>(x.rows * cols, stream); };
  const auto q_memory = scratch(d_k), k_memory = scratch(d_k), g_memory = scratch(d_k);
  const auto v_memory = scratch(d_v), r_memory = scratch(d_v), o_memory = scratch(d_v);
  const auto g_low_rank_memory = scratch(layer.W_g1.cols);
  const auto project = [&](MatrixView<const T> rows, MatrixView<const T> W,
                           const StreamBuffer<T>& memory) {
    const MatrixView<T> projected = {memory.data(), rows.rows, W.cols};
    matmul<T>(library, rows, W, projected, stream);
    return projected;
  };
  const auto q = project(x, layer.W_q, q_memory), k = project(x, layer.W_k, k_memory);
  const auto v = project(x, layer.W_v, v_memory), r = project(x, layer.W_r, r_memory);
  const auto g = project(project(x, layer.W_g1, g_low_rank_memory), layer.W_g2, g_memory);
  launch({g.rows, kLayerThreads, 0, stream}, gate_kernel<T>, g, layer.b_g);

  const MatrixView<T> o = {o_memory.data(), x.rows, d_v};
  const auto heads = [&](MatrixView<T> of) {
    return dense_view(of.data, B, H, L, of.cols / H, Layout::BLHD);
  };
  const float scale = 1 / std::sqrt(float(E));
  gated_linear_attention<T>({heads(q), heads(k), heads(v), heads(g), heads(o), scale}, stream);

  const auto head_rows = [&](MatrixView<T> of) {
    return MatrixView<T>{of.data, of.rows * H, of.cols / H};
  };
  constexpr int kRows = kLayerThreads / 32;  // of a block
  launch({(o.rows * H + kRows - 1) / kRows, kLayerThreads, 0, stream}, gated_norm_kernel<T>,
         head_rows(o), head_rows(r), layer.w_norm);
  matmul<T>(library, o, layer.W_o, y, stream);
}
// [/doc:gla_layer]

}  // namespace attn::chunked_gla
