// Whether writes and values, which are bf16, have a size that fp16 holds: up to 65504, and not so small
// that 2^-25, the most that fp16 is off below 2^-14, would be something beside them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "common/pairs.cuh"
#include "common/ptx/fma_bf16.cuh"
#include "common/warp.cuh"

namespace attn::chunked {

// [doc:sum_of_squares]
// The size of some 16 or 32 numbers by the sum of their squares: in two parts, of even and of odd
// columns.
class SumOfSquares {
 public:
  __device__ __forceinline__ void add(uint32_t x, uint32_t y) {
    parts_ = fma_bf16x2(x, x, fma_bf16x2(y, y, parts_));
  }
  __device__ __forceinline__ void add(uint4 words) {
    add(words.z, words.w);
    add(words.x, words.y);
  }

  // None is over 2^15.5; and 2^-25 for each of them is 2^-12 of their length, as much as fp16 is off
  // above 2^-14. Zeros do not suit, from which numbers below 2^-67 could not be told.
  __device__ __forceinline__ bool suits_fp16() const {
    constexpr float kLeast = 0x1p-20f, kMost = 0x1p31f;
    const float2 parts = to_floats(parts_);
    const float sum = parts.x + parts.y;
    return sum >= kLeast && sum <= kMost;
  }

 private:
  uint32_t parts_ = 0;
};
// [/doc:sum_of_squares]

// [doc:fp16_range]
// What a lane finds of a slab's writes, of kTiles tiles, and of its warp's share of the sub-chunk's
// values, of kValues columns, which kSlabs warps share.
template <int kTiles, int kSlabs, int kValues>
class Fp16Range {
 public:
  // Looks at the writes of tile n, and at a piece of the values, in whatever order they lie there.
  __device__ __forceinline__ void look_at(const uint32_t (&writes)[2], const __nv_bfloat16* values,
                                          int n, int slab) {
    writes_.add(writes[0], writes[1]);
    constexpr int kPieces = 16 * kValues / 8 / (kSlabs * kWarp);  // of 16 bytes
    constexpr int kTilesPerPiece = kTiles / kPieces;
    static_assert(kTilesPerPiece * kPieces == kTiles);
    if (n % kTilesPerPiece > 0) return;
    const int piece = (n / kTilesPerPiece * kSlabs + slab) * kWarp + threadIdx.x % kWarp;
    const uint4 words = reinterpret_cast<const uint4*>(values)[piece];
    values_.add(words);
  }
  __device__ __forceinline__ bool suits() const {
    return writes_.suits_fp16() && values_.suits_fp16();
  }

 private:
  SumOfSquares writes_, values_;
};
// [/doc:fp16_range]

}  // namespace attn::chunked
