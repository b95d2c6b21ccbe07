// How decays become packets of the engine (common/chunked/preparing_warp.cuh): a row reads the state
// before its own decay, and its own write through the bonus alone. So a read stands one decay before
// the write of its row: what stage 05 has at one sum is at two here.
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

namespace attn::rwkv6 {

// [doc:centred_decays]
struct ExclusiveDecay {
  static constexpr bool kExclusive = true;
  // Rows of decays of -exp(N(0, 1)) leave nothing of a state in a float.
  static constexpr int kRemembered = 100;

  // [doc:exclusive_sums]
  // Sums of the 16 decays of each column: products of three matrices of +-1/2 with the decays. h is
  // half of all of them; `before` is the sum of those before row i, - h; `through` is up to and
  // including row i's own, - h.
  template <int kTiles>
  struct Sums {
    float before[kTiles][4], through[kTiles][4], h[kTiles][4];

    __device__ __forceinline__ float read(int n, int i) const { return before[n][i]; }
    __device__ __forceinline__ float write(int n, int i) const { return through[n][i]; }
    __device__ __forceinline__ float begin(int n, int j) const { return h[n][j]; }
    __device__ __forceinline__ float end(int n, int j) const { return h[n][j]; }
  };
  // [/doc:exclusive_sums]

  template <int kTiles, bool kWithoutResets, int kWidth>
  static __device__ __forceinline__ Sums<kTiles> sums(
      const SwizzledRows<const __nv_bfloat16, kWidth>& decays) {
    constexpr uint32_t kHalf = 0x3f003f00u, kSigns = 0x80008000u;  // a pair of bf16: 1/2; minus it
    const int lane = threadIdx.x % kWarp;
    const int row = lane / 4, pair = lane % 4 * 2;
    // Of the 8 x 8 quarters of a matrix two lie on the diagonal, and are the same.
    const uint32_t before =
        kHalf | (pair >= row ? 0x8000u : 0) | (pair + 1 >= row ? 0x80000000u : 0);
    const uint32_t through =
        kHalf | (pair > row ? 0x8000u : 0) | (pair + 1 > row ? 0x80000000u : 0);
    const float zero[4] = {};
    Sums<kTiles> sums;
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t w[4];
      ldmatrix_trans(w, decays.at(lane % 16, n * 8 + lane / 16 * 8));
      if constexpr (kWithoutResets) {
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = chunked::without_resets(w[i]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t w_n[2] = {w[2 * i], w[2 * i + 1]};
        mma_m16n8k16(sums.h[n + i], {kHalf, kHalf, kHalf, kHalf}, w_n, zero);
        mma_m16n8k16(sums.before[n + i], {before, kHalf, kHalf | kSigns, before}, w_n, zero);
        mma_m16n8k16(sums.through[n + i], {through, kHalf, kHalf | kSigns, through}, w_n, zero);
      }
    }
    return sums;
  }

  // The same of float decays: here each is the sum of two tf32, and its own decay is taken from a row
  // by subtraction.
  template <int kTiles, bool kWithoutResets, int kWidth>
  static __device__ __forceinline__ Sums<kTiles> sums(
      const SwizzledRows<const float, kWidth>& decays) {
    const int lane = threadIdx.x % kWarp;
    const int row = lane / 4, column = lane % 4;
    Sums<kTiles> sums = {};
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
        const float* w[2] = {decays.at(j, n * 8 + row), decays.at(j + 4, n * 8 + row)};
        const float w0 = kWithoutResets ? chunked::without_reset(*w[0]) : *w[0];
        const float w1 = kWithoutResets ? chunked::without_reset(*w[1]) : *w[1];
        add_product_of_floats(sums.h[n], halves, w0, w1);
        add_product_of_floats(sums.through[n], weights, w0, w1);
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float own = *decays.at(row + i / 2 * 8, n * 8 + column * 2 + i % 2);
        sums.before[n][i] =
            sums.through[n][i] - (kWithoutResets ? chunked::without_reset(own) : own);
      }
    }
    return sums;
  }
};
// [/doc:centred_decays]

}  // namespace attn::rwkv6
