// Causal linear attention with the state in shared memory, its rows shared out over blocks.
//
// The idea (the fallback kernel of fast-transformers has the same form): rows of the state never
// meet. Row e needs only k_t[e], q_t[e] and v_t, and adds its own share to o_t. So a block takes
// kRows = 8 rows of one (b, h), keeps them in shared memory, and adds its share of every output
// with atomicAdd. E / 8 times more blocks than stage 02 keep the chip busy.
//
// Who computes what: grid.x = (tiles of 8 rows) * (tiles of 64 columns) * B*H; thread m owns column
// m of the tile. The state tile is private to its thread; k_t and q_t are shared by all.
//
// What memory moves: q and k once per tile of columns, v once per tile of rows (E / 8 times), and
// 4*E*M/8 bytes of atomics per step where the output itself is 4*M. The state moves nowhere.
//
// What limits it: each step loads, waits for memory, computes 8 multiply-adds and meets two
// barriers; and E / 8 blocks queue for the same addresses of the output.
//
// What the next stage removes: the wait at every step, and the atomics.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "common/check_operands.hpp"
#include "common/device.hpp"
#include "common/launch.cuh"
#include "common/shared_storage.cuh"
#include "common/tensor_view.cuh"

namespace attn::shared_mem {

constexpr int kRows = 8;      // rows of the state in a block: E / 8 blocks share one (b, h)
constexpr int kColumns = 64;  // columns of a block, one per thread: two warps

// [doc:storage]
struct SharedStorage {
  float state[kRows][kColumns];
  float k[kRows];
  float q[kRows];
};
// [/doc:storage]

// [doc:kernel]
inline __global__ void causal_product_kernel(TensorView<const float> q,  // [B, H, L, E]
                                             TensorView<const float> k,  // [B, H, L, E]
                                             TensorView<const float> v,  // [B, H, L, M]
                                             TensorView<float> o,        // [B, H, L, M], zero
                                             int row_tiles, int column_tiles) {
  SharedStorage& smem = shared_storage<SharedStorage>();
  const int row_tile = blockIdx.x % row_tiles;
  const int column_tile = blockIdx.x / row_tiles % column_tiles;
  const int64_t head = blockIdx.x / row_tiles / column_tiles;
  const int64_t b = head / q.H;
  const int64_t h = head % q.H;
  const int e0 = row_tile * kRows;
  const int m = threadIdx.x;
  const int m_global = column_tile * kColumns + m;
  const bool has_column = m_global < v.D;

  for (int e = 0; e < kRows; ++e) smem.state[e][m] = 0;

  for (int64_t t = 0; t < q.L; ++t) {
    // The first threads fetch the rows' k and q; rows past E count as zero.
    if (m < kRows) {
      smem.k[m] = e0 + m < q.D ? k.row(b, h, t)[e0 + m] : 0;
    } else if (m < 2 * kRows) {
      const int e = m - kRows;
      smem.q[e] = e0 + e < q.D ? q.row(b, h, t)[e0 + e] : 0;
    }
    __syncthreads();  // k and q of step t are written before any thread reads them

    const float v_m = has_column ? v.row(b, h, t)[m_global] : 0;
    float o_m = 0;
    for (int e = 0; e < kRows; ++e) {
      smem.state[e][m] += smem.k[e] * v_m;
      o_m += smem.q[e] * smem.state[e][m];
    }
    if (has_column) atomicAdd(&o.row(b, h, t)[m_global], o_m);
    __syncthreads();  // all have read k and q of step t before step t + 1 overwrites them
  }
}
// [/doc:kernel]

// atomicAdd needs zeros to add to. Blocks take rows of o in turn.
inline __global__ void zero_kernel(TensorView<float> o) {  // [B, H, L, M]
  for (int64_t row = blockIdx.x; row < o.B * o.H * o.L; row += gridDim.x) {
    const int64_t head = row / o.L;
    float* o_row = o.row(head / o.H, head % o.H, row % o.L);
    for (int64_t m = threadIdx.x; m < o.D; m += blockDim.x) o_row[m] = 0;
  }
}

// The causal product of float tensors: o_t = sum over s <= t of (q_t . k_s) v_s.
// Zeroes o itself. Partial sums meet in no fixed order, so the last bits of o may differ from run
// to run. Throws std::invalid_argument for operands that do not fit together, CudaError when a
// launch fails.
inline void causal_product(TensorView<const float> q, TensorView<const float> k,  // [B, H, L, E]
                           TensorView<const float> v, TensorView<float> o,        // [B, H, L, M]
                           cudaStream_t stream = 0) {
  check_causal_product(q, k, v, o);
  check_equal_lengths(q, k);
  const int row_tiles = (q.D + kRows - 1) / kRows;
  const int column_tiles = (v.D + kColumns - 1) / kColumns;
  const int64_t heads = q.B * q.H;
  const int64_t zero_blocks = std::min<int64_t>(heads * o.L, 32 * multiprocessors());
  launch({zero_blocks, kColumns, 0, stream}, zero_kernel, o);
  launch({heads * row_tiles * column_tiles, kColumns, 0, stream}, causal_product_kernel, q, k, v, o,
         row_tiles, column_tiles);
}

}  // namespace attn::shared_mem
