// The lanes of a warp, and sums across them that more than one kernel needs.
#pragma once

#include <cuda_runtime.h>

namespace attn {

constexpr int kWarp = 32;  // lanes
constexpr unsigned kFullWarp = 0xffffffffu;

// Sums the first kValues elements of x over groups of kLanes neighbouring lanes and shares out the
// sums: every level hands half of the values to the partner lane, so it takes about kValues
// shuffles in all, where a butterfly per value would take kValues * log2(kLanes).
//
// Both counts are powers of two. After it, x[0 .. kValues / kLanes) of lane i of a group holds the
// sums of the values from i * kValues / kLanes on; where there are fewer values than lanes, x[0]
// holds value i / (kLanes / kValues). All lanes of the warp must call it. kStride: the lanes of a
// group are not neighbours but so far apart; `lane` counts them 0, 1, 2, ... all the same.
// [doc:reduce_scatter]
template <int kLanes, int kValues, int kStride = 1, int kSize>
__device__ __forceinline__ void reduce_scatter(float (&x)[kSize], int lane) {
  if constexpr (kLanes > 1) {
    constexpr int kDistance = kLanes / 2;
    if constexpr (kValues > 1) {
      constexpr int kHalf = kValues / 2;
      const bool upper = lane & kDistance;
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        const float keep = upper ? x[i + kHalf] : x[i];
        const float give = upper ? x[i] : x[i + kHalf];
        x[i] = keep + __shfl_xor_sync(kFullWarp, give, kDistance * kStride);
      }
      reduce_scatter<kDistance, kHalf, kStride>(x, lane);
    } else {
      x[0] += __shfl_xor_sync(kFullWarp, x[0], kDistance * kStride);
      reduce_scatter<kDistance, 1, kStride>(x, lane);
    }
  }
}
// [/doc:reduce_scatter]

}  // namespace attn
