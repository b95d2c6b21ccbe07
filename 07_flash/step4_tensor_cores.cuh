// Softmax attention on tensor cores: bf16 products by mma.sync.
//
// The idea (Dao 2023, arXiv:2307.08691): step 3's walk, with warps that own rows. A product's output
// lies in a warp's registers just as the next product wants its left factor, so the weights go from
// the softmax to the product with v without touching shared memory, and no warp waits for another's
// softmax.
//
// Who computes what: a block owns kRows queries of one head, each of its 4 warps kWarpRows of them,
// and walks the keys in tiles of kKeys. A row of a warp's scores lies in the registers of 4 lanes,
// which join its maximum when it moves, by two shuffles, and its sum once, at the end.
//
// What memory moves: q and o once, k and v once per block of queries, from L2, by cp.async: while a
// tile is computed the next one is on its way to the other buffer. The instructions of these copies
// stand between those of a product, which leave room. In shared memory the 16-byte pieces of a row
// are exchanged by its number (swizzled), so that neither copies nor ldmatrix meet a bank twice. A
// warp with 32 rows reads k and v half as often as one with 16; where there are registers for 16
// only, they hold q too, and shared memory, then the limit, is read a fifth less.
//
// What limits it: tensor cores, and what must happen between two products. Each score costs
// 2 (E + M) flops there, and here an exponential (16 a cycle), a multiply-add, a maximum, a sum, half
// a conversion. The two blocks of a multiprocessor fill each other's gaps, as chance has it: tensor
// cores are busy two thirds of the time.
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
// and 160 to 208 of a thread's 255 registers for o, the scores and q. A few more keys to a tile would
// fit, but the compiler needs room to mix products with all else. kAligned: all rows begin on 16
// bytes and hold a whole number of them; copies of others take registers too.
template <int kD, bool kAligned>
struct TensorCoreTile {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocks = 2;
  static constexpr int kRowTiles = kD == 256 ? 1 : 2;  // of 16 rows, per warp
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr bool kKeepsQ = kD == 256 && kAligned;  // in registers
  static constexpr int kKeys = kD == 256   ? (kAligned ? 32 : 16)
                               : kD == 128 ? (kAligned ? 48 : 32)
                                           : (kAligned ? 96 : 48);

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

// [doc:tile_copy]
// Copies rows of a head to shared memory, tile after tile; zeros where there is no row or element. A
// thread copies chunks 8 apart of rows kStepRows apart, with one address for all chunks of a row.
template <int kRows, int kD, int kThreads, bool kAligned>
class TileCopy {
 public:
  __device__ __forceinline__ TileCopy(const __nv_bfloat16* head, int64_t stride_l)
      : from_(head + row() * stride_l + chunk() * 8) {}

  // The next tile; rows: how many the head has from its first on. The caller commits.
  __device__ __forceinline__ void next(__nv_bfloat16 (&smem)[kRows][kD], int64_t stride_l, int rows,
                                       int D) {
#pragma unroll
    for (int i = row(), step = 0; step < kRows / kStepRows; ++step, i += kStepRows) {
#pragma unroll
      for (int c = 0; c < kD / 8; c += 8) {
        const bool inside = i < rows && (chunk() + c) * 8 < D;
        __nv_bfloat16* to = &smem[i][swizzled(row(), chunk()) + c * 8];
        if constexpr (kAligned) {
          cp_async<16>(to, from_ + c * 8, inside);
        } else {
          for (int n = 0; n < 8; ++n) {
            to[n] = inside && (chunk() + c) * 8 + n < D ? from_[c * 8 + n] : __float2bfloat16(0.0f);
          }
        }
      }
      from_ += kStepRows * stride_l;
    }
  }

 private:
  static constexpr int kStepRows = kThreads / 8;
  static_assert(kRows % kStepRows == 0 && kStepRows % 8 == 0, "a thread's rows swizzle alike");
  static __device__ __forceinline__ int row() { return threadIdx.x / 8; }
  static __device__ __forceinline__ int chunk() { return threadIdx.x % 8; }

  const __nv_bfloat16* from_;
};
// [/doc:tile_copy]

// Two neighbours of a row as an operand of mma, the first in the low half.
__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return uint32_t(__bfloat16_as_ushort(pair.x)) | uint32_t(__bfloat16_as_ushort(pair.y)) << 16;
}

constexpr float kMostLag = 8;  // in powers of two

// The maximum of no scores: below any, and finite, since -inf - -inf is no number.
constexpr float kNoMaximum = -1e38f;

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
  const int keys_of_all = keys_of_row(i0);  // the keys that all rows of the block see
  const float scale = x.scale * kLog2e;     // scores in powers of two

  using KeyCopy = TileCopy<Tile::kKeys, kD, Tile::kThreads, kAligned>;
  KeyCopy k_copy(x.k.row(b, kv, 0), x.k.stride_l), v_copy(x.v.row(b, kv, 0), x.v.stride_l);
  if (keys_of_block > 0) {
    TileCopy<Tile::kRows, kD, Tile::kThreads, kAligned>(x.q.row(b, h, i0), x.q.stride_l)
        .next(smem.q, x.q.stride_l, Lq - i0, E);
    k_copy.next(smem.k[0], x.k.stride_l, Lk, E);
    v_copy.next(smem.v[0], x.v.stride_l, Lk, M);
  }
  cp_async_commit();

  // Which row of 8 elements this lane names to ldmatrix, of four matrices: of a left factor (q) those
  // of 16 rows, then of the next chunk; of k those of two chunks, then of the next 8 keys; of v those
  // of 16 keys, then of the next chunk.
  const int matrix = lane / 8;
  const int low_row = matrix % 2 * 8 + lane % 8, high_chunk = matrix / 2;  // q and v
  const int high_row = matrix / 2 * 8 + lane % 8, low_chunk = matrix % 2;  // k

  float o[kRowTiles][kColumnTiles][4] = {};
  float max[kRowTiles][2], sum[kRowTiles][2] = {};  // of the scores in powers of two
  for (auto& each : max) each[0] = each[1] = kNoMaximum;

  const auto load_q = [&](int r, int e, uint32_t(&q)[4]) {
    ldmatrix(q, &smem.q[warp_row + r * 16 + low_row][swizzled_lane(lane, 2 * e, high_chunk)]);
  };
  uint32_t kept_q[kD / 16][kRowTiles][4];
  if constexpr (Tile::kKeepsQ) {
    cp_async_wait<0>();
    __syncthreads();  // q is there
#pragma unroll
    for (int e = 0; e < kD / 16; ++e) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) load_q(r, e, kept_q[e][r]);
    }
  }

  int buffer = 0;
  const auto walk_tile = [&](int j0, auto masked) {
    cp_async_wait<0>();
    __syncthreads();  // this tile is there, and everybody is done with the other buffer
    const int left = Lk - j0 - Tile::kKeys;  // keys after this tile; none: zeros are copied

    // [doc:scores_mma]
    // S = q k^T, and the copies of the next tile
    float S[kRowTiles][kKeyTiles][4] = {};
#pragma unroll
    for (int e = 0; e < kD / 16; ++e) {
      uint32_t q[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        if constexpr (Tile::kKeepsQ)
          for (int i = 0; i < 4; ++i) q[r][i] = kept_q[e][r][i];
        else
          load_q(r, e, q[r]);
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
      // The next tile's copies, half of them at a time, where products leave room.
      if (e == 0) k_copy.next(smem.k[buffer ^ 1], x.k.stride_l, left, E);
      if (e == kD / 32) v_copy.next(smem.v[buffer ^ 1], x.v.stride_l, left, M);
    }
    // [/doc:scores_mma]
    cp_async_commit();

    if constexpr (masked.value) {
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
    // rescaled; and as long as it need not, the lanes of a row need not know of each other.
    float largest[kRowTiles][2];
    bool moves = false;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest[r][half] = S[r][0][2 * half];
#pragma unroll
        for (int j = 0; j < kKeyTiles; ++j) {
          largest[r][half] =
              fmaxf(largest[r][half], fmaxf(S[r][j][2 * half], S[r][j][2 * half + 1]));
        }
        moves |= largest[r][half] * scale - max[r][half] > kMostLag;
      }
    }
    if (__any_sync(kFullWarp, moves)) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float of_row = largest[r][half];
          of_row = fmaxf(of_row, __shfl_xor_sync(kFullWarp, of_row, 1));
          of_row = fmaxf(of_row, __shfl_xor_sync(kFullWarp, of_row, 2));
          const float new_max = fmaxf(max[r][half], of_row * scale);
          const float factor = exp2_approx(max[r][half] - new_max);
          max[r][half] = new_max;
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
    for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          S[r][j][i] = exp2_approx(S[r][j][i] * scale - max[r][i / 2]);
          sum[r][i / 2] += S[r][j][i];
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
    buffer ^= 1;
  };
  // [doc:walk]
  // Tiles that all rows see, then those that the mask or the last key cuts.
  int j0 = 0;
  for (; j0 + Tile::kKeys <= keys_of_all; j0 += Tile::kKeys) walk_tile(j0, std::false_type());
  for (; j0 < keys_of_block; j0 += Tile::kKeys) walk_tile(j0, std::true_type());
  // [/doc:walk]
  cp_async_wait<0>();  // a block must not end before its copies

  // The head once more, by a shuffle, so that the compiler does not keep it in registers until here.
  const int out_head = __shfl_sync(kFullWarp, head, 0), out_b = out_head / H, out_h = out_head % H;

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
      __nv_bfloat16* out = x.o.row(out_b, out_h, i);
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
        x.lse.row(out_b, out_h, 0)[i] =
            total == 0 ? -INFINITY : (max[r][half] + log2f(total)) / kLog2e;
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
  if (rows_are_16_bytes(x.q) && rows_are_16_bytes(x.k) && rows_are_16_bytes(x.v) &&
      rows_are_16_bytes(x.o))
    launch_tensor_cores<true>(x, stream);
  else
    launch_tensor_cores<false>(x, stream);
}

}  // namespace attn::flash
