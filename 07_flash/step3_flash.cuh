// Softmax attention in one pass: the scores never leave the chip.
//
// The idea (Dao et al. 2022, arXiv:2205.14135; Rabe and Staats 2021, arXiv:2112.05682): step 2 keeps
// the maximum and the sum of a row as it walks the keys. Keep the output too, as a sum of
// exp(s_j - m) v_j, and multiply it by exp(m - m') when the maximum moves from m to m': then a tile
// of scores is used where it was computed, and forgotten.
//
// Who computes what: a block owns kRows queries of one head, in a grid of (Lq / kRows) * B * H, and
// walks the keys in tiles of kKeys. Its threads form a grid of kLanesY x kLanesX; each owns every
// kLanesY-th row, of the scores every kLanesX-th column, and of the output 4 neighbouring columns in
// every 4 kLanesX. So a row belongs to kLanesX neighbouring lanes, which join its maximum and its sum
// by shuffles; and the rows that a warp's scores belong to are those it multiplies with v: they go
// through shared memory without a barrier of the block.
//
// What memory moves: q and o once, k and v once per block of queries, from L2 (the blocks of one
// head run side by side). The copy of the next k goes on while v is multiplied, that of the next v
// while k is. (cp.async; a bf16 tensor is converted on its way, by the threads.)
//
// What limits it: arithmetic, in fp32: 2 multiply-adds per score and element of the head. With 8 rows
// a thread, 12 reads of 16 bytes feed 128 multiply-adds in the scores, and 16 feed 256 in the output
// (E = M = 64).
//
// What the next step removes: fp32 arithmetic. Tensor cores do ten times as much in bf16.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <type_traits>

#include "07_flash/operands.cuh"
#include "common/element.hpp"
#include "common/launch.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/exp2.cuh"
#include "common/shared_storage.cuh"
#include "common/warp.cuh"

namespace attn::flash {

// The tiles for head sizes up to kD. Rows and keys are as many as leave a block below 99 KiB of
// shared memory, which GPUs from Ampere on have, and its threads without spills.
template <int kD>
struct FlashTile {
  static constexpr int kThreads = 128;
  static constexpr int kLanesX = kD == 64 ? 8 : 16;
  static constexpr int kLanesY = kThreads / kLanesX;
  static constexpr int kRows = kD == 64 ? 128 : kD == 128 ? 64 : 32;
  static constexpr int kKeys = kD == 256 ? 16 : 32;
  static constexpr int kBlocks = kD == 256 ? 3 : 2;      // that share a multiprocessor
  static constexpr int kThreadRows = kRows / kLanesY;    // 8, 8, 4
  static constexpr int kThreadKeys = kKeys / kLanesX;    // 4, 2, 1
  static constexpr int kThreadQuads = kD / 4 / kLanesX;  // 2, 2, 4: columns of the output, by 4
  static constexpr int kUnroll = kD == 256 ? 2 : 4;      // of the scores' loop: more would spill
  // Neighbouring rows begin 4 banks apart: 8 lanes that read 16 bytes of a row each do not collide.
  static constexpr int kStride = kD + 4;

  struct SharedStorage {
    float q[kRows][kStride];
    float k[kKeys][kStride];
    float v[kKeys][kD];  // read along rows only
    float p[kRows][kKeys + 8];
  };
};

// Rows [first, first + kRows) of a head, from `head` on, to shared memory as floats; zeros where there
// is no row or element. The caller commits.
template <int kRows, int kD, int kThreads, int kStride, class T>
__device__ void load_rows(float (&smem)[kRows][kStride], const T* head, int64_t stride_l, int first,
                          int L, int D, bool aligned) {
  constexpr int kQuads = kD / 4;
#pragma unroll 4
  for (int n = threadIdx.x; n < kRows * kQuads; n += kThreads) {
    const int row = n / kQuads, d = n % kQuads * 4;
    const bool inside = first + row < L && d < D;
    const T* from = inside ? head + (first + row) * stride_l + d : head;
    float* to = &smem[row][d];
    if constexpr (std::is_same_v<T, float>) {
      if (aligned) {
        cp_async<16>(to, from, inside);
        continue;
      }
    }
    for (int i = 0; i < 4; ++i) to[i] = inside && d + i < D ? to_float(from[i]) : 0;
  }
}

// [doc:kernel]
template <int kD, class T>
__global__ void __launch_bounds__(FlashTile<kD>::kThreads, FlashTile<kD>::kBlocks)
    flash_kernel(AttentionOperands<T> x, int row_tiles, bool aligned) {
  using Tile = FlashTile<kD>;
  constexpr int kThreadRows = Tile::kThreadRows, kThreadKeys = Tile::kThreadKeys,
                kThreadQuads = Tile::kThreadQuads;
  auto& smem = shared_storage<typename Tile::SharedStorage>();
  const int Lq = x.q.L, Lk = x.k.L, E = x.q.D, M = x.v.D;
  const int64_t head = blockIdx.x / row_tiles;
  const int64_t b = head / x.q.H, h = head % x.q.H, kv = h / (x.q.H / x.k.H);
  // With the causal mask the last rows have the most keys: they begin first.
  const int i0 = (row_tiles - 1 - blockIdx.x % row_tiles) * Tile::kRows;
  const int tx = threadIdx.x % Tile::kLanesX, ty = threadIdx.x / Tile::kLanesX;
  const auto row_of = [&](int r) { return ty + r * Tile::kLanesY; };
  const auto key_of = [&](int c) { return tx + c * Tile::kLanesX; };
  const auto column_of = [&](int u) { return (tx + u * Tile::kLanesX) * 4; };

  const int last = i0 + Tile::kRows <= Lq ? i0 + Tile::kRows - 1 : Lq - 1;
  const int keys_of_block = visible_keys(last, Lq, Lk, x.causal);
  const int keys_of_all = visible_keys(i0, Lq, Lk, x.causal);  // what its first row sees, all see
  const float scale = x.scale * kLog2e;                        // scores in powers of two

  const auto load_k = [&](int j0) {
    load_rows<Tile::kKeys, kD, Tile::kThreads>(smem.k, x.k.row(b, kv, 0), x.k.stride_l, j0, Lk, E,
                                               aligned);
    cp_async_commit();
  };
  const auto load_v = [&](int j0) {
    load_rows<Tile::kKeys, kD, Tile::kThreads>(smem.v, x.v.row(b, kv, 0), x.v.stride_l, j0, Lk, M,
                                               aligned);
    cp_async_commit();
  };
  load_rows<Tile::kRows, kD, Tile::kThreads>(smem.q, x.q.row(b, h, 0), x.q.stride_l, i0, Lq, E,
                                             aligned);
  load_k(0);
  load_v(0);

  float max[kThreadRows], sum[kThreadRows] = {};
  for (float& each : max) each = -INFINITY;
  float o[kThreadRows][kThreadQuads * 4] = {};

  for (int j0 = 0; j0 < keys_of_block; j0 += Tile::kKeys) {
    cp_async_wait<1>();  // all but the latest copy, v's
    __syncthreads();     // ... of everybody: q and k are there

    // S = q k^T
    float S[kThreadRows][kThreadKeys] = {};
#pragma unroll(Tile::kUnroll)
    for (int e = 0; e < kD; e += 4) {
      float4 q[kThreadRows];
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r)
        q[r] = *reinterpret_cast<const float4*>(&smem.q[row_of(r)][e]);
#pragma unroll
      for (int c = 0; c < kThreadKeys; ++c) {
        const float4 k = *reinterpret_cast<const float4*>(&smem.k[key_of(c)][e]);
#pragma unroll
        for (int r = 0; r < kThreadRows; ++r) {
          S[r][c] += q[r].x * k.x;
          S[r][c] += q[r].y * k.y;
          S[r][c] += q[r].z * k.z;
          S[r][c] += q[r].w * k.w;
        }
      }
    }
    __syncthreads();  // everybody is done with k
    load_k(j0 + Tile::kKeys);

    // [doc:online]
    // The maximum, the factor for what was summed before it moved, and the weights.
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
      const int keys = j0 + Tile::kKeys <= keys_of_all
                           ? keys_of_all
                           : visible_keys(i0 + row_of(r), Lq, Lk, x.causal);
      float new_max = max[r];
#pragma unroll
      for (int c = 0; c < kThreadKeys; ++c) {
        S[r][c] = j0 + key_of(c) < keys ? S[r][c] * scale : -INFINITY;
        new_max = fmaxf(new_max, S[r][c]);
      }
#pragma unroll
      for (int lanes = Tile::kLanesX / 2; lanes > 0; lanes /= 2)
        new_max = fmaxf(new_max, __shfl_xor_sync(kFullWarp, new_max, lanes));
      // A row that has seen no key yet keeps -inf, and subtracts 0.
      const float subtracted = new_max == -INFINITY ? 0 : new_max;
      const float factor = exp2_approx(max[r] - subtracted);
      max[r] = new_max;
      sum[r] *= factor;
#pragma unroll
      for (int c = 0; c < kThreadKeys; ++c) {
        const float p = exp2_approx(S[r][c] - subtracted);
        sum[r] += p;  // of this lane's keys; the lanes are joined at the end
        smem.p[row_of(r)][key_of(c)] = p;
      }
#pragma unroll
      for (float& each : o[r]) each *= factor;
    }
    // [/doc:online]

    cp_async_wait<1>();  // all but the latest copy, the next k's
    __syncthreads();     // ... of everybody: v is there; and the warp's rows of p are written

    // o += p v
#pragma unroll 2
    for (int j = 0; j < Tile::kKeys; j += 4) {
      float4 p[kThreadRows];
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r)
        p[r] = *reinterpret_cast<const float4*>(&smem.p[row_of(r)][j]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int u = 0; u < kThreadQuads; ++u) {
          const float4 v = *reinterpret_cast<const float4*>(&smem.v[j + i][column_of(u)]);
#pragma unroll
          for (int r = 0; r < kThreadRows; ++r) {
            const float weight = i == 0 ? p[r].x : i == 1 ? p[r].y : i == 2 ? p[r].z : p[r].w;
            o[r][u * 4 + 0] += weight * v.x;
            o[r][u * 4 + 1] += weight * v.y;
            o[r][u * 4 + 2] += weight * v.z;
            o[r][u * 4 + 3] += weight * v.w;
          }
        }
      }
    }
    __syncthreads();  // everybody is done with v, and with p
    load_v(j0 + Tile::kKeys);
  }
  // [/doc:kernel]
  cp_async_wait<0>();  // a block must not end before its copies

#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
#pragma unroll
    for (int lanes = Tile::kLanesX / 2; lanes > 0; lanes /= 2)
      sum[r] += __shfl_xor_sync(kFullWarp, sum[r], lanes);
    const int i = i0 + row_of(r);
    if (i >= Lq) continue;
    const float factor = sum[r] == 0 ? 0 : 1 / sum[r];
    T* out = x.o.row(b, h, i);
#pragma unroll
    for (int n = 0; n < kThreadQuads * 4; ++n) {
      const int m = column_of(n / 4) + n % 4;
      if (m < M) out[m] = from_float<T>(o[r][n] * factor);
    }
    if (x.lse.data != nullptr && tx == 0) x.lse.row(b, h, 0)[i] = (max[r] + log2f(sum[r])) / kLog2e;
  }
}

template <int kD, class T>
void launch_flash(const AttentionOperands<T>& x, cudaStream_t stream) {
  using Tile = FlashTile<kD>;
  const bool aligned = rows_are_16_bytes(x.q) && rows_are_16_bytes(x.k) && rows_are_16_bytes(x.v);
  const int row_tiles = static_cast<int>((x.q.L + Tile::kRows - 1) / Tile::kRows);
  launch({x.q.B * x.q.H * row_tiles, Tile::kThreads,
          dynamic_shared_bytes<typename Tile::SharedStorage>(), stream},
         flash_kernel<kD, T>, x, row_tiles, aligned);
}

// Softmax attention of float or bf16 tensors, in fp32 arithmetic. Throws std::invalid_argument for
// operands that do not fit together, CudaError when the launch fails.
template <class T>
void flash_attention(const AttentionOperands<T>& x, cudaStream_t stream = 0) {
  check_attention(x);
  const int64_t D = x.q.D > x.v.D ? x.q.D : x.v.D;
  if (D <= 64) return launch_flash<64>(x, stream);
  if (D <= 128) return launch_flash<128>(x, stream);
  return launch_flash<256>(x, stream);
}

}  // namespace attn::flash
