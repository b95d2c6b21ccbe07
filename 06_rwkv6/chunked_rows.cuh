// The rows of r, k, w and v that a block of the chunked kernel fetches, and the bonus.
#pragma once

#include <cuda_runtime.h>

#include "06_rwkv6/chunked_block.cuh"
#include "06_rwkv6/chunked_load.cuh"
#include "common/ptx/cp_async.cuh"

namespace attn::rwkv6 {

// [doc:block_rows]
// Sends for the rows of a sub-chunk after the other, by kThreads threads.
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
        v_(block.x.v, block.b, block.h, block.begin, block.m0, thread) {}

  // To be called for one after the other. Each call is a group of copies.
  __device__ __forceinline__ void load(int round, int sub) {
    if (round < block_.rounds) {
      auto& smem = block_.smem;
      const int slot = round % kSlots, v_slot = round % (kSlots + 1), row = sub * kSubChunk;
      const int rows = block_.end - block_.begin - round * Tiling::kRows - row;
      if (block_.aligned) {
        r_.load(smem.r[slot] + row, rows);
        k_.load(smem.k[slot] + row, rows);
        w_.load(smem.w[slot] + row, rows);
        v_.load(smem.v[v_slot] + row, rows);
      } else {
        r_.load_elements(smem.r[slot] + row, rows);
        k_.load_elements(smem.k[slot] + row, rows);
        w_.load_elements(smem.w[slot] + row, rows);
        v_.load_elements(smem.v[v_slot] + row, rows);
      }
    }
    cp_async_commit();
  }
  __device__ __forceinline__ void load(int round) {
#pragma unroll
    for (int sub = 0; sub < kSubChunks; ++sub) load(round, sub);
  }

  // Waits for all rows but those of the latest rounds, less the `latest` sub-chunks that are still to
  // be sent for.
  template <int kRounds, int kMissing = 0>
  __device__ __forceinline__ void wait() const {
    cp_async_wait<kRounds * kSubChunks - kMissing>();
  }

 private:
  const Block<Tiling>& block_;
  RowLoader<T, kSubChunk, Tiling::kE, kThreads> r_, k_, w_;
  RowLoader<T, kSubChunk, Tiling::kM, kThreads> v_;
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
