// Softmax attention on tensor cores: bf16 products by mma.sync.
//
// The idea (Dao 2023, arXiv:2307.08691): step 3's walk, with warps that own rows. A product's output
// lies in a warp's registers just as the next product wants its left factor, so the weights go from
// the softmax to the product with v without touching shared memory, and no warp waits for another's
// softmax.
//
// Who computes what: a block owns kRows queries of one head, each of its 4 warps kWarpRows of them,
// and walks the keys in tiles of kKeys. A row of a warp's scores lies in the registers of 4 lanes,
// which join its maximum by two shuffles per tile, and its sum once, at the end.
//
// What memory moves: q and o once, k and v once per block of queries, from L2, by cp.async: while a
// tile is computed the next one is on its way to the other buffer. In shared memory the 16-byte
// pieces of a row are exchanged by its number (kSwizzle), so that neither these copies nor ldmatrix
// meet a bank twice. A warp with 32 rows reads k and v half as often as one with 16.
//
// What limits it: tensor cores, and what must happen between two products. Each score costs
// 2 (E + M) flops there, and here an exponential (16 a cycle), a multiply-add, half a maximum, half a
// sum, half a conversion. The two blocks of a multiprocessor fill each other's gaps, as chance has
// it.
//
// What the next step removes: mma.sync, which reaches two thirds of what Hopper's tensor cores can
// do; and chance.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "07_flash/operands.cuh"
#include "common/launch.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/shared_storage.cuh"
#include "common/warp.cuh"

namespace attn::flash {

// The tiles for head sizes up to kD: below 99 KiB of shared memory, two blocks to a multiprocessor,
// and at most 192 registers of a thread for o and the scores, of 255. kAligned: all rows begin on 16
// bytes and hold a whole number of them; copies of others take registers too.
template <int kD, bool kAligned>
struct TensorCoreTile {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocks = 2;
  static constexpr int kRowTiles = kD == 256 ? 1 : 2;  // of 16 rows, per warp
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kKeys = (kD == 256 ? 32 : kD == 128 ? 64 : 128) / (kAligned ? 1 : 2);
  static constexpr int kChunks = kD / 8;  // pieces of 16 bytes in a row

  struct SharedStorage {
    __nv_bfloat16 q[kRows][kD];
    __nv_bfloat16 k[2][kKeys][kD];
    __nv_bfloat16 v[2][kKeys][kD];
  };
};

// [doc:swizzle]
// Where chunk c of a row lies: eight rows that hold the same chunk, as ldmatrix reads them, or eight
// chunks of one row, as a copy writes them, are in eight different quarters of the banks.
__device__ __forceinline__ int swizzled(int row, int c) { return (c ^ row % 8) * 8; }

// The same for an even chunk c that the compiler knows, and the one that this lane reads: c or c + 1,
// of a row whose number is lane % 8 but for multiples of 8.
__device__ __forceinline__ int swizzled_lane(int lane, int c, int odd) {
  return ((odd ^ lane % 8) ^ c % 8) * 8 + c / 8 * 64;
}
// [/doc:swizzle]

// Rows [first, first + kRows) of a head, from `head` on, to shared memory; zeros where there is no
// row or element. The caller commits.
template <int kRows, int kD, int kThreads, bool kAligned>
__device__ __forceinline__ void load_tile(__nv_bfloat16 (&smem)[kRows][kD],
                                          const __nv_bfloat16* head, int64_t stride_l, int first,
                                          int L, int D) {
  constexpr int kChunks = kD / 8, kStepRows = kThreads / kChunks;
  static_assert(kRows % kStepRows == 0);
  const int c = threadIdx.x % kChunks;
  int row = threadIdx.x / kChunks;
  // A thread's own part of the offset is small for rows that lie as one expects: it saves registers.
  using Offset = std::conditional_t<kAligned, int, int64_t>;
  const __nv_bfloat16* from = head + first * stride_l + (row * Offset(stride_l) + c * 8);
#pragma unroll
  for (int step = 0; step < kRows / kStepRows; ++step) {
    const bool inside = first + row < L && c * 8 < D;
    __nv_bfloat16* to = &smem[row][swizzled(row, c)];
    if constexpr (kAligned) {
      cp_async<16>(to, from, inside);
    } else {
      for (int i = 0; i < 8; ++i)
        to[i] = inside && c * 8 + i < D ? from[i] : __float2bfloat16(0.0f);
    }
    row += kStepRows;
    from += kStepRows * stride_l;
  }
}

// Two neighbours of a row as an operand of mma, the first in the low half.
__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return uint32_t(__bfloat16_as_ushort(pair.x)) | uint32_t(__bfloat16_as_ushort(pair.y)) << 16;
}

constexpr float kMostLag = 8;  // in powers of two

// What is subtracted from the scaled scores of a row; a row that has seen no key has no maximum.
__device__ __forceinline__ float subtracted(float max, float scale) {
  return max == -INFINITY ? 0 : max * scale;
}

template <int kD, bool kAligned>
__global__ void __launch_bounds__(TensorCoreTile<kD, kAligned>::kThreads,
                                  TensorCoreTile<kD, kAligned>::kBlocks)
    tensor_cores_kernel(AttentionOperands<__nv_bfloat16> x, int row_tiles) {
  using Tile = TensorCoreTile<kD, kAligned>;
  constexpr int kRowTiles = Tile::kRowTiles;
  constexpr int kKeyTiles = Tile::kKeys / 8;  // columns of mma's output
  constexpr int kColumnTiles = kD / 8;        // the same of o
  auto& smem = shared_storage<typename Tile::SharedStorage>();
  const int Lq = x.q.L, Lk = x.k.L, E = x.q.D, M = x.v.D;
  const int H = x.q.H, head = blockIdx.x / row_tiles;
  const int b = head / H, h = head % H, kv = h / (H / int(x.k.H));
  // With the causal mask the last rows have the most keys: they begin first.
  const int i0 = (row_tiles - 1 - blockIdx.x % row_tiles) * Tile::kRows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp * Tile::kWarpRows;
  // The rows of a lane: those of mma's output (common/ptx/mma.cuh).
  const auto row_of = [&](int r, int half) { return i0 + warp_row + r * 16 + half * 8 + lane / 4; };
  const auto keys_of_row = [&](int i) {
    return visible_keys(i < Lq ? i : Lq - 1, Lq, Lk, x.causal);
  };
  const int keys_of_block = keys_of_row(i0 + Tile::kRows - 1);
  const int keys_of_warp = keys_of_row(i0 + warp_row + Tile::kWarpRows - 1);
  const float scale = x.scale * 1.4426950408889634f;  // scores in powers of two

  const __nv_bfloat16 *k_head = x.k.row(b, kv, 0), *v_head = x.v.row(b, kv, 0);
  const auto load_kv = [&](int j0, int buffer) {
    load_tile<Tile::kKeys, kD, Tile::kThreads, kAligned>(smem.k[buffer], k_head, x.k.stride_l, j0,
                                                         Lk, E);
    load_tile<Tile::kKeys, kD, Tile::kThreads, kAligned>(smem.v[buffer], v_head, x.v.stride_l, j0,
                                                         Lk, M);
  };
  if (keys_of_block > 0) {
    load_tile<Tile::kRows, kD, Tile::kThreads, kAligned>(smem.q, x.q.row(b, h, 0), x.q.stride_l, i0,
                                                         Lq, E);
    load_kv(0, 0);
  }
  cp_async_commit();

  // Which row of 8 elements this lane names to ldmatrix, of four matrices: of a left factor (q) those
  // of 16 rows, then of the next chunk; of k those of two chunks, then of the next 8 keys; of v those
  // of 16 keys, then of the next chunk.
  const int matrix = lane / 8;
  const int low_row = matrix % 2 * 8 + lane % 8, high_chunk = matrix / 2;  // q and v
  const int high_row = matrix / 2 * 8 + lane % 8, low_chunk = matrix % 2;  // k

  float o[kRowTiles][kColumnTiles][4] = {};
  float max[kRowTiles][2], sum[kRowTiles][2] = {};
  for (auto& each : max) each[0] = each[1] = -INFINITY;

  int buffer = 0;
  for (int j0 = 0; j0 < keys_of_block; j0 += Tile::kKeys, buffer ^= 1) {
    cp_async_wait<0>();
    __syncthreads();  // this tile is there, and everybody is done with the other buffer
    if (j0 + Tile::kKeys < keys_of_block) load_kv(j0 + Tile::kKeys, buffer ^ 1);
    cp_async_commit();
    if (j0 >= keys_of_warp) continue;  // the mask hides the tile from all rows of the warp

    // [doc:scores_mma]
    // S = q k^T
    float S[kRowTiles][kKeyTiles][4] = {};
#pragma unroll
    for (int e = 0; e < kD / 16; ++e) {
      uint32_t q[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        ldmatrix(q[r],
                 &smem.q[warp_row + r * 16 + low_row][swizzled_lane(lane, 2 * e, high_chunk)]);
      }
#pragma unroll
      for (int j = 0; j < kKeyTiles; j += 2) {
        uint32_t k[4];
        ldmatrix(k, &smem.k[buffer][j * 8 + high_row][swizzled_lane(lane, 2 * e, low_chunk)]);
        const uint32_t first[2] = {k[0], k[1]}, second[2] = {k[2], k[3]};
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          mma_m16n8k16(S[r][j], q[r], first, S[r][j]);
          mma_m16n8k16(S[r][j + 1], q[r], second, S[r][j + 1]);
        }
      }
    }
    // [/doc:scores_mma]

    if (j0 + Tile::kKeys > keys_of_warp - (x.causal ? Tile::kWarpRows - 1 : 0)) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int keys = keys_of_row(row_of(r, half)) - j0 - lane % 4 * 2;
#pragma unroll
          for (int j = 0; j < kKeyTiles; ++j) {
            if (j * 8 >= keys) S[r][j][2 * half] = -INFINITY;
            if (j * 8 + 1 >= keys) S[r][j][2 * half + 1] = -INFINITY;
          }
        }
      }
    }

    // [doc:softmax_registers]
    // The maximum that is subtracted may lag behind the largest score, by at most a factor of 2^8 in
    // the weights: what they are divided by lags as well. So it seldom moves, and o is seldom
    // rescaled.
    float new_max[kRowTiles][2];
    bool moved = false;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& largest = new_max[r][half];
        largest = max[r][half];
#pragma unroll
        for (int j = 0; j < kKeyTiles; ++j)
          largest = fmaxf(largest, fmaxf(S[r][j][2 * half], S[r][j][2 * half + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 2));
        moved |= (largest - max[r][half]) * scale > kMostLag;  // also from -inf
      }
    }
    if (__any_sync(kFullWarp, moved)) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float factor =
              exp2_approx(max[r][half] * scale - subtracted(new_max[r][half], scale));
          max[r][half] = new_max[r][half];
          sum[r][half] *= factor;
#pragma unroll
          for (int m = 0; m < kColumnTiles; ++m) {
            o[r][m][2 * half] *= factor;
            o[r][m][2 * half + 1] *= factor;
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float minus = -subtracted(max[r][half], scale);
#pragma unroll
        for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            S[r][j][i] = exp2_approx(S[r][j][i] * scale + minus);
            sum[r][half] += S[r][j][i];
          }
        }
      }
    }
    // [/doc:softmax_registers]

    // [doc:output_mma]
    // o += p v
#pragma unroll
    for (int j = 0; j < kKeyTiles; j += 2) {
      uint32_t p[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        p[r][0] = pack(S[r][j][0], S[r][j][1]);
        p[r][1] = pack(S[r][j][2], S[r][j][3]);
        p[r][2] = pack(S[r][j + 1][0], S[r][j + 1][1]);
        p[r][3] = pack(S[r][j + 1][2], S[r][j + 1][3]);
      }
#pragma unroll
      for (int m = 0; m < kColumnTiles; m += 2) {
        uint32_t v[4];
        ldmatrix_trans(v, &smem.v[buffer][j * 8 + low_row][swizzled_lane(lane, m, high_chunk)]);
        const uint32_t first[2] = {v[0], v[1]}, second[2] = {v[2], v[3]};
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          mma_m16n8k16(o[r][m], p[r], first, o[r][m]);
          mma_m16n8k16(o[r][m + 1], p[r], second, o[r][m + 1]);
        }
      }
    }
    // [/doc:output_mma]
  }
  cp_async_wait<0>();  // a block must not end before its copies

#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = sum[r][half];
      total += __shfl_xor_sync(kFullWarp, total, 1);
      total += __shfl_xor_sync(kFullWarp, total, 2);
      const int i = row_of(r, half);
      if (i >= Lq) continue;
      const float factor = total == 0 ? 0 : 1 / total;
      __nv_bfloat16* out = x.o.row(b, h, i);
#pragma unroll
      for (int m = 0; m < kColumnTiles; ++m) {
        const int column = m * 8 + lane % 4 * 2;
        const float low = o[r][m][2 * half] * factor, high = o[r][m][2 * half + 1] * factor;
        if (kAligned && column < M) {
          *reinterpret_cast<uint32_t*>(&out[column]) = pack(low, high);
        } else {
          if (column < M) out[column] = __float2bfloat16(low);
          if (column + 1 < M) out[column + 1] = __float2bfloat16(high);
        }
      }
      if (x.lse.data != nullptr && lane % 4 == 0)
        x.lse.row(b, h, 0)[i] =
            total == 0 ? -INFINITY : (max[r][half] * scale + log2f(total)) / 1.4426950408889634f;
    }
  }
}

template <int kD, bool kAligned>
void launch_tensor_cores(const AttentionOperands<__nv_bfloat16>& x, cudaStream_t stream) {
  using Tile = TensorCoreTile<kD, kAligned>;
  const int row_tiles = static_cast<int>((x.q.L + Tile::kRows - 1) / Tile::kRows);
  launch({x.q.B * x.q.H * row_tiles, Tile::kThreads,
          dynamic_shared_bytes<typename Tile::SharedStorage>(), stream},
         tensor_cores_kernel<kD, kAligned>, x, row_tiles);
}

template <bool kAligned>
void launch_tensor_cores(const AttentionOperands<__nv_bfloat16>& x, cudaStream_t stream) {
  const int64_t D = x.q.D > x.v.D ? x.q.D : x.v.D;
  if (D <= 64) return launch_tensor_cores<64, kAligned>(x, stream);
  if (D <= 128) return launch_tensor_cores<128, kAligned>(x, stream);
  return launch_tensor_cores<256, kAligned>(x, stream);
}

// Softmax attention of bf16 tensors, with products on tensor cores. Throws std::invalid_argument for
// operands that do not fit together, CudaError when the launch fails. Needs compute capability 8.0.
inline void tensor_cores_attention(const AttentionOperands<__nv_bfloat16>& x,
                                   cudaStream_t stream = 0) {
  check_attention(x);
  const auto expected = [](const TensorView<const __nv_bfloat16>& rows) {
    constexpr int64_t kMostStride = int64_t{1}
                                    << 26;  // the kernel multiplies it by up to 16, in int
    return rows_are_16_bytes(rows) && rows.stride_l > -kMostStride && rows.stride_l < kMostStride;
  };
  if (expected(x.q) && expected(x.k) && expected(x.v) && rows_are_16_bytes(x.o))
    launch_tensor_cores<true>(x, stream);
  else
    launch_tensor_cores<false>(x, stream);
}

}  // namespace attn::flash
