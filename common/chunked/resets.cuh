// Resets: decays so strong that nothing is left of a state in a float, such as -inf. A sub-chunk with
// some of them, and else mild decays, is prepared as if they were not there; then what would reach
// across one is left out.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "common/pairs.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/max_bf16.cuh"
#include "common/warp.cuh"

namespace attn::chunked {

constexpr float kReset = -126 / kLog2e;  // below it, exp2_approx gives 0

__device__ __forceinline__ float without_reset(float decay) { return decay < kReset ? 0 : decay; }
__device__ __forceinline__ uint32_t without_resets(uint32_t decays) {
  const float2 pair = to_floats(decays);
  return (pair.x < kReset ? 0 : decays & 0xffffu) | (pair.y < kReset ? 0 : decays & 0xffff0000u);
}

// Decays of -inf become the lowest finite numbers, which decay as much: nothing is left. They are
// multiplied with zeros, too, and must not make NaN of them.
__device__ __forceinline__ uint32_t finite(uint32_t decays) {
  return max_bf16x2(decays, 0xff7fff7fu);
}
__device__ __forceinline__ float2 finite(float2 decays) {
  constexpr float kLowest = -3e38f;
  return {decays.x < kLowest ? kLowest : decays.x, decays.y < kLowest ? kLowest : decays.y};
}

// [doc:resets]
// The resets of eight columns in 16 rows, at the places of mma.sync's accumulators: which run of rows
// without a reset between them row i's read sees, and which its write belongs to.
template <bool kExclusive>
struct Resets {
  int read_run[4], write_run[4];
  int all[2];  // resets of the lane's two columns

  template <class Rows>
  __device__ __forceinline__ explicit Resets(const Rows& decay_rows) {
    const int lane = threadIdx.x % kWarp, row = lane / 4, pair = lane % 4 * 2;
    const float2 upper = to_floats(load_pair(decay_rows.at(row, pair)));
    const float2 lower = to_floats(load_pair(decay_rows.at(row + 8, pair)));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const bool in_upper = (j == 0 ? upper.x : upper.y) < kReset;
      const bool in_lower = (j == 0 ? lower.x : lower.y) < kReset;
      const uint32_t upper_runs = runs(in_upper), lower_runs = runs(in_lower);
      const int in_upper_half = upper_runs >> 28;
      write_run[j] = upper_runs >> 4 * row & 15;
      write_run[2 + j] = in_upper_half + (lower_runs >> 4 * row & 15);
      read_run[j] = write_run[j] - (kExclusive && in_upper);
      read_run[2 + j] = write_run[2 + j] - (kExclusive && in_lower);
      all[j] = in_upper_half + (lower_runs >> 28);
    }
  }

  __device__ __forceinline__ bool has(int run) const { return run <= all[0] || run <= all[1]; }

  // Only the first run's reads reach back to the sub-chunk's beginning, only the last run's writes to
  // its end.
  __device__ __forceinline__ void cut(float (&read)[4], float (&write)[4],
                                      float (&decay)[2]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (read_run[i] > 0) read[i] = 0;
      if (write_run[i] < all[i % 2]) write[i] = 0;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (all[j] > 0) decay[j] = 0;
    }
  }

 private:
  // Of eight rows of the lane's column, four bits each: the resets up to and including the row.
  static __device__ __forceinline__ uint32_t runs(bool reset) {
    const uint32_t resets = __ballot_sync(kFullWarp, reset) >> threadIdx.x % 4 & 0x11111111u;
    return resets * 0x11111111u;
  }
};
// [/doc:resets]

}  // namespace attn::chunked
