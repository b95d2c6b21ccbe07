// Resets: decays so strong that nothing is left of a state in a float, such as -inf. A sub-chunk with
// some of them, and else mild decays, is prepared as if they were not there; then what would reach
// across one is left out.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "common/pairs.cuh"
#include "common/ptx/exp2.cuh"
#include "common/warp.cuh"

namespace attn::chunked {

constexpr float kReset = -126 / kLog2e;  // below it, exp2_approx gives 0

__device__ __forceinline__ float without_reset(float decay) { return decay < kReset ? 0 : decay; }
__device__ __forceinline__ uint32_t without_resets(uint32_t decays) {
  const float2 pair = to_floats(decays);
  return (pair.x < kReset ? 0 : decays & 0xffffu) | (pair.y < kReset ? 0 : decays & 0xffff0000u);
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
    // Bit 4r of an upper or a lower half is row r.
    const uint32_t rows = 0x11111111u, before = rows & ((1u << 4 * row) - 1),
                   through = before | 1u << 4 * row;
    const float2 upper = to_floats(load_pair(decay_rows.at(row, pair)));
    const float2 lower = to_floats(load_pair(decay_rows.at(row + 8, pair)));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const bool in_upper = (j == 0 ? upper.x : upper.y) < kReset;
      const bool in_lower = (j == 0 ? lower.x : lower.y) < kReset;
      const uint32_t upper_bits = __ballot_sync(kFullWarp, in_upper) >> lane % 4 & rows;
      const uint32_t lower_bits = __ballot_sync(kFullWarp, in_lower) >> lane % 4 & rows;
      const int in_upper_half = __popc(upper_bits);
      write_run[j] = __popc(upper_bits & through);
      write_run[2 + j] = in_upper_half + __popc(lower_bits & through);
      read_run[j] = kExclusive ? __popc(upper_bits & before) : write_run[j];
      read_run[2 + j] = kExclusive ? in_upper_half + __popc(lower_bits & before) : write_run[2 + j];
      all[j] = in_upper_half + __popc(lower_bits);
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
};
// [/doc:resets]

}  // namespace attn::chunked
