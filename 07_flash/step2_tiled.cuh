// The two products with tiles in shared memory; then the softmax inside them.
//
// The idea, first half (tiled_attention): a block loads a slice of both factors into shared memory
// once and uses every element 64 times. Second half (product_softmax_attention): the block that
// computes scores walks all keys of its queries, and keeps the maximum and the sum of every row as
// it goes (Milakov and Gimelshein 2018, arXiv:1805.02867):
//
//   m' = max(m, max_j s_j),   l' = l * exp(m - m') + sum_j exp(s_j - m')
//
// so that the product with v can take exp(s - m) / l as it loads the scores: the softmax's own
// kernel, and its passes over memory, are gone.
//
// Who computes what: 256 threads own a tile of 64 x 64, each 4 x 4 elements of it in registers. The
// 16 threads of a row are neighbouring lanes: they join its maximum and sum by shuffles.
//
// What memory moves: every slice once per tile, so each element of q and k once in 64 uses. The
// scores: written, read three times, written, read in the first half; written and read in the
// second.
//
// What limits it: shared memory. 4 + 4 elements are read for 16 multiply-adds. In the second half
// there is also less to do at the same time: a block walks the keys of its queries one tile after
// the other.
//
// What the next step removes: the scores in memory, and half of the reads of shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

#include "07_flash/operands.cuh"
#include "07_flash/step1_three_passes.cuh"
#include "common/ceil_div.hpp"
#include "common/element.hpp"
#include "common/launch.cuh"
#include "common/ptx/exp2.cuh"
#include "common/shared_storage.cuh"
#include "common/stream_buffer.hpp"
#include "common/warp.cuh"

namespace attn::flash {

constexpr int kTile = 64;   // rows and columns of a block
constexpr int kSlice = 16;  // of the inner dimension, at a time
constexpr int kMicro = 4;   // rows and columns of a thread: a float4 each
constexpr int kTileThreads = (kTile / kMicro) * (kTile / kMicro);
constexpr int kRowLanes = kTile / kMicro;  // neighbouring lanes that share a row

struct TileStorage {
  // One row per inner index. The 4 unused elements keep rows on 16 bytes and move neighbours along
  // the inner dimension, which are stored at the same time, to other banks.
  float a[kSlice][kTile + 4];
  float b[kSlice][kTile + 4];
};

// The rows and columns of a thread, within the tile.
__device__ inline int first_row() { return threadIdx.x / kRowLanes * kMicro; }
__device__ inline int first_column() { return threadIdx.x % kRowLanes * kMicro; }

// [doc:tile]
// acc += A B for the block's tile, A [64, inner], B [inner, 64]. a(row, i) and b(i, column) give the
// elements, and zeros outside. A lies along the inner dimension in memory; B too, or along columns.
template <bool kBAlongInner, class A, class B>
__device__ void tile_product(float (&acc)[kMicro][kMicro], TileStorage& smem, int inner, const A& a,
                             const B& b) {
  for (int begin = 0; begin < inner; begin += kSlice) {
    __syncthreads();  // everybody is done with the slice before
    for (int n = threadIdx.x; n < kSlice * kTile; n += kTileThreads) {
      const int i = n % kSlice, row = n / kSlice;
      smem.a[i][row] = a(row, begin + i);
      if constexpr (kBAlongInner) {
        smem.b[i][row] = b(begin + i, row);
      } else {
        smem.b[n / kTile][n % kTile] = b(begin + n / kTile, n % kTile);
      }
    }
    __syncthreads();  // the slice is there
#pragma unroll
    for (int i = 0; i < kSlice; ++i) {
      const float4 rows = *reinterpret_cast<const float4*>(&smem.a[i][first_row()]);
      const float4 columns = *reinterpret_cast<const float4*>(&smem.b[i][first_column()]);
      const float a_rmem[kMicro] = {rows.x, rows.y, rows.z, rows.w};
      const float b_rmem[kMicro] = {columns.x, columns.y, columns.z, columns.w};
#pragma unroll
      for (int r = 0; r < kMicro; ++r) {
#pragma unroll
        for (int c = 0; c < kMicro; ++c) acc[r][c] += a_rmem[r] * b_rmem[c];
      }
    }
  }
}
// [/doc:tile]

// acc = q k^T for queries from i0 and keys from j0 on.
template <class T>
__device__ void score_tile(float (&acc)[kMicro][kMicro], TileStorage& smem,
                           const AttentionOperands<T>& x, const HeadIndex& at, int i0, int j0) {
  const int E = x.q.D, Lq = x.q.L, Lk = x.k.L;
  tile_product</*kBAlongInner=*/true>(
      acc, smem, E,
      [&](int row, int e) {
        return i0 + row < Lq && e < E ? to_float(x.q.row(at.b, at.h, i0 + row)[e]) : 0;
      },
      [&](int e, int column) {
        return j0 + column < Lk && e < E ? to_float(x.k.row(at.b, at.kv, j0 + column)[e]) : 0;
      });
}

// o = P v for queries from i0 and value columns from m0 on; p(i, j) is asked for visible keys only.
template <class T, class P>
__device__ void output_tile(float (&acc)[kMicro][kMicro], TileStorage& smem,
                            const AttentionOperands<T>& x, const HeadIndex& at, int i0, int m0,
                            const P& p) {
  const int Lq = x.q.L, Lk = x.k.L, M = x.v.D;
  const int last = i0 + kTile <= Lq ? i0 + kTile - 1 : Lq - 1;
  const int keys = visible_keys(last, Lq, Lk, x.causal);
  tile_product</*kBAlongInner=*/false>(
      acc, smem, keys,
      [&](int row, int j) {
        const int i = i0 + row;
        return i < Lq && j < visible_keys(i, Lq, Lk, x.causal) ? p(i, j) : 0;
      },
      [&](int j, int column) {
        return j < keys && m0 + column < M ? to_float(x.v.row(at.b, at.kv, j)[m0 + column]) : 0;
      });
#pragma unroll
  for (int r = 0; r < kMicro; ++r) {
    const int i = i0 + first_row() + r;
    if (i >= Lq) break;
    for (int c = 0; c < kMicro; ++c) {
      const int m = m0 + first_column() + c;
      if (m < M) x.o.row(at.b, at.h, i)[m] = from_float<T>(acc[r][c]);
    }
  }
}

// --- First half: step 1's kernels with tiles ------------------------------------------------------

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    tiled_scores_kernel(AttentionOperands<T> x, Scores scores, int row_tiles, int column_tiles) {
  const int64_t tile = blockIdx.x, n = tile / column_tiles / row_tiles;
  const int i0 = tile / column_tiles % row_tiles * kTile, j0 = tile % column_tiles * kTile;
  float acc[kMicro][kMicro] = {};
  score_tile(acc, shared_storage<TileStorage>(), x, head_index(x, scores.first + n), i0, j0);
  for (int r = 0; r < kMicro; ++r) {
    const int i = i0 + first_row() + r;
    if (i >= scores.Lq) break;
    const int keys = visible_keys(i, scores.Lq, scores.Lk, x.causal);
    for (int c = 0; c < kMicro; ++c) {
      const int j = j0 + first_column() + c;
      if (j < scores.Lk) scores.row(n, i)[j] = j < keys ? x.scale * acc[r][c] : -INFINITY;
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    tiled_output_kernel(AttentionOperands<T> x, Scores scores, int row_tiles, int column_tiles) {
  const int64_t tile = blockIdx.x, n = tile / column_tiles / row_tiles;
  const int i0 = tile / column_tiles % row_tiles * kTile, m0 = tile % column_tiles * kTile;
  float acc[kMicro][kMicro] = {};
  output_tile(acc, shared_storage<TileStorage>(), x, head_index(x, scores.first + n), i0, m0,
              [&](int i, int j) { return scores.row(n, i)[j]; });
}

// As three_passes_attention.
template <class T>
void tiled_attention(const AttentionOperands<T>& x, cudaStream_t stream = 0) {
  check_attention(x);
  for_heads(x, stream, [&](const Scores& scores, int64_t count) {
    const int rows = ceil_div(x.q.L, kTile), columns = ceil_div(x.k.L, kTile),
              out_columns = ceil_div(x.v.D, kTile);
    if (columns > 0)
      launch({count * rows * columns, kTileThreads, 0, stream}, tiled_scores_kernel<T>, x, scores,
             rows, columns);
    launch_softmax(x, scores, count, stream);
    launch({count * rows * out_columns, kTileThreads, 0, stream}, tiled_output_kernel<T>, x, scores,
           rows, out_columns);
  });
}

// --- Second half: the products with the softmax inside --------------------------------------------

// What the product with v needs to know of a row of scores.
struct RowStatistics {
  float max;  // in powers of two: of log2(e) * scale * q . k
  float sum;  // of exp2(score - max)
};

// [doc:statistics]
// The scores of 64 queries, in powers of two, and the statistics of their rows.
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    scores_and_statistics_kernel(AttentionOperands<T> x, Scores scores, RowStatistics* statistics,
                                 int row_tiles) {
  const int64_t n = blockIdx.x / row_tiles;
  const int i0 = blockIdx.x % row_tiles * kTile, Lq = scores.Lq, Lk = scores.Lk;
  const auto at = head_index(x, scores.first + n);
  const int last = i0 + kTile <= Lq ? i0 + kTile - 1 : Lq - 1;
  const int keys_of_block = visible_keys(last, Lq, Lk, x.causal);

  RowStatistics row[kMicro];
  for (auto& each : row) each = {-INFINITY, 0};
  for (int j0 = 0; j0 < keys_of_block; j0 += kTile) {
    float S[kMicro][kMicro] = {};
    score_tile(S, shared_storage<TileStorage>(), x, at, i0, j0);
#pragma unroll
    for (int r = 0; r < kMicro; ++r) {
      const int i = i0 + first_row() + r;
      const int keys = i < Lq ? visible_keys(i, Lq, Lk, x.causal) : 0;
      float max = row[r].max;
#pragma unroll
      for (int c = 0; c < kMicro; ++c) {
        const int j = j0 + first_column() + c;
        S[r][c] = j < keys ? x.scale * kLog2e * S[r][c] : -INFINITY;
        if (j < keys) scores.row(n, i)[j] = S[r][c];
        max = fmaxf(max, S[r][c]);
      }
      for (int lanes = kRowLanes / 2; lanes > 0; lanes /= 2)
        max = fmaxf(max, __shfl_xor_sync(kFullWarp, max, lanes));
      // Where nothing has been seen yet, the maximum stays -inf, and 0 is subtracted.
      const float subtracted = max == -INFINITY ? 0 : max;
      float sum = 0;
#pragma unroll
      for (int c = 0; c < kMicro; ++c) sum += exp2_approx(S[r][c] - subtracted);
      for (int lanes = kRowLanes / 2; lanes > 0; lanes /= 2)
        sum += __shfl_xor_sync(kFullWarp, sum, lanes);
      row[r] = {max, row[r].sum * exp2_approx(row[r].max - subtracted) + sum};
    }
  }

  if (threadIdx.x % kRowLanes != 0) return;
  for (int r = 0; r < kMicro; ++r) {
    const int i = i0 + first_row() + r;
    if (i >= Lq) break;
    statistics[n * Lq + i] = row[r];
    if (x.lse.data != nullptr)
      x.lse.row(at.b, at.h, 0)[i] = (row[r].max + log2f(row[r].sum)) / kLog2e;
  }
}
// [/doc:statistics]

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    softmax_output_kernel(AttentionOperands<T> x, Scores scores, const RowStatistics* statistics,
                          int row_tiles, int column_tiles) {
  const int64_t tile = blockIdx.x, n = tile / column_tiles / row_tiles;
  const int i0 = tile / column_tiles % row_tiles * kTile, m0 = tile % column_tiles * kTile;
  float acc[kMicro][kMicro] = {};
  output_tile(acc, shared_storage<TileStorage>(), x, head_index(x, scores.first + n), i0, m0,
              [&](int i, int j) {
                const RowStatistics row = statistics[n * scores.Lq + i];
                return exp2_approx(scores.row(n, i)[j] - row.max) / row.sum;
              });
}

// As three_passes_attention.
template <class T>
void product_softmax_attention(const AttentionOperands<T>& x, cudaStream_t stream = 0) {
  check_attention(x);
  for_heads(x, stream, [&](const Scores& scores, int64_t count) {
    const int rows = ceil_div(x.q.L, kTile), out_columns = ceil_div(x.v.D, kTile);
    StreamBuffer<RowStatistics> statistics(count * x.q.L, stream);
    launch({count * rows, kTileThreads, 0, stream}, scores_and_statistics_kernel<T>, x, scores,
           statistics.data(), rows);
    launch({count * rows * out_columns, kTileThreads, 0, stream}, softmax_output_kernel<T>, x,
           scores, statistics.data(), rows, out_columns);
  });
}

}  // namespace attn::flash
