// The preparing warps of the fused kernel: they fetch rows, and turn those of q, k and g into
// packets.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "05_chunked_gla/fused_block.cuh"
#include "05_chunked_gla/fused_load.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/warp.cuh"

namespace attn::chunked_gla {

// The largest |h| of a packet, to base 2: factors from 2^-64 to 2^64 keep the products of sensible
// inputs, and the state, inside the range of a float.
constexpr float kMildest = 64;

// [doc:window]
// The rows of a sub-chunk that go into one packet: all 16, unless gates are strong.
struct Window {
  int first, last;
  __device__ bool contains(int row) const { return first <= row && row <= last; }
  // c_i - h is the sum over j of weight(i, j) g_j.
  __device__ float weight(int i, int j) const {
    return first < j && j <= last ? (j <= i ? 0.5f : -0.5f) : 0.0f;
  }
};
// [/doc:window]

// [doc:centred_gates]
// x = c - h, to base 2, of 16 rows and 8 kTiles columns as accumulator fragments: the product of a
// matrix of weights, +-1/2 log2(e), and the gates. The weight is the sum of two bf16. The lane has
// rows `row` and row + 8.
template <bool kWhole, int kTiles>
__device__ __forceinline__ void centred_gates(float (&x)[kTiles][4], const __nv_bfloat16* g_smem,
                                              int pitch, Window window, int row) {
  const int lane = threadIdx.x % kWarp;
  const int pair = lane % 4 * 2;
  uint32_t high[4], low[4], inside[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = row + i % 2 * 8, j = pair + i / 2 * 8;
    const float w0 = window.weight(r, j) * kLog2e, w1 = window.weight(r, j + 1) * kLog2e;
    high[i] = pack_high(w0, w1);
    low[i] = pack_low(w0, w1, high[i]);
    inside[i / 2] = (w0 != 0 ? 0xffffu : 0) | (w1 != 0 ? 0xffff0000u : 0);
  }
  const __nv_bfloat16* matrix = g_smem + lane % 16 * pitch + lane / 16 * 8;
#pragma unroll
  for (int n = 0; n < kTiles; n += 2) {
    uint32_t g[4];
    ldmatrix_trans(g, matrix + n * 8);
    // A gate outside the window must not count even if it is -inf.
    if constexpr (!kWhole) {
#pragma unroll
      for (int i = 0; i < 4; ++i) g[i] &= inside[i % 2];
    }
    const float zero[4] = {};
    mma_m16n8k16(x[n], low, {g[0], g[1]}, zero);
    mma_m16n8k16(x[n], high, {g[0], g[1]}, x[n]);
    mma_m16n8k16(x[n + 1], low, {g[2], g[3]}, zero);
    mma_m16n8k16(x[n + 1], high, {g[2], g[3]}, x[n + 1]);
  }
}
// [/doc:centred_gates]

// The same of float gates: here each gate, times log2(e), is the sum of two tf32.
template <bool kWhole, int kTiles>
__device__ __forceinline__ void centred_gates(float (&x)[kTiles][4], const float* g_smem, int pitch,
                                              Window window, int row) {
  const int lane = threadIdx.x % kWarp;
  const int group = lane / 4, column = lane % 4;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[n][i] = 0;
  }
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const int j = step * 8 + column;
    uint32_t weights[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weights[i] = __float_as_uint(window.weight(row + i % 2 * 8, j + i / 2 * 4));
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      uint32_t high[2], low[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool inside = kWhole || window.weight(0, j + i * 4) != 0;
        const float g = inside ? g_smem[(j + i * 4) * pitch + n * 8 + group] * kLog2e : 0;
        high[i] = __float_as_uint(g) & 0xffffe000u;  // what tf32 keeps of a float
        low[i] = __float_as_uint(g - __uint_as_float(high[i]));
      }
      mma_m16n8k8_tf32(x[n], weights, high, x[n]);
      mma_m16n8k8_tf32(x[n], weights, low, x[n]);
    }
  }
}

// One preparing warp: it owns a slab of columns of one sub-chunk of every round.
template <class Tiling>
class PreparingWarp {
  using T = typename Tiling::T;
  static constexpr int kTiles = Tiling::kSlab / 8;
  static constexpr int kPitch = Tiling::kPitch;
  static constexpr int kThreads = Tiling::kPrepareWarps * kWarp;

 public:
  __device__ __forceinline__ explicit PreparingWarp(const Block<Tiling>& block)
      : block_(block),
        lane_(threadIdx.x % kWarp),
        sub_((threadIdx.x / kWarp - Tiling::kStateWarps) / Tiling::kSlabs),
        slab_((threadIdx.x / kWarp - Tiling::kStateWarps) % Tiling::kSlabs),
        column_(slab_ * Tiling::kSlab),
        q_rows_(block.x.q, block.b, block.h, block.begin, 0, thread()),
        k_rows_(block.x.k, block.b, block.h, block.begin, 0, thread()),
        g_rows_(block.x.g, block.b, block.h, block.begin, 0, thread()),
        v_rows_(block.x.v, block.b, block.h, block.begin, block.m0, thread()) {}

  // [doc:preparing_rounds]
  // In round r the packets of round r + 1 are prepared.
  __device__ __forceinline__ void run() {
    for (int round = 0; round < Tiling::kSlots - 1; ++round) load(round);
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

  __device__ __forceinline__ void load(int round) {
    if (round < block_.rounds) {
      auto& smem = block_.smem;
      const int rows = block_.end - block_.begin - round * Tiling::kRows;
      const int slot = round % Tiling::kSlots, v_slot = round % (Tiling::kSlots + 1);
      if (block_.aligned) {
        q_rows_.load(smem.q[slot], rows);
        k_rows_.load(smem.k[slot], rows);
        g_rows_.load(smem.g[slot], rows);
        v_rows_.load(smem.v[v_slot], rows);
      } else {
        q_rows_.load_elements(smem.q[slot], rows);
        k_rows_.load_elements(smem.k[slot], rows);
        g_rows_.load_elements(smem.g[slot], rows);
        v_rows_.load_elements(smem.v[v_slot], rows);
      }
    }
    cp_async_commit();
  }

  // [doc:prepare_from]
  // Prepares the sub-chunk's packet: with all of its rows if the gates allow it, else with those
  // from `first` on that they allow.
  __device__ __forceinline__ void prepare_from(int round, int first) {
    Window window = {0, kSubChunk - 1};
    if (first > 0 || !prepare<true>(round, window)) {
      window = find_window(round, first);
      prepare<false>(round, window);
    }
    if (lane_ == 0) block_.smem.next_row[round % 2][sub_][slab_] = window.last + 1;
    __syncwarp();  // h is there before other lanes read it
    store_decays(round, window.first);
  }

  // The rows of strong sub-chunks that their first packet had no place for, packet by packet.
  __device__ __forceinline__ void prepare_the_rest(int round) {
#pragma unroll 1
    for (int sub = 0; sub < Tiling::kSubChunks; ++sub) {
#pragma unroll 1
      while (block_.incomplete(round, sub)) {
        const int first = block_.smem.next_row[round % 2][sub][slab_];
        block_.meet();  // the packet before
        if (sub_ == sub) prepare_from(round, first);
        block_.meet();  // this one
      }
    }
  }
  // [/doc:prepare_from]

  // [doc:find_window]
  // The longest window from row `first` on in which no column of the slab decays too much; empty if
  // first is 16. A gate that is too strong by itself, such as a reset, begins a window: there it
  // decays the state only.
  __device__ __forceinline__ Window find_window(int round, int first) const {
    constexpr float kStrongest = -2 * kMildest / kLog2e;
    const T* g = block_.smem.g[round % Tiling::kSlots][sub_ * kSubChunk] + column_;
    const int pair = lane_ % (Tiling::kSlab / 2) * 2;
    Window window = {first, first};
    float c0 = 0, c1 = 0;
    for (int row = first + 1; row < kSubChunk; ++row) {
      const float2 gate = to_floats(load_pair(g + row * kPitch + pair));
      c0 += gate.x;
      c1 += gate.y;
      if (!__all_sync(kFullWarp, c0 >= kStrongest && c1 >= kStrongest)) break;
      window.last = row;
    }
    return window;
  }
  // [/doc:find_window]

  // Prepares the slab of a packet. kWhole: with all 16 rows, if that is possible; returns whether
  // it was.
  template <bool kWhole>
  __device__ __forceinline__ bool prepare(int round, Window window) {
    auto& smem = block_.smem;
    auto& packet = smem.packets[round % 2][sub_];
    const int slot = round % Tiling::kSlots;
    const T* g = smem.g[slot][sub_ * kSubChunk] + column_;
    const int row = lane_ / 4, pair = lane_ % 4 * 2;

    // Read before anything is stored: the compiler could not know that the stores leave them alone.
    const T* k_rows = smem.k[slot][sub_ * kSubChunk + row] + column_ + pair;
    const T* q_rows = smem.q[slot][sub_ * kSubChunk + row] + column_ + pair;
    Pair<T> k_pairs[kTiles][2], q_pairs[kTiles][2];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        k_pairs[n][i] = load_pair(k_rows + n * 8 + i * 8 * kPitch);
        q_pairs[n][i] = load_pair(q_rows + n * 8 + i * 8 * kPitch);
      }
    }

    float x[kTiles][4];
    centred_gates<kWhole>(x, g, kPitch, window, row);
    if constexpr (kWhole) {
      // The first row has the largest x, -h. A NaN, from an infinite gate, is no mild one either.
      bool mild = true;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) mild = mild && x[n][0] <= kMildest && x[n][1] <= kMildest;
      if (!__all_sync(kFullWarp, mild)) return false;
    }

    // [doc:scaled_rows]
    float scores[2][4] = {};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float decay[4], grow[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool inside = kWhole || window.contains(row + i / 2 * 8);
        decay[i] = inside ? exp2_approx(x[n][i]) : 0;
        grow[i] = inside ? exp2_approx(-x[n][i]) : 0;
      }
      const float2 k0 = to_floats(k_pairs[n][0]), k1 = to_floats(k_pairs[n][1]);
      const float k[4] = {k0.x * grow[0], k0.y * grow[1], k1.x * grow[2], k1.y * grow[3]};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int word = (column_ + n * 8 + pair) / 2;
        const uint32_t high = pack_high(k[2 * i], k[2 * i + 1]);
        packet.k_high[row + i * 8][word] = high;
        packet.k_low[row + i * 8][word] = pack_low(k[2 * i], k[2 * i + 1], high);
      }
      const float2 q0 = to_floats(q_pairs[n][0]), q1 = to_floats(q_pairs[n][1]);
      const uint32_t q[4] = {__float_as_uint(q0.x * decay[0]), __float_as_uint(q1.x * decay[2]),
                             __float_as_uint(q0.y * decay[1]), __float_as_uint(q1.y * decay[3])};
      packet.q[column_ / 8 + n][lane_] = {q[0], q[1], q[2], q[3]};
      mma_m16n8k8_tf32(scores[0], q, {__float_as_uint(k[0]), __float_as_uint(k[1])}, scores[0]);
      mma_m16n8k8_tf32(scores[1], q, {__float_as_uint(k[2]), __float_as_uint(k[3])}, scores[1]);
    }
    store_scores(packet.scores[slab_], scores);
    // [/doc:scaled_rows]

    // The last row has x = h, of the sub-chunk before too. What another warp has found for that is
    // not waited for.
    if (kWhole && Tiling::kSubChunks > 1 && sub_ > 0) {
      float before[kTiles][4];
      centred_gates<true>(before, g - kSubChunk * kPitch, kPitch, window, kSubChunk - 1);
      if (row == 7) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          store_pair(&packet.h_before[column_ + n * 8 + pair], before[n][0], before[n][1]);
        }
      }
    }
    if (row == 7) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        store_pair(&packet.h[column_ + n * 8 + pair], x[n][2], x[n][3]);
      }
    }
    return true;
  }

  // [doc:decays]
  // What the state decays by around the packet whose first row is `first`. (All is read before
  // anything is written, so that the reads do not wait for each other.)
  __device__ __forceinline__ void store_decays(int round, int first) {
    auto& smem = block_.smem;
    auto& packet = smem.packets[round % 2][sub_];
    const T* gates = smem.g[round % Tiling::kSlots][sub_ * kSubChunk];
    const auto& last = smem.packets[(round + 1) % 2][Tiling::kSubChunks - 1];
    const float* h_before = sub_ > 0 ? packet.h_before : last.h;
    constexpr int kColumns = Tiling::kSlab / kWarp;
    float in[kColumns], h[kColumns], between[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int e = column_ + i * kWarp + lane_;
      h[i] = packet.h[e];
      // The state comes in through the first row's gate; an empty window leaves it as it is.
      in[i] = fmaf(first < kSubChunk ? float(gates[first * kPitch + e]) : 0, kLog2e, h[i]);
      between[i] = in[i] + h_before[e];
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int e = column_ + i * kWarp + lane_;
      packet.in[e] = exp2_approx(in[i]);
      packet.out[e] = exp2_approx(h[i]);
      packet.between[e] = exp2_approx(between[i]);
    }
  }
  // [/doc:decays]

  // The causal half of the scores of 16 rows, as two bf16.
  __device__ __forceinline__ void store_scores(uint4 (&parts)[2][kWarp], float (&scores)[2][4]) {
    const int row = lane_ / 4, key = lane_ % 4 * 2;
    uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float* s = &scores[i / 2][i % 2 * 2];
      const int last_key = row + i % 2 * 8 - i / 2 * 8;
      if (key > last_key) s[0] = 0;
      if (key + 1 > last_key) s[1] = 0;
      high[i] = pack_high(s[0], s[1]);
      low[i] = pack_low(s[0], s[1], high[i]);
    }
    parts[0][lane_] = {high[0], high[1], high[2], high[3]};
    parts[1][lane_] = {low[0], low[1], low[2], low[3]};
  }

  const Block<Tiling>& block_;
  const int lane_, sub_, slab_, column_;
  RowLoader<T, Tiling::kRows, Tiling::kE, kThreads> q_rows_, k_rows_, g_rows_;
  RowLoader<T, Tiling::kRows, Tiling::kM, kThreads> v_rows_;
};

}  // namespace attn::chunked_gla
