// The preparing warps of the fused kernel: from rows of q, k and g to a packet.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "05_chunked_gla/fused_packet.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/ptx/named_barrier.cuh"
#include "common/warp.cuh"

namespace attn::chunked_gla {

constexpr float kLog2e = 1.4426950408889634f;
// The largest |h| of a packet: factors up to 2^64 and 2^-64 leave the products of finite inputs, and
// the state, inside the range of a float.
constexpr float kMildest = 64;

__device__ __forceinline__ float2 load_pair(const float* x) {
  return *reinterpret_cast<const float2*>(x);
}
__device__ __forceinline__ float2 load_pair(const __nv_bfloat16* x) {
  const uint32_t pair = *reinterpret_cast<const uint32_t*>(x);
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

// Two floats as bf16, the first in the low half; and what that leaves of them.
__device__ __forceinline__ uint32_t pack_bf16(float x, float y) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
__device__ __forceinline__ uint32_t pack_remainder(float x, float y, uint32_t packed) {
  return pack_bf16(x - __uint_as_float(packed << 16), y - __uint_as_float(packed & 0xffff0000u));
}

// The rows of a sub-chunk that go into a packet.
struct Window {
  int first, last;
  __device__ bool contains(int row) const { return first <= row && row <= last; }
  // x_i = c_i - h = sum over j of weight(i, j) g_j.
  __device__ float weight(int i, int j) const {
    return first < j && j <= last ? (j <= i ? 0.5f : -0.5f) : 0.0f;
  }
};

// The exponents x = c - h, to base 2, of 16 rows and 64 columns as accumulator fragments: the
// product of a matrix of weights, +-1/2 log2(e), and the gates. The weight is a sum of two bf16.
template <bool kWhole, int kTiles>
__device__ __forceinline__ void centered_gates(float (&x)[kTiles][4], const __nv_bfloat16* g_smem,
                                               int pitch, Window window) {
  const int lane = threadIdx.x % kWarp;
  const int row = lane / 4, pair = lane % 4 * 2;
  uint32_t high[4], low[4], keep[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = row + i % 2 * 8, j = pair + i / 2 * 8;
    const float w0 = window.weight(r, j) * kLog2e, w1 = window.weight(r, j + 1) * kLog2e;
    high[i] = pack_bf16(w0, w1);
    low[i] = pack_remainder(w0, w1, high[i]);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int j = pair + i * 8;
    keep[i] = (window.weight(0, j) != 0 ? 0xffffu : 0) |
              (window.weight(0, j + 1) != 0 ? 0xffff0000u : 0);
  }
  const __nv_bfloat16* matrix = g_smem + lane % 16 * pitch + lane / 16 * 8;
#pragma unroll
  for (int n = 0; n < kTiles; n += 2) {
    uint32_t g[4];
    ldmatrix_trans(g, matrix + n * 8);
    // A gate outside the window must not count even if it is -inf.
    if constexpr (!kWhole) {
#pragma unroll
      for (int i = 0; i < 4; ++i) g[i] &= keep[i % 2];
    }
    const float zero[4] = {};
    mma_m16n8k16(x[n], low, {g[0], g[1]}, zero);
    mma_m16n8k16(x[n], high, {g[0], g[1]}, x[n]);
    mma_m16n8k16(x[n + 1], low, {g[2], g[3]}, zero);
    mma_m16n8k16(x[n + 1], high, {g[2], g[3]}, x[n + 1]);
  }
}

// The same of float gates, each times log2(e) and then the sum of two tf32.
template <bool kWhole, int kTiles>
__device__ __forceinline__ void centered_gates(float (&x)[kTiles][4], const float* g_smem, int pitch,
                                               Window window) {
  const int lane = threadIdx.x % kWarp;
  const int row = lane / 4, column = lane % 4;
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
        const float gate = g_smem[(j + i * 4) * pitch + n * 8 + row] * kLog2e;
        const float g = kWhole || window.weight(0, j + i * 4) != 0 ? gate : 0;
        high[i] = __float_as_uint(g) & 0xffffe000u;
        low[i] = __float_as_uint(g - __uint_as_float(high[i]));
      }
      mma_m16n8k8_tf32(x[n], weights, high, x[n]);
      mma_m16n8k8_tf32(x[n], weights, low, x[n]);
    }
  }
}

// Prepares columns [slab * 64, slab * 64 + 64) of a packet from the rows of a sub-chunk, by one
// warp. Returns whether the gates are too strong for one packet; then it holds nothing of use.
template <bool kWhole, class Tiling>
__device__ __forceinline__ bool prepare(Packet<Tiling>& packet,
                                        const typename Tiling::T* q_smem,  // [16][pitch]
                                        const typename Tiling::T* k_smem,
                                        const typename Tiling::T* g_smem,
                                        const float* h_before, int pitch, int slab,
                                        Window window) {
  constexpr int kTiles = Tiling::kSlab / 8;
  const int lane = threadIdx.x % kWarp;
  const int row = lane / 4, pair = lane % 4 * 2;
  const int column = slab * Tiling::kSlab;
  q_smem += column;
  k_smem += column;
  g_smem += column;

  float x[kTiles][4];
  centered_gates<kWhole>(x, g_smem, pitch, window);
  if constexpr (kWhole) {
    // The first row has the largest x, -h. A NaN, from an infinite gate, is no mild one either.
    bool mild = true;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) mild = mild && x[n][0] <= kMildest && x[n][1] <= kMildest;
    if (!__all_sync(kFullWarp, mild)) return true;
  }

  float scores[2][4] = {};
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    float decay[4], grow[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      decay[i] = exp2_approx(x[n][i]);
      grow[i] = exp2_approx(-x[n][i]);
    }
    if constexpr (!kWhole) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool inside = window.contains(row + i / 2 * 8);
        decay[i] = inside ? decay[i] : 0;
        grow[i] = inside ? grow[i] : 0;
      }
    }
    const int offset = row * pitch + n * 8 + pair;
    const float2 k0 = load_pair(k_smem + offset), k1 = load_pair(k_smem + offset + 8 * pitch);
    const float k[4] = {k0.x * grow[0], k0.y * grow[1], k1.x * grow[2], k1.y * grow[3]};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int e = column + n * 8 + pair;
      const uint32_t high = pack_bf16(k[2 * i], k[2 * i + 1]);
      const uint32_t low = pack_remainder(k[2 * i], k[2 * i + 1], high);
      *reinterpret_cast<uint32_t*>(&packet.k_high[row + i * 8][e]) = high;
      *reinterpret_cast<uint32_t*>(&packet.k_low[row + i * 8][e]) = low;
    }
    const float2 q0 = load_pair(q_smem + offset), q1 = load_pair(q_smem + offset + 8 * pitch);
    const uint32_t q[4] = {__float_as_uint(q0.x * decay[0]), __float_as_uint(q1.x * decay[2]),
                           __float_as_uint(q0.y * decay[1]), __float_as_uint(q1.y * decay[3])};
    packet.q[column / 8 + n][lane] = {q[0], q[1], q[2], q[3]};
    mma_m16n8k8_tf32(scores[0], q, {__float_as_uint(k[0]), __float_as_uint(k[1])}, scores[0]);
    mma_m16n8k8_tf32(scores[1], q, {__float_as_uint(k[2]), __float_as_uint(k[3])}, scores[1]);
  }
  {
    // Only keys up to the query's own row count.
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (pair + i % 2 + tile * 8 > row + i / 2 * 8) scores[tile][i] = 0;
      }
    }
    uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float s0 = scores[i / 2][i % 2 * 2], s1 = scores[i / 2][i % 2 * 2 + 1];
      high[i] = pack_bf16(s0, s1);
      low[i] = pack_remainder(s0, s1, high[i]);
    }
    packet.scores[slab][0][lane] = {high[0], high[1], high[2], high[3]};
    packet.scores[slab][1][lane] = {low[0], low[1], low[2], low[3]};
  }

  // The last row has x = h.
  if (row == 7) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      *reinterpret_cast<float2*>(&packet.h[column + n * 8 + pair]) = {x[n][2], x[n][3]};
    }
  }
  // h is written before other lanes read it, and the warp of the next sub-chunk.
  if (window.first == 0) {
    named_barrier_sync(kPrepared, Tiling::kPrepareWarps * kWarp);
  } else {
    __syncwarp();
  }
  // The state comes in through the first row's gate; an empty window leaves it as it is.
#pragma unroll
  for (int i = 0; i < Tiling::kSlab; i += kWarp) {
    const int e = column + i + lane;
    const float h = packet.h[e];
    const float gate = window.first < kSubChunk ? float(g_smem[window.first * pitch + i + lane]) : 0;
    const float in = fmaf(gate, kLog2e, h);
    packet.out[e] = exp2_approx(h);
    packet.in[e] = exp2_approx(in);
    packet.decay[e] = exp2_approx(in + h_before[e]);
  }
  return false;
}

// The longest window from row `first` on in which no column of the slab decays too much. Empty if
// first is 16. A gate that is too strong by itself begins a window, where it decays only the state.
template <class Tiling>
__device__ __forceinline__ Window find_window(const typename Tiling::T* g_smem, int pitch, int slab,
                                              int first) {
  constexpr int kPairs = Tiling::kSlab / 2;
  const int column = slab * Tiling::kSlab + threadIdx.x % kPairs * 2;
  constexpr float kStrongest = -2 * kMildest / kLog2e;
  Window window{first, first};
  float c0 = 0, c1 = 0;
  for (int row = first + 1; row < kSubChunk; ++row) {
    const float2 gate = load_pair(g_smem + row * pitch + column);
    c0 += gate.x;
    c1 += gate.y;
    const bool mild = c0 >= kStrongest && c1 >= kStrongest;
    if (!__all_sync(kFullWarp, mild)) break;
    window.last = row;
  }
  return window;
}

}  // namespace attn::chunked_gla
