// Causal linear attention in chunks of 16 rows, on tensor cores.
//
// The idea: sixteen steps of the recurrence are three products of small matrices. With Q, K and V
// the chunk's rows, S the state before them, and causal() what lies on and below the diagonal,
//
//   O = Q S + causal(Q K^T) V
//   S = S + K^T V
//
// Tensor cores multiply matrices: an instruction of a warp is 2048 multiply-adds, not 32.
//
// The instruction: mma.sync m16n8k16, D = A B + C. A is [16, 16], B [16, 8], of bf16; C and D are
// [16, 8], of floats. The matrices lie in the registers of the warp, a part in each lane: below, at
// `Who holds what`. What C is to one product is A or B to the next, in the same lane. C's columns 2t
// and 2t + 1 are what A wants of its rows: scores, rounded to pairs of bf16, are A. And the state is
// kept transposed, S^T [value columns, E]: as C of V^T K it is B of Q S.
//
// How exact: rounding the output to bf16 costs 1.7e-3. So nothing else may be rounded to bf16: the
// scores go in as the sum of two bf16, and S as tf32, floats of which the tensor core reads 10 bits
// of mantissa and cuts off the rest (m16n8k8, at half the speed). That costs 4e-4.
//
// Who computes what: a block has one head and 64 of its value columns. Each of its four warps has 16
// of these columns, and all E rows of their state, in registers. (At E = 128 a block has 128 columns,
// a warp 32.) A warp takes chunk after chunk, and waits for the others only where a buffer changes;
// for that, all make the same scores.
//
// What memory moves: q and k once per tile of columns, v and o once.
//
// What limits it: probably latency. A multiprocessor has two blocks, so two warps per scheduler, and
// products wait for products. (On an H200 it takes a quarter of the time of step 1; 1.4 times the time
// that a copy of so many bytes takes.)
//
// What the next step adds, in stage 05: a gate for each row of the state.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "common/ceil_div.hpp"
#include "common/check_operands.hpp"
#include "common/launch.cuh"
#include "common/pairs.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/ragged.cuh"
#include "common/shared_storage.cuh"
#include "common/tensor_view.cuh"
#include "common/warp.cuh"

namespace attn::double_buffer {
namespace chunks {

using bf16 = __nv_bfloat16;

constexpr int kChunk = 16;  // rows: what A of mma.sync has

struct Operands {
  TensorView<const bf16> q;  // [B, H, L, E]
  TensorView<const bf16> k;  // [B, H, Lk, E]
  TensorView<const bf16> v;  // [B, H, Lk, M]
  TensorView<bf16> o;        // [B, H, L, M]
};

// [doc:tiling]
// How a block divides its head.
template <int kE_, int kColumns_, int kWarps_, int kChunks_, int kBlocks_>
struct Tiling {
  static constexpr int kE = kE_;              // rows of the state, padded with zeros
  static constexpr int kColumns = kColumns_;  // of the state, of one warp
  static constexpr int kWarps = kWarps_;      // side by side
  static constexpr int kChunks = kChunks_;    // of a round, which is what a buffer holds
  static constexpr int kBlocks = kBlocks_;    // side by side on one multiprocessor

  static constexpr int kM = kColumns * kWarps;  // value columns of the block
  static constexpr int kRows = kChunks * kChunk;
  static constexpr int kThreads = kWarps * kWarp;

  // Rows in shared memory.
  using Rows = bf16[kRows][kE + kPad];
  using ValueRows = bf16[kRows][kM + kPad];
  // S^T, a warp's value columns times all rows, as C: [tile of 16 columns][tile of 8 rows][element].
  using State = float[kColumns / 16][kE / 8][4];
  // Outputs of a chunk as C: [tile of 8 columns][element].
  using Outputs = float[kColumns / 8][4];
};
// [/doc:tiling]

template <class Tiling>
struct SharedStorage {
  // Rows as they lie in memory: those to be taken, and those on their way.
  alignas(16) typename Tiling::Rows q[2], k[2];
  alignas(16) typename Tiling::ValueRows v[2];
};

// [doc:who_holds_what]
// Who holds what, with g = lane / 4 and t = lane % 4:
//
//   A       rows g and g + 8, columns 2t, 2t + 1, 2t + 8, 2t + 9     4 registers of two bf16
//   B       rows 2t, 2t + 1, 2t + 8, 2t + 9 of column g              2 registers of two bf16
//   C, D    rows g and g + 8, columns 2t, 2t + 1                     4 registers of a float
//
// ldmatrix brings tiles of 8 x 8 from shared memory into this order, four at a time. Each lane gives
// the address of a row of a tile, lanes 0 to 7 of the first, and so on, and gets elements 2t and
// 2t + 1 of row g of each tile; with .trans of column g. So rows of q are A as they lie, rows of k
// are B of Q K^T as they lie, and B of V^T K with .trans; rows of v are A of that with .trans.
// [/doc:who_holds_what]

// [doc:split_causal]
// The causal half of a chunk's scores, from C to A, as the sum of two bf16.
__device__ __forceinline__ void split_causal(uint32_t (&high)[4], uint32_t (&low)[4],
                                             const float (&scores)[2][4], int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i % 2 * 8, key = lane % 4 * 2 + i / 2 * 8;
    const float* s = &scores[i / 2][i % 2 * 2];
    const float s0 = key <= row ? s[0] : 0, s1 = key + 1 <= row ? s[1] : 0;
    high[i] = pack_high(s0, s1);
    low[i] = pack_low(s0, s1, high[i]);
  }
}
// [/doc:split_causal]

// [doc:take]
// o = the outputs of a chunk, which begins at row0 of the buffers; S takes its rows in. `column` is
// the warp's first.
template <class Tiling>
__device__ __forceinline__ void take(typename Tiling::State& S, typename Tiling::Outputs& o,
                                     const typename Tiling::Rows& q, const typename Tiling::Rows& k,
                                     const typename Tiling::ValueRows& v, int row0, int column,
                                     int lane) {
  constexpr int kTiles = Tiling::kColumns / 16, kHalves = Tiling::kColumns / 8;
  // Which element of four tiles, two by two, a lane gives the address of: row by row, as A wants
  // them, or column by column.
  const int a_row = row0 + lane % 16, a_column = lane / 16 * 8;
  const int b_row = row0 + lane / 16 * 8 + lane % 8, b_column = lane / 8 % 2 * 8;

  // V^T as A, [16 value columns, 16 rows]. Registers 0 and 2 are also V as B, of the first 8 columns,
  // and 1 and 3 of the others.
  uint32_t v_t[kTiles][4];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    ldmatrix_trans(v_t[tile], &v[b_row][column + tile * 16 + b_column]);
  }

  float scores[2][4] = {};         // of the chunk's first 8 keys, and of the others
  float sums[2][kHalves][4] = {};  // two of each output, which do not wait for each other
#pragma unroll
  for (int n = 0; n < Tiling::kE / 8; n += 2) {  // 16 columns of q and k, 16 rows of S
    uint32_t q_a[4], k_b[4], k_t[4];
    ldmatrix(q_a, &q[a_row][n * 8 + a_column]);
    ldmatrix(k_b, &k[b_row][n * 8 + b_column]);
    ldmatrix_trans(k_t, &k[a_row][n * 8 + a_column]);
    // Q K^T.
    mma_m16n8k16(scores[0], q_a, {k_b[0], k_b[1]}, scores[0]);
    mma_m16n8k16(scores[1], q_a, {k_b[2], k_b[3]}, scores[1]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Q S. A of m16n8k8 has columns t and t + 4 in a lane, B rows t and t + 4. Which column of q
      // is called t does not matter, if the row of S is called so too: here it is 2t and 2t + 1,
      // which a lane has of S. (A bf16 is the upper half of a float.)
      const uint32_t q_tf32[4] = {q_a[2 * i] << 16, q_a[2 * i + 1] << 16, q_a[2 * i] & 0xffff0000u,
                                  q_a[2 * i + 1] & 0xffff0000u};
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const float* s = &S[half / 2][n + i][half % 2 * 2];
        mma_m16n8k8_tf32(sums[i][half], q_tf32, {__float_as_uint(s[0]), __float_as_uint(s[1])},
                         sums[i][half]);
      }
      // S^T += V^T K, after Q S has read these rows.
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float(&s)[4] = S[tile][n + i];
        mma_m16n8k16(s, v_t[tile], {k_t[2 * i], k_t[2 * i + 1]}, s);
      }
    }
  }

  // causal(Q K^T) V.
  uint32_t high[4], low[4];
  split_causal(high, low, scores, lane);
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const uint32_t v_b[2] = {v_t[half / 2][half % 2], v_t[half / 2][half % 2 + 2]};
    mma_m16n8k16(sums[0][half], high, v_b, sums[0][half]);
    mma_m16n8k16(sums[1][half], low, v_b, sums[1][half]);
#pragma unroll
    for (int i = 0; i < 4; ++i) o[half][i] = sums[0][half][i] + sums[1][half][i];
  }
}
// [/doc:take]

// [doc:kernel]
// aligned: every row of every operand begins on 16 bytes and holds whole 16 bytes. accumulate:
// outputs are added to o. kPairs: aligned, and not accumulate.
template <class Tiling, bool kPairs>
__global__ void __launch_bounds__(Tiling::kThreads, Tiling::kBlocks)
    chunks_kernel(Operands x, int column_tiles, bool aligned, bool accumulate) {
  auto& smem = shared_storage<SharedStorage<Tiling>>();
  const int head = blockIdx.x / column_tiles, H = static_cast<int>(x.q.H);
  const int b = head / H, h = head % H;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int column = warp * Tiling::kColumns;  // the warp's first, within the block
  const int m0 = blockIdx.x % column_tiles * Tiling::kM;
  const int L = static_cast<int>(x.q.L), rounds = (L + Tiling::kRows - 1) / Tiling::kRows;

  const auto stage = [&](int round) {
    const auto copy = [&](auto& x_smem, const TensorView<const bf16>& rows, int from) {
      stage_padded_rows<Tiling::kThreads>(x_smem, rows, b, h, round * Tiling::kRows, L, from,
                                          kPairs || aligned, threadIdx.x);
    };
    copy(smem.q[round % 2], x.q, 0);
    copy(smem.k[round % 2], x.k, 0);
    copy(smem.v[round % 2], x.v, m0);
    cp_async_commit();
  };

  typename Tiling::State S = {};
  stage(0);
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    cp_async_wait<0>();
    __syncthreads();  // everybody's copies have landed; nobody still reads the other buffer
    if (round + 1 < rounds) stage(round + 1);
#pragma unroll 1
    for (int chunk = 0; chunk < Tiling::kChunks; ++chunk) {
      const int row0 = chunk * kChunk;
      typename Tiling::Outputs o;
      take<Tiling>(S, o, smem.q[round % 2], smem.k[round % 2], smem.v[round % 2], row0, column,
                   lane);
      store_outputs<kPairs>(x.o, o, b, h, round * Tiling::kRows + row0, m0 + column, accumulate);
    }
  }
}
// [/doc:kernel]

template <class Tiling>
void launch_chunks(const Operands& x, bool accumulate, cudaStream_t stream) {
  const bool aligned = rows_are_16_bytes(x.q) && rows_are_16_bytes(x.k) && rows_are_16_bytes(x.v) &&
                       rows_are_16_bytes(x.o);
  const int column_tiles = static_cast<int>(ceil_div(x.v.D, Tiling::kM));
  const bool pairs = aligned && !accumulate;
  launch({x.q.B * x.q.H * column_tiles, Tiling::kThreads,
          dynamic_shared_bytes<SharedStorage<Tiling>>(), stream},
         pairs ? chunks_kernel<Tiling, true> : chunks_kernel<Tiling, false>, x, column_tiles,
         aligned, accumulate);
}

// [doc:tilings]
inline void run(const Operands& x, cudaStream_t stream) {
  //                                       E  columns warps chunks blocks
  if (x.q.D <= 64) return launch_chunks<Tiling<64, 16, 4, 8, 2>>(x, false, stream);
  if (x.q.D <= 128) return launch_chunks<Tiling<128, 32, 4, 4, 1>>(x, false, stream);
  // Above 256 rows the state does not fit: their parts of the outputs are added up in o.
  constexpr int kE = 256;
  for (int64_t e = 0; e < x.q.D; e += kE) {
    Operands part = x;
    part.q = columns(x.q, e, kE);
    part.k = columns(x.k, e, kE);
    launch_chunks<Tiling<kE, 16, 4, 2, 1>>(part, e > 0, stream);
  }
}
// [/doc:tilings]

}  // namespace chunks

// The causal product: o_t = sum over s <= t of (q_t . k_s) v_s. E is at most 512. Rows of k and v past
// their length count as zero; rows past the length of q are not read. Throws std::invalid_argument
// for operands that do not fit together, CudaError when a launch fails.
inline void chunks_causal_product(TensorView<const __nv_bfloat16> q,  // [B, H, L, E]
                                  TensorView<const __nv_bfloat16> k,  // [B, H, Lk, E]
                                  TensorView<const __nv_bfloat16> v,  // [B, H, Lk, M]
                                  TensorView<__nv_bfloat16> o,        // [B, H, L, M]
                                  cudaStream_t stream = 0) {
  check_causal_product(q, k, v, o);
  chunks::run({q, k, v, o}, stream);
}

}  // namespace attn::double_buffer
