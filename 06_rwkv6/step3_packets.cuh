// RWKV-6 in one kernel, by two kinds of warps that work at the same time.
//
// The idea: stage 05's step 3, for an exclusive decay and a bonus. With S the state before the chunk,
// and d_i the sum of a column's decays before row i, from the chunk's first row on,
//
//   o_i = r_i exp(d_i) . S + sum over j < i of (r_i . exp(d_i - d_j+1) k_j) v_j + (r_i . u k_i) v_i
//   S   = diag(exp(d_16)) S + sum over j of exp(d_16 - d_j+1) k_j v_j^T
//
// What stage 05 had at one place, the sum up to row i, is at two here: row i reads what has decayed i
// times, and row j, once written, has the decays from j + 1 on before it. So there is one more matrix
// for sums. The diagonal of the scores is the bonus. All else, h = d_16 / 2 too, is as there.
//
// Who computes what, how exact it is, and how the two kinds of warps meet: as there.
//
// What memory moves: r, k and w once per tile of columns, v and o once.
//
// What limits it: the state warps, of which a scheduler has one: from product to product they wait
// for the one before. (On an H200 it takes 6% more time than stage 05.)
//
// What the next step removes, a tenth or two in all: the second product of each key, padding, slabs
// that multiply their scores one by one; and whatever costs most at each E and number of heads.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "06_rwkv6/operands.cuh"
#include "common/ceil_div.hpp"
#include "common/launch.cuh"
#include "common/mma_operands.cuh"
#include "common/pairs.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/ptx/role_barriers.cuh"
#include "common/ragged.cuh"
#include "common/shared_storage.cuh"
#include "common/tensor_view.cuh"
#include "common/warp.cuh"

namespace attn::rwkv6 {
namespace packets {

using bf16 = __nv_bfloat16;

constexpr int kChunk = 16;  // rows: what A of mma.sync has
constexpr int kSlots = 3;   // rounds of rows in shared memory: one prepared, two on their way

// The largest exponent of a factor of the scores, to base 2: factors from 2^-96 to 2^96 leave the
// products of inputs up to 2^31 inside the range of a float.
constexpr float kMildest = 96;

// Tensor cores cut a float off after 10 bits of mantissa, on average half of the last: 2^-11
// E(1 / mantissa) too low. Every output is a sum of products of two such floats.
constexpr float kUncut = 1 + 2 * 3.52e-4f;

using Operands = Rwkv6Operands<bf16>;

// [doc:tiling]
// How a block divides its head.
template <int kE_, int kColumns_, int kWarps_, int kChunks_, int kSlab_, int kBlocks_>
struct Tiling {
  static constexpr int kE = kE_;              // rows of the state, padded with zeros
  static constexpr int kColumns = kColumns_;  // of the state, of one state warp
  static constexpr int kWarps = kWarps_;      // side by side
  static constexpr int kChunks = kChunks_;    // of a round, which is what a buffer holds
  static constexpr int kSlab = kSlab_;        // columns of r, k and w of a preparing warp
  static constexpr int kBlocks = kBlocks_;    // side by side on one multiprocessor

  static constexpr int kM = kColumns * kWarps;  // value columns of the block
  static constexpr int kRows = kChunks * kChunk;
  static constexpr int kSlabs = kE / kSlab;
  static constexpr int kPreparing = kChunks * kSlabs * kWarp;  // threads
  static constexpr int kThreads = kWarps * kWarp + kPreparing;

  // Rows in shared memory.
  using Rows = bf16[kRows][kE + kPad];
  using ValueRows = bf16[kRows][kM + kPad];
  // S^T, a warp's value columns times all rows, as C: [tile of 16 columns][tile of 8 rows][element].
  using State = float[kColumns / 16][kE / 8][4];
  // Outputs of a chunk as C: [tile of 8 columns][element].
  using Outputs = float[kColumns / 8][4];
};
// [/doc:tiling]

// [doc:packet]
// A chunk, prepared.
template <class Tiling>
struct Packet {
  uint4 r[Tiling::kE / 8][kWarp];  // r_i exp(d_i), scaled, as A of m16n8k8
  // k_j exp(d_16 - d_j+1), two columns to a word, as the sum of two bf16.
  alignas(16) uint32_t k_high[kChunk][(Tiling::kE + kPad) / 2];
  alignas(16) uint32_t k_low[kChunk][(Tiling::kE + kPad) / 2];
  uint4 scores[Tiling::kSlabs][2][kWarp];  // scaled, as A of m16n8k16, the sum of two bf16
  float2 decay[Tiling::kE / 8][4];         // exp(d_16), of rows 2t and 2t + 1 of eight
};
// [/doc:packet]

template <class Tiling>
struct SharedStorage {
  // Rows as they lie in memory. Of v one round more: it is used when the round's packets are.
  alignas(16) typename Tiling::Rows r[kSlots], k[kSlots], w[kSlots];
  alignas(16) typename Tiling::ValueRows v[kSlots + 1];
  float u[Tiling::kE];
  Packet<Tiling> packets[2][Tiling::kChunks];  // those that are taken, those that are made
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
// 2t + 1 of row g of each tile; with .trans of column g. So rows of r are A as they lie, rows of k
// are C as they lie, and B of V^T K with .trans; rows of v are A of that with .trans.
// [/doc:who_holds_what]

// [doc:split_causal]
// The scores of keys before each row, and on the diagonal its bonus, from C to A, as the sum of two
// bf16.
__device__ __forceinline__ void split_causal(uint32_t (&high)[4], uint32_t (&low)[4],
                                             const float (&scores)[2][4], const float (&bonus)[2],
                                             float scale, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i % 2 * 8, key = lane % 4 * 2 + i / 2 * 8;
    const float* s = &scores[i / 2][i % 2 * 2];
    const float s0 = key < row ? s[0] * scale : key == row ? bonus[i % 2] : 0;
    const float s1 = key + 1 < row ? s[1] * scale : key + 1 == row ? bonus[i % 2] : 0;
    high[i] = pack_high(s0, s1);
    low[i] = pack_low(s0, s1, high[i]);
  }
}
// [/doc:split_causal]

// [doc:scale_strong]
// Scales 8 columns of r and k, as C, by any decays, and adds up their scores, row by row: a row's
// are its r times the keys before it, which have decayed along. `column` is the lane's first.
template <class Rows>
__device__ __forceinline__ void scale_strong(float (&r)[4], float (&k)[4], float (&decay)[2],
                                             float (&scores)[2][4], const Rows& w, int row0,
                                             int column, int lane) {
  const float k_own[4] = {k[0], k[1], k[2], k[3]};
#pragma unroll
  for (int i = 0; i < 4; ++i) k[i] = 0, decay[i % 2] = 1;
#pragma unroll
  for (int row = 0; row < kChunk; ++row) {
    const float2 decays = to_floats(load_pair(&w[row0 + row][column]));
    const float own[2] = {exp2_approx(decays.x * kLog2e), exp2_approx(decays.y * kLog2e)};
    float r_row[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (lane / 4 + i / 2 * 8 != row) continue;
      r_row[i] = r[i];
      r[i] *= decay[i % 2];
    }
    add_products_of_rows(scores, r_row, k);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < 2) decay[i] *= own[i];
      k[i] *= own[i % 2];
      if (lane / 4 + i / 2 * 8 == row) k[i] = k_own[i];
    }
  }
}
// [/doc:scale_strong]

// [doc:prepare]
// Makes a slab of the packet of the chunk that begins at row0 of the buffers.
template <class Tiling>
__device__ __forceinline__ void prepare(Packet<Tiling>& packet, const typename Tiling::Rows& r_rows,
                                        const typename Tiling::Rows& k_rows,
                                        const typename Tiling::Rows& w_rows,
                                        const float (&u)[Tiling::kE], int row0, int slab,
                                        float scale, int lane) {
  const int a_row = row0 + lane % 16, a_column = lane / 16 * 8;
  const int row = lane / 4, pair = lane % 4 * 2;
  // [doc:sum_matrices]
  // Decays are summed up by products with matrices: of 1/2 before the row and -1/2 from it on, for
  // d_i - h; of 1/2 up to the row and -1/2 after it, for d_i+1 - h; and of 1/2, for h.
  constexpr uint32_t kHalf = 0x3f003f00u;  // two bf16
  uint32_t reads[4], writes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int after = pair + i / 2 * 8 - (row + i % 2 * 8);
    reads[i] = kHalf | (after >= 0 ? 0x8000u : 0) | (after + 1 >= 0 ? 0x80000000u : 0);
    writes[i] = kHalf | (after > 0 ? 0x8000u : 0) | (after + 1 > 0 ? 0x80000000u : 0);
  }
  // [/doc:sum_matrices]
  const int n0 = slab * (Tiling::kSlab / 8);
  float scores[2][4] = {}, bonus[2] = {};
#pragma unroll 1
  for (int n = n0; n < n0 + Tiling::kSlab / 8; n += 2) {  // 16 columns
    uint32_t r_a[4], k_a[4], w_b[4];
    ldmatrix(r_a, &r_rows[a_row][n * 8 + a_column]);
    ldmatrix(k_a, &k_rows[a_row][n * 8 + a_column]);
    ldmatrix_trans(w_b, &w_rows[a_row][n * 8 + a_column]);
    // [doc:sums]
    float read[2][4], write[2][4], h[2][4];
    bool mild = true;  // a NaN, from an infinite decay, is not
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float zero[4] = {};
      mma_m16n8k16(read[i], reads, {w_b[2 * i], w_b[2 * i + 1]}, zero);
      mma_m16n8k16(write[i], writes, {w_b[2 * i], w_b[2 * i + 1]}, zero);
      mma_m16n8k16(h[i], {kHalf, kHalf, kHalf, kHalf}, {w_b[2 * i], w_b[2 * i + 1]}, zero);
      mild = mild && h[i][0] >= -kMildest / kLog2e && h[i][1] >= -kMildest / kLog2e;
    }
    // [/doc:sums]
    mild = __all_sync(kFullWarp, mild);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 r0 = to_floats(r_a[2 * i]), r1 = to_floats(r_a[2 * i + 1]);
      const float2 k0 = to_floats(k_a[2 * i]), k1 = to_floats(k_a[2 * i + 1]);
      float r[4] = {r0.x, r0.y, r1.x, r1.y}, k[4] = {k0.x, k0.y, k1.x, k1.y}, decay[2];
      // [doc:own_bonus]
#pragma unroll
      for (int j = 0; j < 4; ++j) bonus[j / 2] += r[j] * u[(n + i) * 8 + pair + j % 2] * k[j];
      // [/doc:own_bonus]
      if (mild) {
        // [doc:halfway]
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          r[j] *= exp2_approx(read[i][j] * kLog2e);
          k[j] *= exp2_approx(-write[i][j] * kLog2e);
        }
        add_products_of_rows(scores, r, k);
        // [/doc:halfway]
#pragma unroll
        for (int j = 0; j < 4; ++j) {  // from the beginning to halfway, and from there to the end
          const float half = exp2_approx(h[i][j % 2] * kLog2e);
          r[j] *= half;
          k[j] *= half;
          decay[j % 2] = half * half;
        }
      } else {
        scale_strong(r, k, decay, scores, w_rows, row0, (n + i) * 8 + pair, lane);
      }
      packet.r[n + i][lane] = {__float_as_uint(r[0] * scale), __float_as_uint(r[2] * scale),
                               __float_as_uint(r[1] * scale), __float_as_uint(r[3] * scale)};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int word = (n + i) * 4 + lane % 4;
        const uint32_t high = pack_high(k[2 * half], k[2 * half + 1]);
        packet.k_high[row + half * 8][word] = high;
        packet.k_low[row + half * 8][word] = pack_low(k[2 * half], k[2 * half + 1], high);
      }
      if (lane < 4) packet.decay[n + i][lane] = {decay[0], decay[1]};
    }
  }
  // [doc:join_bonus]
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // summed up over the columns, which four lanes share
    bonus[i] += __shfl_xor_sync(kFullWarp, bonus[i], 1);
    bonus[i] += __shfl_xor_sync(kFullWarp, bonus[i], 2);
    bonus[i] *= scale / kUncut;  // no tensor core has cut it off
  }
  // [/doc:join_bonus]
  uint32_t high[4], low[4];
  split_causal(high, low, scores, bonus, scale, lane);
  packet.scores[slab][0][lane] = {high[0], high[1], high[2], high[3]};
  packet.scores[slab][1][lane] = {low[0], low[1], low[2], low[3]};
}
// [/doc:prepare]

// [doc:take]
// o = the outputs of a chunk, which begins at row0 of v; S decays, and takes its rows in. `column` is
// the warp's first.
template <class Tiling>
__device__ __forceinline__ void take(typename Tiling::State& S, typename Tiling::Outputs& o,
                                     const Packet<Tiling>& packet,
                                     const typename Tiling::ValueRows& v, int row0, int column,
                                     int lane) {
  constexpr int kTiles = Tiling::kColumns / 16, kHalves = Tiling::kColumns / 8;
  // Which element of four tiles, two by two, a lane gives the address of: row by row, as A wants
  // them, or column by column.
  const int a_row = lane % 16, a_column = lane / 16 * 8;
  const int b_row = row0 + lane / 16 * 8 + lane % 8, b_column = lane / 8 % 2 * 8;

  // V^T as A, [16 value columns, 16 rows]. Registers 0 and 2 are also V as B, of the first 8 columns,
  // and 1 and 3 of the others.
  uint32_t v_t[kTiles][4];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    ldmatrix_trans(v_t[tile], &v[b_row][column + tile * 16 + b_column]);
  }

  // the scores, times V.
#pragma unroll
  for (int i = 0; i < kHalves * 4; ++i) o[i / 4][i % 4] = 0;
#pragma unroll
  for (int slab = 0; slab < Tiling::kSlabs; ++slab) {
    const uint4 high = packet.scores[slab][0][lane], low = packet.scores[slab][1][lane];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const uint32_t v_b[2] = {v_t[half / 2][half % 2], v_t[half / 2][half % 2 + 2]};
      mma_m16n8k16(o[half], {high.x, high.y, high.z, high.w}, v_b, o[half]);
      mma_m16n8k16(o[half], {low.x, low.y, low.z, low.w}, v_b, o[half]);
    }
  }

#pragma unroll
  for (int n = 0; n < Tiling::kE / 8; n += 2) {  // 16 columns of r and k, 16 rows of S
    uint32_t k_high[4], k_low[4];
    ldmatrix_trans(k_high, &packet.k_high[a_row][(n * 8 + a_column) / 2]);
    ldmatrix_trans(k_low, &packet.k_low[a_row][(n * 8 + a_column) / 2]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // R S. A of m16n8k8 has columns t and t + 4 in a lane, B rows t and t + 4. Which column of r
      // is called t does not matter, if the row of S is called so too: here it is 2t and 2t + 1,
      // which a lane has of S. So is r in the packet.
      const uint4 r = packet.r[n + i][lane];
      const uint32_t r_tf32[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const float* s = &S[half / 2][n + i][half % 2 * 2];
        mma_m16n8k8_tf32(o[half], r_tf32, {__float_as_uint(s[0]), __float_as_uint(s[1])}, o[half]);
      }
      // S^T = S^T diag(decay) + V^T K, after R S has read these rows.
      const float2 decay = packet.decay[n + i][lane % 4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float(&s)[4] = S[tile][n + i];
        s[0] *= decay.x;
        s[1] *= decay.y;
        s[2] *= decay.x;
        s[3] *= decay.y;
        mma_m16n8k16(s, v_t[tile], {k_high[2 * i], k_high[2 * i + 1]}, s);
        mma_m16n8k16(s, v_t[tile], {k_low[2 * i], k_low[2 * i + 1]}, s);
      }
    }
  }
}
// [/doc:take]

// [doc:kernel]
// aligned: every row of every operand begins on 16 bytes and holds whole 16 bytes. accumulate:
// outputs are added to o. kPairs: aligned, and not accumulate.
template <class Tiling, bool kPairs>
__global__ void __launch_bounds__(Tiling::kThreads, Tiling::kBlocks)
    rwkv6_kernel(Operands x, int column_tiles, bool aligned, bool accumulate) {
  auto& smem = shared_storage<SharedStorage<Tiling>>();
  const int head = blockIdx.x / column_tiles, H = static_cast<int>(x.r.H);
  const int b = head / H, h = head % H;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int column = warp * Tiling::kColumns;  // the warp's first, within the block
  const int m0 = blockIdx.x % column_tiles * Tiling::kM;
  const int L = static_cast<int>(x.r.L), rounds = (L + Tiling::kRows - 1) / Tiling::kRows;

  // For the preparing warps, which use it after the first barrier.
  for (int e = threadIdx.x; e < Tiling::kE; e += Tiling::kThreads) {
    smem.u[e] = e < x.u.D ? float(x.u.row(0, h, 0)[e]) : 0;
  }

  if (warp < Tiling::kWarps) {
    typename Tiling::State S = {};
    meet_all(Tiling::kThreads);  // nothing to take yet: the first packets are being made
    visit_state(S, x.initial_state, b, h, m0 + column, [](float& S, float x) { S = x; });
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
      meet_all(Tiling::kThreads);  // the packets of this round are whole
#pragma unroll
      for (int chunk = 0; chunk < Tiling::kChunks; ++chunk) {
        const int row0 = chunk * kChunk;
        typename Tiling::Outputs o;
        take<Tiling>(S, o, smem.packets[round % 2][chunk], smem.v[round % (kSlots + 1)], row0,
                     column, lane);
        store_outputs<kPairs>(x.o, o, b, h, round * Tiling::kRows + row0, m0 + column, accumulate);
      }
    }
    visit_state(S, x.final_state, b, h, m0 + column, [](float S, float& x) { x = S; });
    return;
  }

  const int thread = threadIdx.x - Tiling::kWarps * kWarp;
  const int chunk = thread / kWarp / Tiling::kSlabs, slab = thread / kWarp % Tiling::kSlabs;
  const auto stage = [&](int round) {
    const auto copy = [&](auto& x_smem, const TensorView<const bf16>& rows, int from) {
      stage_padded_rows<Tiling::kPreparing>(x_smem, rows, b, h, round * Tiling::kRows, L, from,
                                            kPairs || aligned, thread);
    };
    if (round < rounds) {
      copy(smem.r[round % kSlots], x.r, 0);
      copy(smem.k[round % kSlots], x.k, 0);
      copy(smem.w[round % kSlots], x.w, 0);
      copy(smem.v[round % (kSlots + 1)], x.v, m0);
    }
    cp_async_commit();
  };
  for (int round = 0; round < kSlots - 1; ++round) stage(round);
#pragma unroll 1
  for (int round = 0; round <= rounds; ++round) {
    cp_async_wait<kSlots - 2>();
    // Everybody's copies of this round have landed. The packets of the round before are whole before
    // they are taken; those of the round before that are taken, and their rows of v used, before they
    // are overwritten.
    meet_all(Tiling::kThreads);
    stage(round + kSlots - 1);
    if (round == rounds) break;
    prepare<Tiling>(smem.packets[round % 2][chunk], smem.r[round % kSlots], smem.k[round % kSlots],
                    smem.w[round % kSlots], smem.u, chunk * kChunk, slab, x.scale * kUncut, lane);
  }
}
// [/doc:kernel]

template <class Tiling>
void launch_rwkv6(const Operands& x, bool accumulate, cudaStream_t stream) {
  const bool aligned = rows_are_16_bytes(x.r) && rows_are_16_bytes(x.k) && rows_are_16_bytes(x.v) &&
                       rows_are_16_bytes(x.w) && rows_are_16_bytes(x.o);
  const int column_tiles = static_cast<int>(ceil_div(x.v.D, Tiling::kM));
  const bool pairs = aligned && !accumulate;
  launch({x.r.B * x.r.H * column_tiles, Tiling::kThreads,
          dynamic_shared_bytes<SharedStorage<Tiling>>(), stream},
         pairs ? rwkv6_kernel<Tiling, true> : rwkv6_kernel<Tiling, false>, x, column_tiles, aligned,
         accumulate);
}

inline void run(const Operands& x, cudaStream_t stream) {
  //                                    E  columns warps chunks slab blocks
  if (x.r.D <= 64) return launch_rwkv6<Tiling<64, 32, 2, 2, 32, 2>>(x, false, stream);
  if (x.r.D <= 128) return launch_rwkv6<Tiling<128, 32, 4, 2, 64, 1>>(x, false, stream);
  // Above 256 rows the state does not fit: their parts of the outputs are added up in o.
  constexpr int kE = 256;
  for (int64_t e = 0; e < x.r.D; e += kE) {
    Operands part = x;
    part.r = columns(x.r, e, kE);
    part.k = columns(x.k, e, kE);
    part.w = columns(x.w, e, kE);
    part.u = columns(x.u, e, kE);
    part.initial_state = state_rows(x.initial_state, e, kE);
    part.final_state = state_rows(x.final_state, e, kE);
    launch_rwkv6<Tiling<kE, 16, 4, 1, 64, 1>>(part, e > 0, stream);
  }
}

}  // namespace packets

// RWKV-6 of bf16. Throws std::invalid_argument for operands that do not fit together, CudaError when a
// launch fails.
inline void packets_rwkv6(const Rwkv6Operands<__nv_bfloat16>& operands, cudaStream_t stream = 0) {
  packets::run(in_walking_order(operands), stream);
}

}  // namespace attn::rwkv6
