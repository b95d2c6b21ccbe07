// Gated linear attention in chunks of 64, exactly as the formula factors. It exists to fail: nobody
// should use it, and only the gate lab runs it.
//
// With G_t the sum of the gates from the chunk's first row to row t, and S the state before the
// chunk,
//
//   o_t = scale * (q_t exp G_t)^T S  +  scale * sum over s <= t of A[t, s] v_s
//   A[t, s] = (q_t exp G_t) . (k_s exp -G_s)
//   S_next = diag(exp G_last) S + sum over t of (k_t exp(G_last - G_t)) v_t^T
//
// which is right on paper, and makes the scores one matrix product. But exp -G_s is infinite in
// fp32 once the gates of a chunk sum to less than -88.7, and with it the score, or NaN where
// exp G_t is zero. Long before, the rounding of large G_t and G_s is felt: exp multiplies it.
//
// Who computes what: one block per (b, h), as plain as can be. A thread is in turn an entry e of
// the rows, a column s of the scores, and a column m of the state and the output.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>

#include "05_chunked_gla/operands.cuh"
#include "common/launch.cuh"
#include "common/shared_storage.cuh"

namespace attn::chunked_gla {
namespace naive_factored {

constexpr int kChunk = 64;
constexpr int kSize = 64;  // of the heads, at most
static_assert(kChunk == kSize, "a thread is an entry of the rows, then a row of the chunk");

struct SharedStorage {
  float q[kChunk][kSize];      // q_t exp G_t
  float k[kChunk][kSize + 1];  // k_t exp -G_t, then k_t exp(G_last - G_t); a thread reads a row
  float A[kChunk][kChunk];
  float decay[kSize];  // exp G_last
};

inline __global__ void __launch_bounds__(kSize) naive_factored_kernel(GlaOperands<float> x) {
  auto& smem = shared_storage<SharedStorage>();
  const int64_t b = blockIdx.x / x.q.H, h = blockIdx.x % x.q.H;
  const int L = x.q.L, M = x.v.D;
  const int e = threadIdx.x, s = threadIdx.x, m = threadIdx.x;

  float S[kSize] = {};  // column m
  for (int first = 0; first < L; first += kChunk) {
    // Rows past L, and entries past the head size, count as zero.
    const auto at = [&](const TensorView<const float>& y, int t, int d) {
      return first + t < L && d < y.D ? y.row(b, h, first + t)[d] : 0;
    };

    float G_last = 0;
    for (int t = 0; t < kChunk; ++t) {
      G_last += at(x.g, t, e);
      smem.q[t][e] = at(x.q, t, e) * expf(G_last);
      smem.k[t][e] = at(x.k, t, e) * expf(-G_last);
    }
    smem.decay[e] = expf(G_last);
    __syncthreads();  // q and k are written

    for (int t = 0; t < kChunk; ++t) {
      float score = 0;
      for (int i = 0; i < kSize; ++i) score += smem.q[t][i] * smem.k[s][i];
      smem.A[t][s] = s <= t ? score : 0;
    }
    __syncthreads();  // the scores are written, and everybody is done with k

    float G = 0;
    for (int t = 0; t < kChunk; ++t) {
      G += at(x.g, t, e);
      smem.k[t][e] = at(x.k, t, e) * expf(G_last - G);
    }
    __syncthreads();  // k is written

    for (int t = 0; t < kChunk; ++t) {
      float o = 0;
#pragma unroll
      for (int i = 0; i < kSize; ++i) o += smem.q[t][i] * S[i];
      for (int i = 0; i <= t; ++i) o += smem.A[t][i] * at(x.v, i, m);
      if (first + t < L && m < M) x.o.row(b, h, first + t)[m] = x.scale * o;
    }
#pragma unroll
    for (int i = 0; i < kSize; ++i) S[i] *= smem.decay[i];
    for (int t = 0; t < kChunk; ++t) {
      const float v_m = at(x.v, t, m);
#pragma unroll
      for (int i = 0; i < kSize; ++i) S[i] += smem.k[t][i] * v_m;
    }
    __syncthreads();  // everybody is done with the chunk
  }
}

}  // namespace naive_factored

// Gated linear attention of head sizes up to 64, from a state of zeros. Right for mild gates only.
// Throws std::invalid_argument for other operands, CudaError when the launch fails.
inline void naive_factored_gla(const GlaOperands<float>& x, cudaStream_t stream = 0) {
  using namespace naive_factored;
  check_gla(x);
  if (x.q.D > kSize || x.v.D > kSize || x.initial_state.data || x.final_state.data)
    throw std::invalid_argument("naive_factored_gla: a head size over 64, or a state");
  launch({x.q.B * x.q.H, kSize, dynamic_shared_bytes<SharedStorage>(), stream},
         naive_factored_kernel, x);
}

}  // namespace attn::chunked_gla
