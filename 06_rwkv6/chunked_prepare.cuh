// The preparing warps of the chunked kernel: they fetch rows, and turn those of r, k and w into
// packets.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "06_rwkv6/chunked_block.cuh"
#include "06_rwkv6/chunked_load.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/warp.cuh"

namespace attn::rwkv6 {

// The largest |h| of a packet, to base 2. Factors from 2^-96 to 2^96 leave the products of inputs up
// to 2^31 inside the range of a float, and of r and k all that is above 2^-30. It is exp(-133) in
// all, which 16 steps of -exp(N(0, 1)) reach in one column of 40000.
constexpr float kMildest = 96;

// [doc:window]
// The places of a sub-chunk that go into one packet: all 17, unless decays are strong.
struct Window {
  int first, last;
  __device__ bool contains(int place) const { return first <= place && place <= last; }
  __device__ bool reads(int row) const { return contains(row); }
  __device__ bool writes(int row) const { return contains(row + 1); }
  // Whether row's decay lies between two places of the window.
  __device__ bool decays(int row) const { return first <= row && row < last; }
};
// [/doc:window]

// [doc:centred_decays]
// The exponents of 16 rows and 8 kGroup columns, to base 2, as accumulator fragments. Let W be the
// sum of the window's decays and h = W / 2. `write` is the sum up to and including row i's own decay,
// minus h: the product of a triangle of +-1/2 log2(e) and the decays. `read` is without row i's own:
// a diagonal of -log2(e) more. The weights are sums of two bf16.
template <bool kWhole, int kGroup>
__device__ __forceinline__ void centred_decays(float (&read)[kGroup][4], float (&write)[kGroup][4],
                                               const __nv_bfloat16* w_smem, int pitch,
                                               Window window) {
  // 1/2 log2(e) = 185/256 - 43/32768, to 5e-6. A pair of bf16, and the same with either sign.
  constexpr uint32_t kHigh = 0x3f393f39u, kLow = 0xbaacbaacu, kSigns = 0x80008000u;
  constexpr uint32_t kExponent = 0x00800080u;  // twice as much
  const int lane = threadIdx.x % kWarp;
  const int row = lane / 4, pair = lane % 4 * 2;
  // Of the 8 x 8 quarters of a matrix of weights two lie on the diagonal, and are the same.
  const uint32_t minus = (pair > row ? 0x8000u : 0) | (pair + 1 > row ? 0x80000000u : 0);
  const uint32_t own = (pair == row ? 0xffffu : 0) | (pair + 1 == row ? 0xffff0000u : 0);
  const uint32_t high[4] = {kHigh ^ minus, kHigh, kHigh ^ kSigns, kHigh ^ minus};
  const uint32_t low[4] = {kLow ^ minus, kLow, kLow ^ kSigns, kLow ^ minus};
  const uint32_t own_high = ((kHigh + kExponent) ^ kSigns) & own;
  const uint32_t own_low = ((kLow + kExponent) ^ kSigns) & own;

  uint32_t w[kGroup / 2][4];
#pragma unroll
  for (int n = 0; n < kGroup; n += 2) {
    ldmatrix_trans(w[n / 2], w_smem + lane % 16 * pitch + n * 8 + lane / 16 * 8);
    if constexpr (!kWhole) {
      // A decay outside the window must not count even if it is -inf.
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = pair + i % 2 * 8;
        w[n / 2][i] &= (window.decays(j) ? 0xffffu : 0) | (window.decays(j + 1) ? 0xffff0000u : 0);
      }
    }
  }
  const float zero[4] = {};
#pragma unroll
  for (int n = 0; n < kGroup; ++n) {
    const uint32_t w_n[2] = {w[n / 2][n % 2 * 2], w[n / 2][n % 2 * 2 + 1]};
    mma_m16n8k16(write[n], low, w_n, zero);
    mma_m16n8k16(write[n], high, w_n, write[n]);
    mma_m16n8k16(read[n], {own_low, 0, 0, own_low}, w_n, write[n]);
    mma_m16n8k16(read[n], {own_high, 0, 0, own_high}, w_n, read[n]);
  }
}
// [/doc:centred_decays]

// The same of float decays: here each, times log2(e), is the sum of two tf32, and its own decay is
// taken from a row by subtraction.
template <bool kWhole, int kGroup>
__device__ __forceinline__ void centred_decays(float (&read)[kGroup][4], float (&write)[kGroup][4],
                                               const float* w_smem, int pitch, Window window) {
  const int lane = threadIdx.x % kWarp;
  const int row = lane / 4, column = lane % 4;
#pragma unroll
  for (int n = 0; n < kGroup; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) write[n][i] = 0;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int j = step * 8 + column;
      uint32_t weights[4], high[2], low[2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[i] = __float_as_uint(j + i / 2 * 4 <= row + i % 2 * 8 ? 0.5f : -0.5f);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool inside = kWhole || window.decays(j + i * 4);
        const float w = inside ? w_smem[(j + i * 4) * pitch + n * 8 + row] * kLog2e : 0;
        high[i] = __float_as_uint(w) & 0xffffe000u;  // what tf32 keeps of a float
        low[i] = __float_as_uint(w - __uint_as_float(high[i]));
      }
      mma_m16n8k8_tf32(write[n], weights, high, write[n]);
      mma_m16n8k8_tf32(write[n], weights, low, write[n]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int own = row + i / 2 * 8;
      const bool inside = kWhole || window.decays(own);
      const float w = inside ? w_smem[own * pitch + n * 8 + column * 2 + i % 2] : 0;
      read[n][i] = write[n][i] - w * kLog2e;
    }
  }
}

// One preparing warp: it owns a slab of columns of one sub-chunk of every round.
template <class Tiling>
class PreparingWarp {
  using T = typename Tiling::T;
  static constexpr int kTiles = Tiling::kSlab / 8;
  static constexpr int kGroup = Tiling::kSlab == 32 ? 4 : 2;  // times 8 columns, taken at a time
  static constexpr int kPitch = Tiling::kPitch;
  static constexpr int kThreads = Tiling::kPrepareWarps * kWarp;

 public:
  __device__ __forceinline__ explicit PreparingWarp(const Block<Tiling>& block)
      : block_(block),
        lane_(threadIdx.x % kWarp),
        sub_((threadIdx.x / kWarp - Tiling::kStateWarps) / Tiling::kSlabs),
        slab_((threadIdx.x / kWarp - Tiling::kStateWarps) % Tiling::kSlabs),
        column_(slab_ * Tiling::kSlab),
        r_rows_(block.x.r, block.b, block.h, block.begin, 0, thread()),
        k_rows_(block.x.k, block.b, block.h, block.begin, 0, thread()),
        w_rows_(block.x.w, block.b, block.h, block.begin, 0, thread()),
        v_rows_(block.x.v, block.b, block.h, block.begin, block.m0, thread()) {}

  // [doc:preparing_rounds]
  // In round r the packets of round r + 1 are prepared.
  __device__ __forceinline__ void run() {
    for (int round = 0; round < Tiling::kSlots - 1; ++round) load(round);
    load_bonus();
#pragma unroll 1
    for (int round = -1; round < block_.rounds; ++round) {
      // All copies but those of the latest rounds: the rows of round + 1 have arrived ...
      cp_async_wait<Tiling::kSlots - 2>();
      // ... from all threads. The packets of `round` are whole before they are taken; and those of
      // round - 1 taken, and their rows of v used, before they are overwritten.
      block_.meet();
      if (round >= 0 && block_.any_incomplete(round)) prepare_the_rest(round);
      load(round + Tiling::kSlots);
      if (round + 1 < block_.rounds) prepare_from(round + 1, 0);
    }
  }
  // [/doc:preparing_rounds]

 private:
  __device__ int thread() const { return threadIdx.x - Tiling::kStateWarps * kWarp; }

  __device__ __forceinline__ void load_bonus() {
    for (int e = thread(); e < Tiling::kE; e += kThreads) {
      block_.smem.u[e] = e < block_.x.u.D ? float(block_.x.u.row(0, block_.h, 0)[e]) : 0;
    }
  }

  // Sends for the rows of a round.
  __device__ __forceinline__ void load(int round) {
    if (round < block_.rounds) {
      auto& smem = block_.smem;
      const int rows = block_.end - block_.begin - round * Tiling::kRows;
      const int slot = round % Tiling::kSlots, v_slot = round % (Tiling::kSlots + 1);
      if (block_.aligned) {
        r_rows_.load(smem.r[slot], rows);
        k_rows_.load(smem.k[slot], rows);
        w_rows_.load(smem.w[slot], rows);
        v_rows_.load(smem.v[v_slot], rows);
      } else {
        r_rows_.load_elements(smem.r[slot], rows);
        k_rows_.load_elements(smem.k[slot], rows);
        w_rows_.load_elements(smem.w[slot], rows);
        v_rows_.load_elements(smem.v[v_slot], rows);
      }
    }
    cp_async_commit();
  }

  // [doc:prepare_from]
  // Prepares the sub-chunk's packet: whole if the decays allow it, else from `first` on as far as
  // they allow.
  __device__ __forceinline__ void prepare_from(int round, int first) {
    Window window = {0, kPlaces - 1};
    if (first > 0 || !prepare<true>(round, window)) {
      window = find_window(round, first);
      prepare<false>(round, window);
    }
    if (lane_ == 0) block_.smem.next_place[round % 2][sub_][slab_] = window.last + 1;
  }

  // The parts of strong sub-chunks that their first packet had no place for, packet by packet.
  __device__ __forceinline__ void prepare_the_rest(int round) {
#pragma unroll 1
    for (int sub = 0; sub < Tiling::kSubChunks; ++sub) {
#pragma unroll 1
      while (block_.incomplete(round, sub)) {
        const int first = block_.smem.next_place[round % 2][sub][slab_];
        block_.meet();  // the packet before is taken, and everybody has seen that it is not the last
        if (sub_ == sub) prepare_from(round, first);
        block_.meet();  // this one is whole
      }
    }
  }
  // [/doc:prepare_from]

  // [doc:find_window]
  // The longest window from place `first` on in which no column of the slab decays too much; empty
  // if all places are in packets. A decay that is too strong by itself, such as a reset, lies
  // between two windows: there it decays the state only.
  __device__ __forceinline__ Window find_window(int round, int first) const {
    constexpr float kStrongest = -2 * kMildest / kLog2e;
    const T* w = block_.smem.w[round % Tiling::kSlots][sub_ * kSubChunk] + column_;
    const int pair = lane_ % (Tiling::kSlab / 2) * 2;
    Window window = {first, first};
    float sum0 = 0, sum1 = 0;
    for (int row = first; row < kSubChunk; ++row) {
      const float2 decay = load_pair(w + row * kPitch + pair);
      sum0 += decay.x;
      sum1 += decay.y;
      if (!__all_sync(kFullWarp, sum0 >= kStrongest && sum1 >= kStrongest)) break;
      window.last = row + 1;
    }
    return window;
  }
  // [/doc:find_window]

  // What a lane has of 16 rows and kGroup * 8 columns, in the order of an accumulator.
  __device__ __forceinline__ void load_group(float (&x)[kGroup][4], const T* rows) {
#pragma unroll
    for (int n = 0; n < kGroup; ++n) {
      const float2 x0 = load_pair(rows + n * 8), x1 = load_pair(rows + n * 8 + 8 * kPitch);
      x[n][0] = x0.x, x[n][1] = x0.y, x[n][2] = x1.x, x[n][3] = x1.y;
    }
  }

  // Prepares the slab of a packet. kWhole: all of it, if that is possible; returns whether it was.
  template <bool kWhole>
  __device__ __forceinline__ bool prepare(int round, Window window) {
    auto& smem = block_.smem;
    auto& packet = smem.packets[round % 2][sub_];
    const int slot = round % Tiling::kSlots;
    const T* w = smem.w[slot][sub_ * kSubChunk] + column_;
    const int row = lane_ / 4, pair = lane_ % 4 * 2;
    const T* k_rows = smem.k[slot][sub_ * kSubChunk + row] + column_ + pair;
    const T* r_rows = smem.r[slot][sub_ * kSubChunk + row] + column_ + pair;
    bool mild = true;
    float scores[2][4] = {}, bonus[2] = {};
    // A few columns at a time: all is read from shared memory before anything is written to it, so that
    // the reads do not wait. What turns out to be too strong is thrown away in the end.
#pragma unroll
    for (int n0 = 0; n0 < kTiles; n0 += kGroup) {
      float read[kGroup][4], write[kGroup][4], k_group[kGroup][4], r_group[kGroup][4];
      centred_decays<kWhole>(read, write, w + n0 * 8, kPitch, window);
      load_group(k_group, k_rows + n0 * 8);
      load_group(r_group, r_rows + n0 * 8);
#pragma unroll
      for (int n = n0; n < n0 + kGroup; ++n) {
        float(&x_read)[4] = read[n - n0];
        float(&x_write)[4] = write[n - n0];
        // [doc:decays]
        // The last row has written all of the window's decays: h. The state comes in through the
        // decay before the window, if there is one.
        const float h0 = __shfl_sync(kFullWarp, x_write[2], 28 + lane_ % 4);
        const float h1 = __shfl_sync(kFullWarp, x_write[3], 28 + lane_ % 4);
        // A NaN, from an infinite decay, is no mild one either.
        mild = mild && h0 >= -kMildest && h1 >= -kMildest;
        float2 before = {0, 0};
        if (!kWhole && 0 < window.first && window.first < kPlaces) {
          before = load_pair(w + (window.first - 1) * kPitch + n * 8 + pair);
        }
        const float in0 = fmaf(before.x, kLog2e, h0), in1 = fmaf(before.y, kLog2e, h1);
        const float out[2] = {exp2_approx(h0), exp2_approx(h1)};
        const float in[2] = {kWhole ? out[0] : exp2_approx(in0),
                             kWhole ? out[1] : exp2_approx(in1)};
        if (row == 0) {
          store_pair(&packet.decay[column_ + n * 8 + pair], in[0] * out[0], in[1] * out[1]);
        }
        // [/doc:decays]

        // [doc:scaled_rows]
        const float(&k)[4] = k_group[n - n0];
        float k_score[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool inside = kWhole || window.writes(row + i / 2 * 8);
          k_score[i] = inside ? k[i] * exp2_approx(-x_write[i]) : 0;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int word = (column_ + n * 8 + pair) / 2;
          const float k_state[2] = {k_score[2 * i] * out[0], k_score[2 * i + 1] * out[1]};
          const uint32_t high = pack_high(k_state[0], k_state[1]);
          packet.k_high[row + i * 8][word] = high;
          packet.k_low[row + i * 8][word] = pack_low(k_state[0], k_state[1], high);
        }
        const float2 u = load_pair(smem.u + column_ + n * 8 + pair);
        const float(&r)[4] = r_group[n - n0];
        float r_score[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool inside = kWhole || window.reads(row + i / 2 * 8);
          r_score[i] = inside ? r[i] * exp2_approx(x_read[i]) : 0;
          if (inside) bonus[i / 2] += r[i] * (i % 2 == 0 ? u.x : u.y) * k[i];
        }
        // Elements 1 and 2 of an accumulator are 2 and 1 of an A operand.
        packet.r[column_ / 8 + n][lane_] = {
            __float_as_uint(r_score[0] * in[0]), __float_as_uint(r_score[2] * in[0]),
            __float_as_uint(r_score[1] * in[1]), __float_as_uint(r_score[3] * in[1])};
        const uint32_t r_a[4] = {__float_as_uint(r_score[0]), __float_as_uint(r_score[2]),
                                 __float_as_uint(r_score[1]), __float_as_uint(r_score[3])};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          mma_m16n8k8_tf32(scores[i], r_a,
                           {__float_as_uint(k_score[2 * i]), __float_as_uint(k_score[2 * i + 1])},
                           scores[i]);
        }
        // [/doc:scaled_rows]
      }
    }
    if (kWhole && !__all_sync(kFullWarp, mild)) return false;
    store_scores(packet.scores[slab_], scores, bonus);
    return true;
  }

  // [doc:store_scores]
  // The scores of 16 rows, as two bf16: of keys before the row what they are, of the row itself its
  // bonus, of later keys 0.
  __device__ __forceinline__ void store_scores(uint4 (&parts)[2][kWarp], float (&scores)[2][4],
                                               float (&bonus)[2]) {
    const int row = lane_ / 4, key = lane_ % 4 * 2;
    uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Summed up over the columns, which four lanes share.
      bonus[i] += __shfl_xor_sync(kFullWarp, bonus[i], 1);
      bonus[i] += __shfl_xor_sync(kFullWarp, bonus[i], 2);
      bonus[i] *= 1 / kUncut;  // no tensor core has cut it off
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float s[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int after = key + j + i / 2 * 8 - (row + i % 2 * 8);
        s[j] = after < 0 ? scores[i / 2][i % 2 * 2 + j] : after == 0 ? bonus[i % 2] : 0;
      }
      high[i] = pack_high(s[0], s[1]);
      low[i] = pack_low(s[0], s[1], high[i]);
    }
    parts[0][lane_] = {high[0], high[1], high[2], high[3]};
    parts[1][lane_] = {low[0], low[1], low[2], low[3]};
  }
  // [/doc:store_scores]

  const Block<Tiling>& block_;
  const int lane_, sub_, slab_, column_;
  RowLoader<T, Tiling::kRows, Tiling::kE, kThreads> r_rows_, k_rows_, w_rows_;
  RowLoader<T, Tiling::kRows, Tiling::kM, kThreads> v_rows_;
};

}  // namespace attn::rwkv6
