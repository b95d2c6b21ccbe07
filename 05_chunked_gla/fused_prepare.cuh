// The preparing warps of the fused kernel: they fetch rows, and turn those of q, k and g into
// packets.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "05_chunked_gla/fused_block.cuh"
#include "05_chunked_gla/fused_load.cuh"
#include "common/fp16_range.cuh"
#include "common/loading_warp.cuh"
#include "common/mma_operands.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/max_bf16.cuh"
#include "common/ptx/mma.cuh"
#include "common/warp.cuh"

namespace attn::chunked_gla {

// The largest exponent of a factor of the scores, to base 2: factors from 2^-64 to 2^64 keep the
// products of sensible inputs inside the range of a float.
constexpr float kMildest = 64;

// [doc:uncut]
// Tensor cores cut a float off after 10 bits of mantissa, half a unit of them too low on average:
// 2^-11 E(1 / mantissa). Every output is a sum of products of two such floats.
constexpr float kUncut = 1 + 2 * 3.52e-4f;
// [/doc:uncut]

// [doc:centred_gates]
// Sums of the 16 gates of each column of a slab, as products of fixed matrices and the gates: of
// rows `row` and row + 8 of two such matrices,
//   x = c_i - h, which takes half of each gate after the first, - from row i on;
//   edges = h, in rows 0 to 7, and h + g_0, in rows 8 to 15.
template <int kTiles>
struct GateSums {
  float x[kTiles][4], edges[kTiles][4];
};
__device__ __forceinline__ float centred_weight(int i, int j) {
  return j == 0 ? 0.0f : j <= i ? 0.5f : -0.5f;
}
__device__ __forceinline__ float edge_weight(int i, int j) {
  return j > 0 ? 0.5f : i < 8 ? 0.0f : 1.0f;
}

template <int kTiles, int kWidth>
__device__ __forceinline__ GateSums<kTiles> sum_gates(
    const SwizzledRows<const __nv_bfloat16, kWidth>& g_rows) {
  const int lane = threadIdx.x % kWarp;
  const int row = lane / 4, pair = lane % 4 * 2;
  uint32_t centred[4], edge[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = row + i % 2 * 8, j = pair + i / 2 * 8;
    centred[i] = pack_high(centred_weight(r, j), centred_weight(r, j + 1));
    edge[i] = pack_high(edge_weight(r, j), edge_weight(r, j + 1));
  }
  GateSums<kTiles> sums;
#pragma unroll
  for (int n = 0; n < kTiles; n += 2) {
    uint32_t g[4];
    ldmatrix_trans(g, g_rows.at(lane % 16, lane / 16 * 8 + n * 8));
    const float zero[4] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      mma_m16n8k16(sums.x[n + i], centred, {g[2 * i], g[2 * i + 1]}, zero);
      mma_m16n8k16(sums.edges[n + i], edge, {g[2 * i], g[2 * i + 1]}, zero);
    }
  }
  return sums;
}
// [/doc:centred_gates]

// The same of float gates: here each gate is the sum of two tf32.
template <int kTiles, int kWidth>
__device__ __forceinline__ GateSums<kTiles> sum_gates(
    const SwizzledRows<const float, kWidth>& g_rows) {
  const int lane = threadIdx.x % kWarp;
  const int group = lane / 4, column = lane % 4;
  GateSums<kTiles> sums = {};
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const int j = step * 8 + column;
    uint32_t centred[4], edge[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      centred[i] = __float_as_uint(centred_weight(group + i % 2 * 8, j + i / 2 * 4));
      edge[i] = __float_as_uint(edge_weight(group + i % 2 * 8, j + i / 2 * 4));
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      uint32_t high[2], low[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float g = *g_rows.at(j + i * 4, n * 8 + group);
        high[i] = __float_as_uint(g) & 0xffffe000u;  // what tf32 keeps of a float
        low[i] = __float_as_uint(g - __uint_as_float(high[i]));
      }
      mma_m16n8k8_tf32(sums.x[n], centred, high, sums.x[n]);
      mma_m16n8k8_tf32(sums.x[n], centred, low, sums.x[n]);
      mma_m16n8k8_tf32(sums.edges[n], edge, high, sums.edges[n]);
      mma_m16n8k8_tf32(sums.edges[n], edge, low, sums.edges[n]);
    }
  }
  return sums;
}

// One preparing warp: it owns a slab of columns of one sub-chunk of every round.
template <class Tiling>
class PreparingWarp {
  using T = typename Tiling::T;
  static constexpr int kTiles = Tiling::kSlab / 8;
  using Sizes = Fp16Range<SumOfSquares, kTiles, Tiling::kSlabs, Tiling::kM>;

 public:
  __device__ __forceinline__ explicit PreparingWarp(const Block<Tiling>& block)
      : block_(block),
        lane_(threadIdx.x % kWarp),
        sub_((threadIdx.x / kWarp - Tiling::kStateWarps) / Tiling::kSlabs),
        slab_((threadIdx.x / kWarp - Tiling::kStateWarps) % Tiling::kSlabs),
        column_(slab_ * Tiling::kSlab),
        scale_(block.x.scale * kUncut),
        rows_(block, threadIdx.x - Tiling::kStateWarps * kWarp) {}

  // [doc:preparing_rounds]
  // In round r the packets of round r + 1 are prepared.
  __device__ __forceinline__ void run() {
    rows_.begin();
#pragma unroll 1
    for (int round = -1; round < block_.rounds; ++round) {
      rows_.wait();
      // The rows of round + 1 have arrived, of all threads that fetch. The packets of `round` are
      // whole before they are taken; and those of round - 1 taken, and their rows of v used, before
      // they are overwritten.
      block_.meet();
      rows_.load(round + Tiling::kSlots);
      if (round + 1 < block_.rounds) prepare(round + 1);
    }
  }
  // [/doc:preparing_rounds]

 private:
  __device__ __forceinline__ Packet<Tiling>& packet(int round) const {
    return block_.smem.packets[round % 2][sub_];
  }
  // The slab's rows of q, k or g.
  __device__ __forceinline__ typename Tiling::Rows slab(int tensor, int round) const {
    return {block_.smem.qkg[tensor][round % Tiling::kSlots][sub_ * kSubChunk], column_};
  }
  // The sub-chunk's rows of v.
  __device__ __forceinline__ const T* values(int round) const {
    return block_.smem.v[round % (Tiling::kSlots + 1)][sub_ * kSubChunk];
  }

  // [doc:prepare]
  // Prepares the slab of a packet; its k as fp16, and then once more if that does not suit all lanes.
  // Only when all is done, so that nothing waits for the vote.
  __device__ __forceinline__ void prepare(int round) {
    Sizes sizes;
    if (!prepare_mild(round, sizes)) prepare_strong(round, sizes);
    if constexpr (Tiling::kFp16) {
      const bool in_fp16 = __all_sync(kFullWarp, sizes.suits());
      if (!in_fp16) split_keys(round);
      if (lane_ == 0) packet(round).in_fp16[slab_] = in_fp16;
    }
  }
  // [/doc:prepare]

  // [doc:prepare_mild]
  // Returns whether the gates are mild enough for that.
  __device__ __forceinline__ bool prepare_mild(int round, Sizes& sizes) {
    Packet<Tiling>& packet = this->packet(round);
    const int row = lane_ / 4;

    // Read before anything is stored: the compiler could not know that the stores leave it alone.
    Pair<T> q_pairs[kTiles][2], k_pairs[kTiles][2];
    load_rows(q_pairs, slab(kQ, round));
    load_rows(k_pairs, slab(kK, round));
    const GateSums<kTiles> sums = sum_gates<kTiles>(slab(kG, round));
    // The first row has the largest x, -h. A NaN, from an infinite gate, is no mild one either.
    bool mild = true;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) mild = mild && sums.x[n][i] <= kMildest / kLog2e;
    }
    if (!__all_sync(kFullWarp, mild)) return false;

    float scores[2][4] = {};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      // Here and there, among instructions that wait for each other.
      if constexpr (Tiling::kFp16) sizes.look_at(k_pairs[n], values(round), n, slab_);
      float grow[4], decay[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = sums.x[n][i] * kLog2e;
        decay[i] = exp2_approx(x);
        grow[i] = exp2_approx(-x);
      }
      float to_last[2], from_first[2];  // from halfway on, and up to halfway
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        to_last[i] = exp2_approx(sums.edges[n][i] * kLog2e);
        from_first[i] = exp2_approx(sums.edges[n][2 + i] * kLog2e);
      }
      if (row == 0) {
        store_decay(packet, n, from_first[0] * to_last[0], from_first[1] * to_last[1]);
      }
      const float2 k0 = to_floats(k_pairs[n][0]), k1 = to_floats(k_pairs[n][1]);
      float k[4] = {k0.x * grow[0], k0.y * grow[1], k1.x * grow[2], k1.y * grow[3]};
      const float2 q0 = to_floats(q_pairs[n][0]), q1 = to_floats(q_pairs[n][1]);
      float q[4] = {q0.x * decay[0], q0.y * decay[1], q1.x * decay[2], q1.y * decay[3]};
      add_scores(scores, q, k);
#pragma unroll
      for (int i = 0; i < 4; ++i) q[i] *= from_first[i % 2] * scale_;
      store_q(packet, n, q);
#pragma unroll
      for (int i = 0; i < 4; ++i) k[i] *= to_last[i % 2];
      store_k<Tiling::kFp16>(packet, n, k);
    }
    store_scores(packet, scores);
    return true;
  }
  // [/doc:prepare_mild]

  // [doc:split_keys]
  // Stores k once more, as the sum of two bf16. Of any gates: the sums are of those after a row, not
  // a difference of two. (A gate of -inf, times 0, would be NaN; the lowest bf16 does as well.)
  __device__ __forceinline__ void split_keys(int round) const {
    const auto k_rows = slab(kK, round), g_rows = slab(kG, round);
    const int row = lane_ / 4, pair = lane_ % 4 * 2;
    uint32_t later[4];  // 1 where a column is after a row
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row + i % 2 * 8, j = pair + i / 2 * 8;
      later[i] = pack_high(j > r, j + 1 > r);
    }
#pragma unroll 1
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t g[4];
      ldmatrix_trans(g, g_rows.at(lane_ % 16, lane_ / 16 * 8 + n * 8));
#pragma unroll
      for (int i = 0; i < 4; ++i) g[i] = max_bf16x2(g[i], 0xff7fff7fu);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float zero[4] = {};
        float sums[4], k[4];
        mma_m16n8k16(sums, later, {g[2 * i], g[2 * i + 1]}, zero);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const auto* k_pair = k_rows.at(row + half * 8, (n + i) * 8 + pair);
          const float2 own = to_floats(load_pair(k_pair));
          k[2 * half] = own.x * exp2_approx(sums[2 * half] * kLog2e);
          k[2 * half + 1] = own.y * exp2_approx(sums[2 * half + 1] * kLog2e);
        }
        store_k<false>(packet(round), n + i, k);
      }
    }
  }
  // [/doc:split_keys]

  // [doc:prepare_strong]
  // The same for any gates, row by row: no factor is over 1. The scores of a row are its q times the
  // keys up to its own, which have decayed along.
  __device__ __forceinline__ void prepare_strong(int round, Sizes& sizes) {
    Packet<Tiling>& packet = this->packet(round);
    const auto q_rows = slab(kQ, round), k_rows = slab(kK, round), g_rows = slab(kG, round);
    const int row = lane_ / 4, pair = lane_ % 4 * 2;
    float scores[2][2][4] = {};  // of even and of odd rows, which need not wait for each other
#pragma unroll 1
    for (int n = 0; n < kTiles; ++n) {
      const int column = n * 8 + pair;
      float q[4] = {}, k_own[4], k[4] = {}, decay[2] = {1, 1};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 k_pair = to_floats(load_pair(k_rows.at(row + half * 8, column)));
        k_own[2 * half] = k_pair.x;
        k_own[2 * half + 1] = k_pair.y;
        const float2 q_pair = to_floats(load_pair(q_rows.at(row + half * 8, column)));
        q[2 * half] = q_pair.x;
        q[2 * half + 1] = q_pair.y;
      }
#pragma unroll
      for (int i = 0; i < kSubChunk; ++i) {
        const float2 gates = to_floats(load_pair(g_rows.at(i, column)));
        const float g[2] = {gates.x * kLog2e, gates.y * kLog2e};
        const int own = i / 8 * 2;  // where a lane that has this row keeps it
        const bool mine = row == i % 8;
        float q_row[4] = {};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float gate = exp2_approx(g[j]);
          decay[j] *= gate;
          k[j] *= gate;
          k[2 + j] *= gate;
          if (mine) {
            k[own + j] = k_own[own + j];
            q_row[own + j] = q[own + j];
            q[own + j] *= decay[j] * scale_;
          }
        }
        add_scores(scores[i % 2], q_row, k);
      }
      if (row == 0) store_decay(packet, n, decay[0], decay[1]);
      store_q(packet, n, q);
      store_k<Tiling::kFp16>(packet, n, k);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[0][half][i] += scores[1][half][i];
    }
    if constexpr (Tiling::kFp16) {
      uint32_t k_pairs[kTiles][2];
      load_rows(k_pairs, k_rows);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) sizes.look_at(k_pairs[n], values(round), n, slab_);
    }
    store_scores(packet, scores[0]);
  }
  // [/doc:prepare_strong]

  // scores += q k^T, of eight columns: accumulators of one product as operands of the next.
  __device__ __forceinline__ void add_scores(float (&scores)[2][4], const float (&q)[4],
                                             const float (&k)[4]) const {
    const uint32_t q_bits[4] = {__float_as_uint(q[0]), __float_as_uint(q[2]), __float_as_uint(q[1]),
                                __float_as_uint(q[3])};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      mma_m16n8k8_tf32(scores[half], q_bits,
                       {__float_as_uint(k[2 * half]), __float_as_uint(k[2 * half + 1])},
                       scores[half]);
    }
  }

  // By the lanes of row 0.
  __device__ __forceinline__ void store_decay(Packet<Tiling>& packet, int n, float x0,
                                              float x1) const {
    float* decays = reinterpret_cast<float*>(packet.decay[lane_]);
    store_pair(decays + column_ / 4 + n * 2, x0, x1);
  }

  __device__ __forceinline__ void store_q(Packet<Tiling>& packet, int n,
                                          const float (&q)[4]) const {
    packet.q[column_ / 8 + n][lane_] = {__float_as_uint(q[0]), __float_as_uint(q[2]),
                                        __float_as_uint(q[1]), __float_as_uint(q[3])};
  }

  template <bool kInFp16>
  __device__ __forceinline__ void store_k(Packet<Tiling>& packet, int n,
                                          const float (&k)[4]) const {
    const int row = lane_ / 4, word = (column_ + n * 8) / 2 + lane_ % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float k0 = k[2 * half], k1 = k[2 * half + 1];
      const uint32_t high = kInFp16 ? pack_halves(k0, k1) : pack_high(k0, k1);
      packet.k_high[row + half * 8][word] = high;
      if (!kInFp16) packet.k_low[row + half * 8][word] = pack_low(k0, k1, high);
    }
  }

  // [doc:store_scores]
  // The first slab's warp sums up the scores of all slabs, and stores the causal half as two bf16.
  __device__ __forceinline__ void store_scores(Packet<Tiling>& packet,
                                               float (&scores)[2][4]) const {
    if (!sum_over_slabs<Tiling::kSlabs>(packet.scores, scores, slab_, sub_)) return;
    const int row = lane_ / 4, key = lane_ % 4 * 2;
    uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float* s = &scores[i / 2][i % 2 * 2];
      const int last_key = row + i % 2 * 8 - i / 2 * 8;
      s[0] = key > last_key ? 0 : s[0] * scale_;
      s[1] = key + 1 > last_key ? 0 : s[1] * scale_;
      high[i] = pack_high(s[0], s[1]);
      low[i] = pack_low(s[0], s[1], high[i]);
    }
    packet.scores[0][lane_] = {high[0], high[1], high[2], high[3]};
    packet.scores[1][lane_] = {low[0], low[1], low[2], low[3]};
  }
  // [/doc:store_scores]

  const Block<Tiling>& block_;
  const int lane_, sub_, slab_, column_;
  const float scale_;  // of q and of the scores, and so of the outputs
  std::conditional_t<Tiling::kLoadWarps == 0, RowLoader<Tiling>, NoRows> rows_;
};

}  // namespace attn::chunked_gla
