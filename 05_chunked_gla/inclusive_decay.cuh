// How gates become packets of the engine (common/chunked/preparing_warp.cuh): a row reads the state
// after its own gate, and its own write. So reads and writes stand at one sum.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "common/chunked/preparing_warp.cuh"
#include "common/chunked/resets.cuh"
#include "common/mma_operands.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/swizzled_rows.cuh"
#include "common/warp.cuh"

namespace attn::chunked_gla {

// [doc:centred_gates]
struct InclusiveDecay {
  static constexpr bool kExclusive = false;
  // Rows of gates as the published models have them, logsigmoid(N(0, 1)) / 16, leave nothing of a
  // state in a float.
  static constexpr int kRemembered = 1800;

  // Sums of the 16 gates of each column, as products of fixed matrices and the gates: of rows `row`
  // and row + 8 of two such matrices,
  //   centred = c_i - h, which takes half of each gate after the first, - from row i on;
  //   edges = h, in rows 0 to 7, and h + g_0, in rows 8 to 15.
  template <int kTiles>
  struct Sums {
    float centred[kTiles][4], edges[kTiles][4];

    __device__ __forceinline__ float read(int n, int i) const { return centred[n][i]; }
    __device__ __forceinline__ float write(int n, int i) const { return centred[n][i]; }
    __device__ __forceinline__ float begin(int n, int j) const { return edges[n][2 + j]; }
    __device__ __forceinline__ float end(int n, int j) const { return edges[n][j]; }
  };

  template <int kTiles, bool kWithoutResets, int kWidth>
  static __device__ __forceinline__ Sums<kTiles> sums(
      const SwizzledRows<const __nv_bfloat16, kWidth>& gates) {
    const int lane = threadIdx.x % kWarp;
    const int row = lane / 4, pair = lane % 4 * 2;
    uint32_t centred[4], edge[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row + i % 2 * 8, j = pair + i / 2 * 8;
      centred[i] = pack_high(centred_weight(r, j), centred_weight(r, j + 1));
      edge[i] = pack_high(edge_weight(r, j), edge_weight(r, j + 1));
    }
    Sums<kTiles> sums;
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t g[4];
      ldmatrix_trans(g, gates.at(lane % 16, lane / 16 * 8 + n * 8));
      if constexpr (kWithoutResets) {
#pragma unroll
        for (int i = 0; i < 4; ++i) g[i] = chunked::without_resets(g[i]);
      }
      const float zero[4] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        mma_m16n8k16(sums.centred[n + i], centred, {g[2 * i], g[2 * i + 1]}, zero);
        mma_m16n8k16(sums.edges[n + i], edge, {g[2 * i], g[2 * i + 1]}, zero);
      }
    }
    return sums;
  }

  // The same of float gates: here each gate is the sum of two tf32.
  template <int kTiles, bool kWithoutResets, int kWidth>
  static __device__ __forceinline__ Sums<kTiles> sums(
      const SwizzledRows<const float, kWidth>& gates) {
    const int lane = threadIdx.x % kWarp;
    const int group = lane / 4, column = lane % 4;
    Sums<kTiles> sums = {};
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
        const float* g[2] = {gates.at(j, n * 8 + group), gates.at(j + 4, n * 8 + group)};
        const float g0 = kWithoutResets ? chunked::without_reset(*g[0]) : *g[0];
        const float g1 = kWithoutResets ? chunked::without_reset(*g[1]) : *g[1];
        add_product_of_floats(sums.centred[n], centred, g0, g1);
        add_product_of_floats(sums.edges[n], edge, g0, g1);
      }
    }
    return sums;
  }

 private:
  static __device__ __forceinline__ float centred_weight(int i, int j) {
    return j == 0 ? 0.0f : j <= i ? 0.5f : -0.5f;
  }
  static __device__ __forceinline__ float edge_weight(int i, int j) {
    return j > 0 ? 0.5f : i < 8 ? 0.0f : 1.0f;
  }
};
// [/doc:centred_gates]

}  // namespace attn::chunked_gla
