// The rows of r, k, w and v that a block of the chunked kernel fetches, and the bonus.
#pragma once

#include <cuda_runtime.h>

#include "06_rwkv6/chunked_block.cuh"
#include "06_rwkv6/chunked_load.cuh"
#include "common/ptx/cp_async.cuh"

namespace attn::rwkv6 {

// [doc:block_rows]
// Sends for the rows of one sub-chunk after the other, by kThreads threads. Rows after the block's
// last are zeros.
template <class Tiling, int kThreads>
class BlockRows {
  using T = typename Tiling::T;
  static constexpr int kSubChunks = Tiling::kSubChunks, kSlots = Tiling::kSlots;

 public:
  __device__ __forceinline__ BlockRows(const Block<Tiling>& block, int thread)
      : block_(block),
        r_(block.x.r, block.b, block.h, block.begin, 0, thread),
        k_(block.x.k, block.b, block.h, block.begin, 0, thread),
        w_(block.x.w, block.b, block.h, block.begin, 0, thread),
        v_(block.x.v, block.b, block.h, block.begin, block.m0, thread),
        rows_(block.end - block.begin) {}

  // Sub-chunk `sub` of the next round: a group of copies.
  __device__ __forceinline__ void load(int sub, bool aligned) {
    auto& smem = block_.smem;
    const int row = sub * kSubChunk;
    if (aligned) {
      r_.load(smem.r[slot_] + row, rows_ - row);
      k_.load(smem.k[slot_] + row, rows_ - row);
      w_.load(smem.w[slot_] + row, rows_ - row);
      v_.load(smem.v[v_slot_] + row, rows_ - row);
    } else {
      r_.load_elements(smem.r[slot_] + row, rows_ - row);
      k_.load_elements(smem.k[slot_] + row, rows_ - row);
      w_.load_elements(smem.w[slot_] + row, rows_ - row);
      v_.load_elements(smem.v[v_slot_] + row, rows_ - row);
    }
    cp_async_commit();
    if (sub < kSubChunks - 1) return;
    rows_ -= Tiling::kRows;
    slot_ = slot_ < kSlots - 1 ? slot_ + 1 : 0;
    v_slot_ = v_slot_ < kSlots ? v_slot_ + 1 : 0;
  }
  // The next round.
  __device__ __forceinline__ void load_round() {
#pragma unroll
    for (int sub = 0; sub < kSubChunks; ++sub) load(sub, block_.aligned);
  }

  // Waits for all rows but those of the latest rounds, of which kMissing sub-chunks are still to be
  // sent for.
  template <int kRounds, int kMissing = 0>
  __device__ __forceinline__ void wait() const {
    cp_async_wait<kRounds * kSubChunks - kMissing>();
  }

 private:
  const Block<Tiling>& block_;
  RowLoader<T, kSubChunk, Tiling::kE, kThreads> r_, k_, w_;
  RowLoader<T, kSubChunk, Tiling::kM, kThreads> v_;
  int rows_;  // from the next round on
  int slot_ = 0, v_slot_ = 0;
};
// [/doc:block_rows]

// Fetches the bonus, by the threads that have no rows to send for.
template <class Tiling>
__device__ __forceinline__ void load_bonus(const Block<Tiling>& block, int thread, int threads) {
  const auto& u = block.x.u;
  for (int e = thread; e < Tiling::kE; e += threads) {
    block.smem.u[e] = e < u.D ? float(u.row(0, block.h, 0)[e]) : 0;
  }
}

}  // namespace attn::rwkv6
