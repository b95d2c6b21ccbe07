// The preparing warps of the chunked kernel: they fetch rows, and turn those of r, k and w into
// packets.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "06_rwkv6/chunked_block.cuh"
#include "06_rwkv6/chunked_load.cuh"
#include "common/fp16_range.cuh"
#include "common/loading_warp.cuh"
#include "common/mma_operands.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/warp.cuh"

namespace attn::rwkv6 {

// The largest exponent of a factor of the scores, to base 2. Factors from 2^-96 to 2^96 leave the
// products of inputs up to 2^31 inside the range of a float, and of r and k all that is above 2^-30.
// It is exp(-133) in all, which 16 steps of -exp(N(0, 1)) reach in one column of 40000.
constexpr float kMildest = 96;

// [doc:centred_decays]
// Sums of a sub-chunk's 16 decays of each column, as accumulator fragments: the products of three
// matrices of +-1/2 with the decays. h is half of all of them; `read` is the sum of those before row
// i, minus h; `write` is up to and including row i's own, minus h.
template <int kTiles>
struct DecaySums {
  float read[kTiles][4], write[kTiles][4], h[kTiles][4];
};

template <int kTiles, int kWidth>
__device__ __forceinline__ DecaySums<kTiles> sum_decays(
    const SwizzledRows<const __nv_bfloat16, kWidth>& w_rows) {
  constexpr uint32_t kHalf = 0x3f003f00u, kSigns = 0x80008000u;  // a pair of bf16: 1/2; minus it
  const int lane = threadIdx.x % kWarp;
  const int row = lane / 4, pair = lane % 4 * 2;
  // Of the 8 x 8 quarters of a matrix two lie on the diagonal, and are the same.
  const uint32_t reads = kHalf | (pair >= row ? 0x8000u : 0) | (pair + 1 >= row ? 0x80000000u : 0);
  const uint32_t writes = kHalf | (pair > row ? 0x8000u : 0) | (pair + 1 > row ? 0x80000000u : 0);
  const float zero[4] = {};
  DecaySums<kTiles> sums;
#pragma unroll
  for (int n = 0; n < kTiles; n += 2) {
    uint32_t w[4];
    ldmatrix_trans(w, w_rows.at(lane % 16, n * 8 + lane / 16 * 8));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t w_n[2] = {w[2 * i], w[2 * i + 1]};
      mma_m16n8k16(sums.h[n + i], {kHalf, kHalf, kHalf, kHalf}, w_n, zero);
      mma_m16n8k16(sums.read[n + i], {reads, kHalf, kHalf | kSigns, reads}, w_n, zero);
      mma_m16n8k16(sums.write[n + i], {writes, kHalf, kHalf | kSigns, writes}, w_n, zero);
    }
  }
  return sums;
}
// [/doc:centred_decays]

// The same of float decays: here each is the sum of two tf32, and its own decay is taken from a row
// by subtraction.
template <int kTiles, int kWidth>
__device__ __forceinline__ DecaySums<kTiles> sum_decays(
    const SwizzledRows<const float, kWidth>& w_rows) {
  const int lane = threadIdx.x % kWarp;
  const int row = lane / 4, column = lane % 4;
  DecaySums<kTiles> sums = {};
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const int j = step * 8 + column;
    uint32_t weights[4], halves[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weights[i] = __float_as_uint(j + i / 2 * 4 <= row + i % 2 * 8 ? 0.5f : -0.5f);
      halves[i] = __float_as_uint(0.5f);
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      uint32_t high[2], low[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float w = *w_rows.at(j + i * 4, n * 8 + row);
        high[i] = __float_as_uint(w) & 0xffffe000u;  // what tf32 keeps of a float
        low[i] = __float_as_uint(w - __uint_as_float(high[i]));
      }
      mma_m16n8k8_tf32(sums.h[n], halves, low, sums.h[n]);
      mma_m16n8k8_tf32(sums.h[n], halves, high, sums.h[n]);
      mma_m16n8k8_tf32(sums.write[n], weights, low, sums.write[n]);
      mma_m16n8k8_tf32(sums.write[n], weights, high, sums.write[n]);
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float own = *w_rows.at(row + i / 2 * 8, n * 8 + column * 2 + i % 2);
      sums.read[n][i] = sums.write[n][i] - own;
    }
  }
  return sums;
}

// One preparing warp: it owns a slab of columns of one sub-chunk of every round.
template <class Tiling>
class PreparingWarp {
  using T = typename Tiling::T;
  static constexpr int kTiles = Tiling::kSlab / 8;
  using Sizes = Fp16Range<LargestNumber, kTiles, Tiling::kSlabs, Tiling::kM>;
  static constexpr int kAtATime = sizeof(T) == 2 ? kTiles : 4;  // for which there are registers

 public:
  __device__ __forceinline__ explicit PreparingWarp(const Block<Tiling>& block)
      : block_(block),
        lane_(threadIdx.x % kWarp),
        sub_((threadIdx.x / kWarp - Tiling::kStateWarps) / Tiling::kSlabs),
        slab_((threadIdx.x / kWarp - Tiling::kStateWarps) % Tiling::kSlabs),
        column_(slab_ * Tiling::kSlab),
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
  // The slab's rows, from tile n0 on.
  __device__ __forceinline__ typename Tiling::Rows slab(
      const T (&x)[Tiling::kSlots][Tiling::kRows][Tiling::kE], int round, int n0) const {
    return {x[round % Tiling::kSlots][sub_ * kSubChunk], column_ + n0 * 8};
  }
  // The sub-chunk's rows of v.
  __device__ __forceinline__ const T* values(int round) const {
    return block_.smem.v[round % (Tiling::kSlots + 1)][sub_ * kSubChunk];
  }

  // [doc:prepare]
  // Prepares the slab of a packet. The usual way is right if decays are mild, which it says, and
  // fp16 suits all lanes; it is asked for that when all is done, so that nothing waits for it.
  __device__ __forceinline__ void prepare(int round) {
    bool suits = true;
    const bool mild = prepare_usual(round, suits);
    const bool usual = mild && (!Tiling::kFp16 || __all_sync(kFullWarp, suits));
    if (!usual) prepare_unusual(round, /*with_scores=*/!mild);
    if (Tiling::kFp16 && lane_ == 0) packet(round).in_fp16[slab_] = usual;
  }

  __device__ __forceinline__ bool prepare_usual(int round, bool& suits) {
    Packet<Tiling>& packet = this->packet(round);
    float scores[2][4] = {}, bonus[2] = {};
    Sizes sizes;
#pragma unroll 1
    for (int n0 = 0; n0 < kTiles; n0 += kAtATime) {
      Columns<kAtATime> columns;
      fetch(columns, round, n0);
      if (!columns.mild()) return false;
#pragma unroll
      for (int n = 0; n < kAtATime; ++n) {
        // Here and there, among instructions that wait for each other.
        if constexpr (Tiling::kFp16) sizes.look_at(columns.k[n], values(round), n, slab_);
        prepare_tile<Tiling::kFp16>(packet, n0 + n, columns, n, scores, bonus);
      }
    }
    suits = sizes.suits();
    store_scores(packet, scores, bonus);
    return true;
  }
  // [/doc:prepare]

  // Columns of a sub-chunk, in tiles of eight.
  template <int kCount>
  struct Columns {
    Pair<T> r[kCount][2], k[kCount][2];
    DecaySums<kCount> sums;

    __device__ __forceinline__ bool mild() const {
      bool mild = true;  // a NaN, from an infinite decay, is not
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) mild = mild && sums.h[n][i] >= -kMildest / kLog2e;
      }
      return __all_sync(kFullWarp, mild);
    }
  };
  // From tile n0 of the slab on. All is read before anything is stored: the compiler could not know
  // that stores leave it alone.
  template <int kCount>
  __device__ __forceinline__ void fetch(Columns<kCount>& columns, int round, int n0) const {
    load_rows(columns.r, slab(block_.smem.r, round, n0));
    load_rows(columns.k, slab(block_.smem.k, round, n0));
    columns.sums = sum_decays<kCount>(slab(block_.smem.w, round, n0));
  }

  // [doc:prepare_tile]
  // Tile n of the slab, which is the i-th of `columns`.
  template <bool kInFp16, int kCount>
  __device__ __forceinline__ void prepare_tile(Packet<Tiling>& packet, int n,
                                               const Columns<kCount>& columns, int i,
                                               float (&scores)[2][4], float (&bonus)[2]) const {
    const auto& sums = columns.sums;
    // [doc:scaled_rows]
    const float2 r0 = to_floats(columns.r[i][0]), r1 = to_floats(columns.r[i][1]);
    const float2 k0 = to_floats(columns.k[i][0]), k1 = to_floats(columns.k[i][1]);
    float r[4] = {r0.x, r0.y, r1.x, r1.y}, k[4] = {k0.x, k0.y, k1.x, k1.y};
    add_bonus(bonus, n, r, k);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      r[j] *= exp2_approx(sums.read[i][j] * kLog2e);
      k[j] *= exp2_approx(-sums.write[i][j] * kLog2e);
    }
    add_scores(scores, r, k);
    // From the sub-chunk's beginning to halfway, and from there to its end.
    const float half[2] = {exp2_approx(sums.h[i][0] * kLog2e), exp2_approx(sums.h[i][1] * kLog2e)};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      r[j] *= half[j % 2];
      k[j] *= half[j % 2];
    }
    store_r(packet, n, r);
    store_k<kInFp16>(packet, n, k);
    store_decay(packet, n, half[0] * half[0], half[1] * half[1]);
    // [/doc:scaled_rows]
  }
  // [/doc:prepare_tile]

  // [doc:prepare_unusual]
  // The same for any decays and any k and v: columns that are too strong, 16 at a time, go row by row.
  // with_scores: they are not there yet.
  __device__ __forceinline__ void prepare_unusual(int round, bool with_scores) {
    Packet<Tiling>& packet = this->packet(round);
    float scores[2][4] = {}, bonus[2] = {};
#pragma unroll 1
    for (int n = 0; n < kTiles; n += 2) {
      Columns<2> columns;
      fetch(columns, round, n);
      if (columns.mild()) {
#pragma unroll
        for (int i = 0; i < 2; ++i) prepare_tile<false>(packet, n + i, columns, i, scores, bonus);
      } else {
        prepare_rows(packet, n, columns, slab(block_.smem.w, round, n), scores, bonus);
      }
    }
    if (with_scores) store_scores(packet, scores, bonus);
  }

  // No factor is over 1 here. A row's scores are its r times the keys before it, which decay on the
  // way.
  __device__ __forceinline__ void prepare_rows(Packet<Tiling>& packet, int n0,
                                               const Columns<2>& columns,
                                               const typename Tiling::Rows& w_rows,
                                               float (&scores)[2][4], float (&bonus)[2]) const {
    const int row = lane_ / 4;
    float r[2][4], k_own[2][4], k[2][4] = {}, decay[2][2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 r_pair = to_floats(columns.r[n][half]), k_pair = to_floats(columns.k[n][half]);
        r[n][2 * half] = r_pair.x;
        r[n][2 * half + 1] = r_pair.y;
        k_own[n][2 * half] = k_pair.x;
        k_own[n][2 * half + 1] = k_pair.y;
        decay[n][half] = 1;
      }
      add_bonus(bonus, n0 + n, r[n], k_own[n]);
    }
    float more[2][4] = {};  // of the second eight columns, which need not wait for the first
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = half * 2;  // where a lane keeps its row of this half
#pragma unroll 4
      for (int i = 0; i < 8; ++i) {
        const bool mine = row == i;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const float2 w = to_floats(load_pair(w_rows.at(half * 8 + i, n * 8 + lane_ % 4 * 2)));
          const float own_decay[2] = {exp2_approx(w.x * kLog2e), exp2_approx(w.y * kLog2e)};
          float r_row[4] = {};
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            if (mine) {
              r_row[own + j] = r[n][own + j];
              r[n][own + j] *= decay[n][j];
            }
          }
          add_scores(n == 0 ? scores : more, r_row, k[n]);
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            k[n][j] *= own_decay[j];
            k[n][2 + j] *= own_decay[j];
            if (mine) k[n][own + j] = k_own[n][own + j];
            decay[n][j] *= own_decay[j];
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) scores[i / 4][i % 4] += more[i / 4][i % 4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      store_r(packet, n0 + n, r[n]);
      store_k<false>(packet, n0 + n, k[n]);
      store_decay(packet, n0 + n, decay[n][0], decay[n][1]);
    }
  }
  // [/doc:prepare_unusual]

  // bonus += r (u k), of the columns that the lane has of eight.
  __device__ __forceinline__ void add_bonus(float (&bonus)[2], int n, const float (&r)[4],
                                            const float (&k)[4]) const {
    const float2 u = load_pair(block_.smem.u + column_ + n * 8 + lane_ % 4 * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) bonus[i / 2] += r[i] * (i % 2 == 0 ? u.x : u.y) * k[i];
  }

  // scores += r k^T, of eight columns: accumulators of one product as operands of the next. Elements
  // 1 and 2 of an accumulator are 2 and 1 of an A operand.
  __device__ __forceinline__ void add_scores(float (&scores)[2][4], const float (&r)[4],
                                             const float (&k)[4]) const {
    const uint32_t r_bits[4] = {__float_as_uint(r[0]), __float_as_uint(r[2]), __float_as_uint(r[1]),
                                __float_as_uint(r[3])};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      mma_m16n8k8_tf32(scores[half], r_bits,
                       {__float_as_uint(k[2 * half]), __float_as_uint(k[2 * half + 1])},
                       scores[half]);
    }
  }

  __device__ __forceinline__ void store_r(Packet<Tiling>& packet, int n,
                                          const float (&r)[4]) const {
    packet.r[column_ / 8 + n][lane_] = {__float_as_uint(r[0]), __float_as_uint(r[2]),
                                        __float_as_uint(r[1]), __float_as_uint(r[3])};
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

  __device__ __forceinline__ void store_decay(Packet<Tiling>& packet, int n, float x0,
                                              float x1) const {
    if (lane_ >= 4) return;
    float* decays = reinterpret_cast<float*>(packet.decay[lane_]);
    store_pair(decays + column_ / 4 + n * 2, x0, x1);
  }

  // [doc:store_scores]
  // The scores of 16 rows: of keys before the row what they are, of the row itself its bonus, of
  // later keys 0. The first slab's warp sums up those of all slabs, and stores them as two bf16.
  __device__ __forceinline__ void store_scores(Packet<Tiling>& packet, float (&scores)[2][4],
                                               float (&bonus)[2]) const {
    const int row = lane_ / 4, key = lane_ % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Summed up over the columns, which four lanes share.
      bonus[i] += __shfl_xor_sync(kFullWarp, bonus[i], 1);
      bonus[i] += __shfl_xor_sync(kFullWarp, bonus[i], 2);
      bonus[i] *= 1 / kUncut;  // no tensor core has cut it off
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int after = key + j + i / 2 * 8 - (row + i % 2 * 8);
        float& s = scores[i / 2][i % 2 * 2 + j];
        s = after < 0 ? s : after == 0 ? bonus[i % 2] : 0;
      }
    }
    if (!sum_over_slabs<Tiling::kSlabs>(packet.scores, scores, slab_, sub_)) return;
    uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* s = &scores[i / 2][i % 2 * 2];
      high[i] = pack_high(s[0], s[1]);
      low[i] = pack_low(s[0], s[1], high[i]);
    }
    packet.scores[0][lane_] = {high[0], high[1], high[2], high[3]};
    packet.scores[1][lane_] = {low[0], low[1], low[2], low[3]};
  }
  // [/doc:store_scores]

  const Block<Tiling>& block_;
  const int lane_, sub_, slab_, column_;
  std::conditional_t<Tiling::kLoadWarps == 0, RoundLoader<Tiling>, NoRows> rows_;
};

}  // namespace attn::rwkv6
