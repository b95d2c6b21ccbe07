// The warps of a block that only fetch rows, where preparing warps and state warps do the rest.
#pragma once

#include <cuda_runtime.h>

#include "common/slabs.cuh"

namespace attn {

// What a preparing warp has in place of Rows if loading warps fetch the rows.
struct NoRows {
  template <class Block>
  __device__ __forceinline__ NoRows(const Block&, int) {}
  __device__ __forceinline__ void begin() const {}
  __device__ __forceinline__ void wait() const {}
  __device__ __forceinline__ void load(int) const {}
};

// [doc:loading_warp]
// A warp that only fetches rows, for blocks with few warps. A copy of 32 times 16 bytes keeps the
// load unit for some ten cycles, and the warp that asks for it as long: here it is one that has
// nothing else to do.
template <class Tiling, class Rows, class Block>
class LoadingWarp {
 public:
  __device__ __forceinline__ explicit LoadingWarp(const Block& block)
      : block_(block), rows_(block, threadIdx.x - kBefore * 32) {}

  // The barriers, and what they order, are those of the stage's PreparingWarp::run().
  __device__ __forceinline__ void run() {
    rows_.begin();
#pragma unroll 1
    for (int round = -1; round < block_.rounds; ++round) {
      rows_.wait();
      block_.meet();
      rows_.load(round + Tiling::kSlots);
      while_slabs_meet<Tiling::kSlabs>(round + 1 < block_.rounds);
    }
  }

 private:
  static constexpr int kBefore = Tiling::kStateWarps + Tiling::kPrepareWarps;
  const Block& block_;
  Rows rows_;
};
// [/doc:loading_warp]

}  // namespace attn
