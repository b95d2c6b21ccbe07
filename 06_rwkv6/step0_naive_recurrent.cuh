// RWKV-6, the recurrence as it is written: one block per head, one thread per value column.
//
// The idea (as in RWKV's own CUDA kernel): a thread keeps its column of the state in registers and
// walks time. Each step all threads need the same r, k, w and u; the block fetches them to shared
// memory.
//
// Who computes what: a block owns a (b, h), a thread a value column m: E entries of the state. With
// E over 64 a column would not fit into registers, and kLanes neighbouring threads share it, each
// with 64 entries. (Only where M * kLanes is over 512 threads does a head take further blocks.)
//
// What memory moves: every operand once.
//
// What limits it: latency. Every step waits for memory, twice for a barrier, and then for E
// multiply-adds in a row, with M / 32 warps per block to hide it.
//
// What the next step removes: the limit of one block per head.
#pragma once

#include <cuda_runtime.h>

#include "06_rwkv6/operands.cuh"
#include "common/element.hpp"
#include "common/launch.cuh"
#include "common/shared_storage.cuh"
#include "common/warp.cuh"

namespace attn::rwkv6 {

constexpr int kNaiveRows = 64;      // of the state, per thread: what registers hold
constexpr int kNaiveThreads = 512;  // at the most: 128 registers each

template <int kLanes>
struct NaiveStep {
  float u[kLanes * kNaiveRows];
  float r[kLanes * kNaiveRows];
  float k[kLanes * kNaiveRows];
  float decay[kLanes * kNaiveRows];
};

template <int kLanes, class T>
__global__ void __launch_bounds__(kNaiveThreads)
    naive_recurrent_kernel(Rwkv6Operands<T> x, int column_tiles) {
  auto& smem = shared_storage<NaiveStep<kLanes>>();
  const int64_t head = blockIdx.x / column_tiles;
  const int64_t b = head / x.r.H, h = head % x.r.H;
  const int E = x.r.D, M = x.v.D;
  const int lane = threadIdx.x % kLanes;
  const int m = (blockIdx.x % column_tiles * blockDim.x + threadIdx.x) / kLanes;
  // Rows are dealt to lanes in turn, so that the lanes of a column read neighbouring words.
  const auto row_of = [&](int i) { return i * kLanes + lane; };

  float S[kNaiveRows] = {};
  if (x.initial_state.data != nullptr && m < M) {
#pragma unroll
    for (int i = 0; i < kNaiveRows; ++i) {
      if (row_of(i) < E) S[i] = x.initial_state.row(b, h, row_of(i))[m];
    }
  }

  for (int e = threadIdx.x; e < kLanes * kNaiveRows; e += blockDim.x) {
    smem.u[e] = e < E ? to_float(x.u.row(0, h, 0)[e]) : 0;
  }

  // [doc:naive]
  for (int t = 0; t < x.r.L; ++t) {
    __syncthreads();  // everybody is done with the step before
    for (int e = threadIdx.x; e < kLanes * kNaiveRows; e += blockDim.x) {
      const bool inside = e < E;
      smem.r[e] = inside ? to_float(x.r.row(b, h, t)[e]) : 0;
      smem.k[e] = inside ? to_float(x.k.row(b, h, t)[e]) : 0;
      smem.decay[e] = inside ? expf(to_float(x.w.row(b, h, t)[e])) : 0;
    }
    __syncthreads();  // the step's rows are written

    const float v_m = m < M ? to_float(x.v.row(b, h, t)[m]) : 0;
    float o_m[1] = {};
#pragma unroll
    for (int i = 0; i < kNaiveRows; ++i) {
      const int e = row_of(i);
      const float kv = smem.k[e] * v_m;
      o_m[0] += smem.r[e] * (S[i] + smem.u[e] * kv);  // reads the state before the decay ...
      S[i] = smem.decay[e] * S[i] + kv;               // ... which acts only now
    }
    reduce_scatter<kLanes, 1>(o_m, lane);
    if (lane == 0 && m < M) x.o.row(b, h, t)[m] = from_float<T>(x.scale * o_m[0]);
  }
  // [/doc:naive]

  if (x.final_state.data != nullptr && m < M) {
#pragma unroll
    for (int i = 0; i < kNaiveRows; ++i) {
      if (row_of(i) < E) x.final_state.row(b, h, row_of(i))[m] = S[i];
    }
  }
}

template <int kLanes, class T>
void launch_naive_recurrent(const Rwkv6Operands<T>& x, cudaStream_t stream) {
  const int64_t wanted = (x.v.D * kLanes + 31) / 32 * 32;  // whole warps
  const int threads = wanted < kNaiveThreads ? wanted : kNaiveThreads;
  const int column_tiles = (wanted + threads - 1) / threads;
  launch({x.r.B * x.r.H * column_tiles, threads, 0, stream}, naive_recurrent_kernel<kLanes, T>, x,
         column_tiles);
}

// RWKV-6 of float or bf16 tensors, in fp32 arithmetic. Throws std::invalid_argument for operands
// that do not fit together, CudaError when the launch fails.
template <class T>
void naive_recurrent_rwkv6(const Rwkv6Operands<T>& operands, cudaStream_t stream = 0) {
  const Rwkv6Operands<T> x = in_walking_order(operands);
  if (x.r.D <= 64) return launch_naive_recurrent<1>(x, stream);
  if (x.r.D <= 128) return launch_naive_recurrent<2>(x, stream);
  if (x.r.D <= 256) return launch_naive_recurrent<4>(x, stream);
  return launch_naive_recurrent<8>(x, stream);
}

}  // namespace attn::rwkv6
