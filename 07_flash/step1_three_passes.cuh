// Softmax attention as it is written: scores, softmax, product, one kernel each.
//
// The idea: none yet. The matrix of scores, [Lq, Lk] for every head, lies in memory between the
// kernels, as float.
//
// Who computes what: a thread computes one score, then one output, in blocks of 16 x 16. For the
// softmax a warp owns a row and reads it three times: its maximum, its sum, its quotients.
//
// What memory moves: for each score 2 E elements are asked for, of which the caches of a
// multiprocessor serve 15 in 16; the scores themselves are written, read three times, written again
// and read again.
//
// What limits it: the loads. Each multiply-add asks for two elements: the load units are busy all
// the time, the arithmetic hardly ever.
//
// What the next step removes: most of those loads, by tiles in shared memory; then the softmax's
// own passes over the scores.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "07_flash/operands.cuh"
#include "common/ceil_div.hpp"
#include "common/element.hpp"
#include "common/launch.cuh"
#include "common/stream_buffer.hpp"
#include "common/warp.cuh"

namespace attn::flash {

// The scores of some heads, [count, Lq, Lk]: those from `first` of all B * H on.
struct Scores {
  float* data;
  int64_t first;
  int Lq, Lk;

  __host__ __device__ float* row(int64_t n, int i) const {  // n counts from `first`
    return data + (n * Lq + i) * Lk;
  }
};

// Where a head's operands are.
struct HeadIndex {
  int64_t b, h, kv;  // head h of q and o, head kv of k and v
};

template <class T>
__device__ HeadIndex head_index(const AttentionOperands<T>& x, int64_t head) {
  const int64_t h = head % x.q.H;
  return {head / x.q.H, h, h / (x.q.H / x.k.H)};
}

constexpr int kSide = 16;  // of a block: so many threads in a row, and so many rows

// [doc:scores]
// S_ij = scale * q_i . k_j, or minus infinity where query i does not see key j.
template <class T>
__global__ void scores_kernel(AttentionOperands<T> x, Scores scores, int row_tiles,
                              int column_tiles) {
  const int64_t tile = blockIdx.x, n = tile / column_tiles / row_tiles;
  const int i = tile / column_tiles % row_tiles * kSide + threadIdx.y;
  const int j = tile % column_tiles * kSide + threadIdx.x;
  if (i >= scores.Lq || j >= scores.Lk) return;
  const auto [b, h, kv] = head_index(x, scores.first + n);
  const T* q = x.q.row(b, h, i);
  const T* k = x.k.row(b, kv, j);
  float sum = 0;
  for (int e = 0; e < x.q.D; ++e) sum += to_float(q[e]) * to_float(k[e]);
  const bool visible = j < visible_keys(i, scores.Lq, scores.Lk, x.causal);
  scores.row(n, i)[j] = visible ? x.scale * sum : -INFINITY;
}
// [/doc:scores]

constexpr int kSoftmaxThreads = 256;

// [doc:softmax]
// P_ij = exp(S_ij - max_j S_ij) / sum_j exp(S_ij - max_j S_ij), in place; a row of nothing but minus
// infinity becomes zeros.
template <class T>
__global__ void softmax_kernel(AttentionOperands<T> x, Scores scores, int64_t rows) {
  const int lane = threadIdx.x % 32;
  const int64_t row = (int64_t(blockIdx.x) * kSoftmaxThreads + threadIdx.x) / 32;
  if (row >= rows) return;
  const int64_t n = row / scores.Lq;
  const int i = row % scores.Lq;
  float* S = scores.row(n, i);

  float max = -INFINITY;
  for (int j = lane; j < scores.Lk; j += 32) max = fmaxf(max, S[j]);
  for (int lanes = 16; lanes > 0; lanes /= 2)
    max = fmaxf(max, __shfl_xor_sync(kFullWarp, max, lanes));
  const float subtracted = max == -INFINITY ? 0 : max;  // -inf - -inf is no number

  float sum = 0;
  for (int j = lane; j < scores.Lk; j += 32) sum += expf(S[j] - subtracted);
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kFullWarp, sum, lanes);

  const float factor = sum == 0 ? 0 : 1 / sum;
  for (int j = lane; j < scores.Lk; j += 32) S[j] = expf(S[j] - subtracted) * factor;

  if (x.lse.data != nullptr && lane == 0) {
    const auto [b, h, kv] = head_index(x, scores.first + n);
    x.lse.row(b, h, 0)[i] = max + logf(sum);
  }
}
// [/doc:softmax]

// o_i = sum_j P_ij v_j
template <class T>
__global__ void output_kernel(AttentionOperands<T> x, Scores scores, int row_tiles,
                              int column_tiles) {
  const int64_t tile = blockIdx.x, n = tile / column_tiles / row_tiles;
  const int i = tile / column_tiles % row_tiles * kSide + threadIdx.y;
  const int m = tile % column_tiles * kSide + threadIdx.x;
  if (i >= scores.Lq || m >= x.v.D) return;
  const auto [b, h, kv] = head_index(x, scores.first + n);
  const float* P = scores.row(n, i);
  const int keys = visible_keys(i, scores.Lq, scores.Lk, x.causal);
  float sum = 0;
  for (int j = 0; j < keys; ++j) sum += P[j] * to_float(x.v.row(b, kv, j)[m]);
  x.o.row(b, h, i)[m] = from_float<T>(sum);
}

// Calls run(scores, count) for all heads, as many at a time as have 4 GiB of scores: all those of
// 64 heads of length 4096, but at least one.
template <class T, class Run>
void for_heads(const AttentionOperands<T>& x, cudaStream_t stream, const Run& run) {
  constexpr int64_t kScores = int64_t{1} << 30;
  const int64_t heads = x.q.B * x.q.H, size = x.q.L * x.k.L;
  const int64_t at_once = std::clamp<int64_t>(size == 0 ? heads : kScores / size, 1, heads);
  StreamBuffer<float> memory(at_once * size, stream);
  for (int64_t first = 0; first < heads; first += at_once) {
    const Scores scores = {memory.data(), first, static_cast<int>(x.q.L), static_cast<int>(x.k.L)};
    run(scores, std::min(at_once, heads - first));
  }
}

template <class T>
void launch_softmax(const AttentionOperands<T>& x, const Scores& scores, int64_t count,
                    cudaStream_t stream) {
  const int64_t rows = count * scores.Lq;
  launch({ceil_div(rows * 32, kSoftmaxThreads), kSoftmaxThreads, 0, stream}, softmax_kernel<T>, x,
         scores, rows);
}

// Softmax attention of float or bf16 tensors, in fp32 arithmetic. Throws std::invalid_argument for
// operands that do not fit together, CudaError when a launch fails or the scores of one head do not
// fit in memory.
template <class T>
void three_passes_attention(const AttentionOperands<T>& x, cudaStream_t stream = 0) {
  check_attention(x);
  for_heads(x, stream, [&](const Scores& scores, int64_t count) {
    const int rows = ceil_div(x.q.L, kSide), columns = ceil_div(x.k.L, kSide),
              out_columns = ceil_div(x.v.D, kSide);
    const LaunchSize block(kSide, kSide);
    if (columns > 0)
      launch({count * rows * columns, block, 0, stream}, scores_kernel<T>, x, scores, rows,
             columns);
    launch_softmax(x, scores, count, stream);
    launch({count * rows * out_columns, block, 0, stream}, output_kernel<T>, x, scores, rows,
           out_columns);
  });
}

}  // namespace attn::flash
