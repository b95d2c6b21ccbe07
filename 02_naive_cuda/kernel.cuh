// Causal linear attention, translated word for word to CUDA.
//
//   S_t = S_{t-1} + k_t v_t^T        [E, M], the running state
//   o_t = q_t^T S_t                  (Katharopoulos et al. 2020, arXiv:2006.16236, eq. 16 to 20)
//
// Who computes what: one block per (b, h); thread m owns value column m, so it alone reads and
// writes column m of the state, and threads need no synchronisation at all.
//
// What memory moves: everything, every time. The state is in global memory and is read and written
// once per step, 8*E*M bytes, where the step's inputs and output are only 4*(2E + 2M).
//
// What limits it: latency. A multiply-add waits for a load from the state, which waits for the
// store of the step before; B*H blocks of M threads are too few to cover that wait.
//
// What the next stage removes: the state's trips to global memory.
#pragma once

#include <cuda_runtime.h>

#include "common/check_operands.hpp"
#include "common/cuda_check.hpp"
#include "common/launch.cuh"
#include "common/tensor_view.cuh"

namespace attn::naive {

// [doc:kernel]
inline __global__ void causal_product_kernel(TensorView<const float> q,  // [B, H, L, E]
                                             TensorView<const float> k,  // [B, H, L, E]
                                             TensorView<const float> v,  // [B, H, L, M]
                                             TensorView<float> o,        // [B, H, L, M]
                                             float* state) {             // [B*H, E, M], zero
  const int64_t b = blockIdx.x / q.H;
  const int64_t h = blockIdx.x % q.H;
  const int E = q.D;
  const int M = v.D;
  const int m = threadIdx.x;
  float* S = state + int64_t(blockIdx.x) * E * M;

  for (int64_t t = 0; t < q.L; ++t) {
    const float v_m = v.row(b, h, t)[m];
    float o_m = 0;
    for (int e = 0; e < E; ++e) {
      S[e * M + m] += k.row(b, h, t)[e] * v_m;
      o_m += q.row(b, h, t)[e] * S[e * M + m];
    }
    o.row(b, h, t)[m] = o_m;
  }
}
// [/doc:kernel]

// The causal product of float tensors: o_t = sum over s <= t of (q_t . k_s) v_s.
// M is at most 1024, the threads of a block. The state lives in stream-ordered scratch memory of
// B*H*E*M floats. Throws std::invalid_argument for operands that do not fit together, CudaError
// when the scratch memory or the launch fails.
inline void causal_product(TensorView<const float> q, TensorView<const float> k,  // [B, H, L, E]
                           TensorView<const float> v, TensorView<float> o,        // [B, H, L, M]
                           cudaStream_t stream = 0) {
  check_causal_product(q, k, v, o);
  check_equal_lengths(q, k);
  const int64_t heads = q.B * q.H;
  const size_t state_bytes = sizeof(float) * heads * q.D * v.D;
  float* state = nullptr;
  cuda_check(cudaMallocAsync(reinterpret_cast<void**>(&state), state_bytes, stream));
  cuda_check(cudaMemsetAsync(state, 0, state_bytes, stream));
  launch({heads, v.D, 0, stream}, causal_product_kernel, q, k, v, o, state);
  cuda_check(cudaFreeAsync(state, stream));
}

}  // namespace attn::naive
