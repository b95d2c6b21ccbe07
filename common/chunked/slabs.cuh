// Preparing warps that share a sub-chunk of 16 rows, each with a slab of its columns, in blocks whose
// other warps have other jobs: how they meet, and add up their parts of the scores.
#pragma once

#include <cuda_runtime.h>

#include "common/ptx/role_barriers.cuh"
#include "common/warp.cuh"

namespace attn::chunked {

// Each sub-chunk has a named barrier, from this one on; barrier 1 is the block's.
constexpr int kFirstSlabBarrier = 2;

// Those of all slabs but the first arrive, the first waits; the warps with other jobs call this while
// they may (ptx/role_barriers.cuh). preparing: whether there is a sub-chunk to prepare.
template <int kSlabs>
__device__ __forceinline__ void while_slabs_meet(bool preparing) {
  if (kSlabs > 1 && preparing) while_others_arrive();
}

// Adds up the scores of all slabs of sub-chunk `sub`, accumulators of 16 rows and 16 keys. `parts`
// has room for those of each slab but the first. Returns whether the warp has the sums: the first
// slab's does.
template <int kSlabs, int kSpace>
__device__ __forceinline__ bool sum_over_slabs(uint4 (&parts)[kSpace][kWarp], float (&scores)[2][4],
                                               int slab, int sub) {
  if constexpr (kSlabs > 1) {
    static_assert(kSpace >= 2 * (kSlabs - 1));
    const int lane = threadIdx.x % kWarp;
    if (slab > 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        parts[2 * (slab - 1) + i][lane] = {
            __float_as_uint(scores[i][0]), __float_as_uint(scores[i][1]),
            __float_as_uint(scores[i][2]), __float_as_uint(scores[i][3])};
      }
      arrive(kFirstSlabBarrier + sub, kSlabs * kWarp);
      return false;
    }
    wait_for_arrivals(kFirstSlabBarrier + sub,
                      kSlabs * kWarp);  // the other slabs' scores are there
#pragma unroll
    for (int part = 0; part < 2 * (kSlabs - 1); ++part) {
      const uint4 more = parts[part][lane];
      float(&sum)[4] = scores[part % 2];
      sum[0] += __uint_as_float(more.x);
      sum[1] += __uint_as_float(more.y);
      sum[2] += __uint_as_float(more.z);
      sum[3] += __uint_as_float(more.w);
    }
  }
  return true;
}

}  // namespace attn::chunked
