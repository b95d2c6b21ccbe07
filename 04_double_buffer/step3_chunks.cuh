// Causal linear attention in chunks of 16 rows, on tensor cores.
//
// The idea: sixteen steps of the recurrence are three products of small matrices. With Q, K and V
// the chunk's rows, and S the state before them,
//
//   O = Q S + causal(Q K^T) V        causal(): entries above the diagonal become 0
//   S = S + K^T V
//
// and tensor cores multiply matrices, sixteen times as fast as the other units multiply and add.
// Step 1 makes E * M multiply-adds twice per row; here 16 rows share the instructions.
//
// The instruction: mma.sync m16n8k16, D = A B + C. A is [16, 16], B [16, 8], of bf16; C and D are
// [16, 8], of floats. One warp executes it, and the matrices lie in the warp's registers, a part in
// each lane. With g = lane / 4 and t = lane % 4 a lane holds
//
//   A   rows g and g + 8, columns 2t, 2t + 1, 2t + 8, 2t + 9       4 registers of two bf16
//   B   rows 2t, 2t + 1, 2t + 8, 2t + 9 of column g                2 registers of two bf16
//   C   rows g and g + 8, columns 2t, 2t + 1                       4 registers of a float
//
// Tiles of 8 x 8 come from shared memory to this order by ldmatrix, four at a time: each lane gives
// the address of one row of a tile (lanes 0 to 7 of the first, 8 to 15 of the second, and so on), and
// gets elements 2t and 2t + 1 of row g of each tile. With .trans it gets them of column g. So:
//
//   Q as A: as it lies.   K as B of Q K^T: as it lies.   K as B of V^T K: .trans.   V: .trans.
//
// Where do the results go? What C is to one product is A or B to the next, in the same lane: C's
// columns 2t and 2t + 1 are what A wants of its rows, so the scores, rounded to pairs of bf16, are
// A. And the state is kept transposed, S^T [value columns, E]: its C is the B of Q S.
//
// How exact: rounding the output to bf16 costs 1.7e-3. So nothing else may be rounded to bf16: the
// scores go in as the sum of two bf16. S goes in as tf32, floats of which the tensor core reads 10
// bits of mantissa and cuts off the rest (m16n8k8, half the speed). That costs 4e-4.
//
// Who computes what: a block has one head and 64 of its value columns. Each of its four warps has 16
// of these columns, and all E rows of their state, in registers. It takes chunk after chunk, and
// never waits for another warp but where a buffer changes. All four warps make the same scores: that
// is less work than to share them.
//
// What memory moves: q and k once per tile of columns, v and o once.
//
// What limits it: probably latency. A multiprocessor has two blocks, so two warps per scheduler, and
// products wait for products: those of one chunk's scores for each other, and outputs for scores.
//
// What the next step removes: nothing; it adds. Stage 05 gives each column of the state a gate.
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
#include "common/shared_storage.cuh"
#include "common/tensor_view.cuh"
#include "common/warp.cuh"

namespace attn::double_buffer {
namespace chunks {

using bf16 = __nv_bfloat16;

constexpr int kChunk = 16;  // rows: what A of mma.sync has
constexpr int kPad = 8;     // 16 bytes more per row: eight rows then begin in different banks

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
  static constexpr int kTiles = kColumns / 16;  // of S transposed, [16 value columns, 8 rows]
  static constexpr int kHalves = kColumns / 8;  // of outputs, [16 rows, 8 columns]
};
// [/doc:tiling]

template <class Tiling>
struct SharedStorage {
  // Rows as they lie in memory: those to be taken, and those on their way.
  alignas(16) bf16 q[2][Tiling::kRows][Tiling::kE + kPad];
  alignas(16) bf16 k[2][Tiling::kRows][Tiling::kE + kPad];
  alignas(16) bf16 v[2][Tiling::kRows][Tiling::kM + kPad];
};

// [doc:stage_rows]
// Starts the copy of rows [first, last) of a head, at most kRows, from `column` on, to shared memory,
// by kThreads threads. What lies outside of x arrives as zeros, which add nothing to any sum.
// aligned: every row begins on 16 bytes and holds whole 16 bytes.
template <int kThreads, int kRows, int kPitch>
__device__ __forceinline__ void stage_rows(bf16 (&x_smem)[kRows][kPitch],
                                           const TensorView<const bf16>& x, int64_t b, int64_t h,
                                           int first, int last, int column, bool aligned,
                                           int thread) {
  constexpr int kVector = kElementsPer16Bytes<bf16>, kPerRow = (kPitch - kPad) / kVector;
  constexpr int kRowStep = kThreads / kPerRow;
  static_assert(kThreads % kPerRow == 0 && kRows % kRowStep == 0);
  const int rows = static_cast<int>(x.L < last ? x.L : last) - first;
  const int columns = static_cast<int>(x.D) - column;
  const int d = thread % kPerRow * kVector;
  const bf16* source = x.row(b, h, first + thread / kPerRow) + column + d;
#pragma unroll
  for (int row = thread / kPerRow, pass = 0; pass < kRows / kRowStep; ++pass, row += kRowStep) {
    const bool inside = row < rows && d < columns;
    if (aligned) {
      cp_async<16>(&x_smem[row][d], inside ? source : x.data, inside);
    } else {  // element by element, and the thread waits for them
#pragma unroll 1
      for (int i = 0; i < kVector; ++i) {
        x_smem[row][d + i] = inside && d + i < columns ? source[i] : bf16(0.0f);
      }
    }
    source += kRowStep * x.stride_l;
  }
}
// [/doc:stage_rows]

// S^T, a warp's value columns times all rows, as C: [tile of 16 columns][tile of 8 rows][element].
template <class Tiling>
using State = float[Tiling::kTiles][Tiling::kE / 8][4];

// Outputs of a chunk as C: [tile of 8 columns][element].
template <class Tiling>
using Outputs = float[Tiling::kHalves][4];

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

// [doc:take]
// o = the outputs of a chunk; S takes its rows in. k, q and v are the chunk's rows, v from the warp's
// columns on.
template <class Tiling>
__device__ __forceinline__ void take(State<Tiling>& S, Outputs<Tiling>& o,
                                     const bf16 (*q)[Tiling::kE + kPad],
                                     const bf16 (*k)[Tiling::kE + kPad],
                                     const bf16 (*v)[Tiling::kM + kPad], int column, int lane) {
  constexpr int kTiles = Tiling::kTiles, kHalves = Tiling::kHalves;
  // Which element of four tiles, two by two, a lane gives the address of: by columns first, as A has
  // them, or by rows first.
  const int a_row = lane % 16, a_column = lane / 16 * 8;
  const int b_row = lane / 16 * 8 + lane % 8, b_column = lane / 8 % 2 * 8;

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
      // is called t does not matter, if the row of S is called so too: here they are 2t and 2t + 1,
      // which the lane has. A bf16 is the upper half of a float.
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
        mma_m16n8k16(S[tile][n + i], v_t[tile], {k_t[2 * i], k_t[2 * i + 1]}, S[tile][n + i]);
      }
    }
  }

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

// Stores a chunk's outputs, or adds them to what is there. pairs: two may be stored at once.
template <class Tiling>
__device__ __forceinline__ void store(const TensorView<bf16>& o, const Outputs<Tiling>& x,
                                      int64_t b, int64_t h, int row0, int m0, bool pairs,
                                      bool accumulate, int lane) {
  const int row = row0 + lane / 4, m = m0 + lane % 4 * 2;
  bf16* const target = o.row(b, h, row) + m;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (row + i * 8 >= o.L) break;
#pragma unroll
    for (int half = 0; half < Tiling::kHalves; ++half) {
      bf16* y = target + i * 8 * o.stride_l + half * 8;
      if (pairs) {
        if (m + half * 8 < o.D) store_pair(y, x[half][2 * i], x[half][2 * i + 1]);
        continue;
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (m + half * 8 + j >= o.D) break;
        y[j] = bf16(x[half][2 * i + j] + (accumulate ? float(y[j]) : 0));
      }
    }
  }
}

// [doc:kernel]
// accumulate: outputs are added to o.
template <class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads, Tiling::kBlocks)
    chunks_kernel(Operands x, int column_tiles, bool aligned, bool accumulate) {
  constexpr int kRows = Tiling::kRows;
  auto& smem = shared_storage<SharedStorage<Tiling>>();
  const int64_t head = blockIdx.x / column_tiles;
  const int64_t b = head / x.q.H, h = head % x.q.H;
  const int m0 = blockIdx.x % column_tiles * Tiling::kM;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int column = warp * Tiling::kColumns;  // the warp's first, within the block
  const int L = static_cast<int>(x.q.L), rounds = (L + kRows - 1) / kRows;

  auto stage = [&](int round) {
    const auto copy = [&](auto& x_smem, const TensorView<const bf16>& rows, int from) {
      stage_rows<Tiling::kThreads>(x_smem[round % 2], rows, b, h, round * kRows, L, from, aligned,
                                   threadIdx.x);
    };
    copy(smem.q, x.q, 0);
    copy(smem.k, x.k, 0);
    copy(smem.v, x.v, m0);
    cp_async_commit();
  };

  State<Tiling> S = {};
  stage(0);
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    const int buffer = round % 2;
    cp_async_wait<0>();
    __syncthreads();  // everybody's copies have landed; nobody still reads the other buffer
    if (round + 1 < rounds) stage(round + 1);
#pragma unroll 1
    for (int row = 0; row < kRows && round * kRows + row < L; row += kChunk) {
      Outputs<Tiling> o;
      take<Tiling>(S, o, smem.q[buffer] + row, smem.k[buffer] + row, smem.v[buffer] + row, column,
                   lane);
      store<Tiling>(x.o, o, b, h, round * kRows + row, m0 + column, aligned && !accumulate,
                    accumulate, lane);
    }
  }
}
// [/doc:kernel]

template <class Tiling>
void launch_chunks(const Operands& x, bool accumulate, cudaStream_t stream) {
  const bool aligned = rows_are_16_bytes(x.q) && rows_are_16_bytes(x.k) && rows_are_16_bytes(x.v) &&
                       rows_are_16_bytes(x.o);
  const int column_tiles = static_cast<int>(ceil_div(x.v.D, Tiling::kM));
  launch({x.q.B * x.q.H * column_tiles, Tiling::kThreads,
          dynamic_shared_bytes<SharedStorage<Tiling>>(), stream},
         chunks_kernel<Tiling>, x, column_tiles, aligned, accumulate);
}

// The causal product: o_t = sum over s <= t of (q_t . k_s) v_s. E is at most 512. Rows of k and v past
// their length count as zero; rows past the length of q are not read. Throws std::invalid_argument
// for operands that do not fit together, CudaError when a launch fails.
// [doc:tilings]
inline void chunks_causal_product(TensorView<const __nv_bfloat16> q,  // [B, H, L, E]
                                  TensorView<const __nv_bfloat16> k,  // [B, H, Lk, E]
                                  TensorView<const __nv_bfloat16> v,  // [B, H, Lk, M]
                                  TensorView<__nv_bfloat16> o,        // [B, H, L, M]
                                  cudaStream_t stream = 0) {
  check_causal_product(q, k, v, o);
  const Operands x = {q, k, v, o};
  //                                     E  columns warps chunks blocks
  if (q.D <= 64) return launch_chunks<Tiling<64, 16, 4, 4, 2>>(x, false, stream);
  if (q.D <= 128) return launch_chunks<Tiling<128, 16, 4, 4, 2>>(x, false, stream);
  // Above 256 rows the state does not fit: their parts of the outputs are added up in o.
  constexpr int kE = 256;
  for (int64_t e = 0; e < q.D; e += kE) {
    Operands part = x;
    part.q = columns(q, e, kE);
    part.k = columns(k, e, kE);
    launch_chunks<Tiling<kE, 16, 4, 2, 1>>(part, e > 0, stream);
  }
}
// [/doc:tilings]

}  // namespace chunks

using chunks::chunks_causal_product;

}  // namespace attn::double_buffer
