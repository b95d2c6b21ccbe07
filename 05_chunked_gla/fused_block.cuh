// What the two kinds of warps of the fused kernel share: how a block is cut, its place in the
// problem, its shared memory, and the packet, in which one sub-chunk goes from the warps that
// prepare it to the warps that own the state.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "05_chunked_gla/operands.cuh"
#include "05_chunked_gla/segments.cuh"
#include "common/pairs.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/role_barriers.cuh"
#include "common/slabs.cuh"
#include "common/swizzled_rows.cuh"
#include "common/warp.cuh"

namespace attn::chunked_gla {

constexpr int kSubChunk = 16;                  // rows of an mma.sync tile
constexpr int kQ = 0, kK = 1, kG = 2, kV = 3;  // the tensors that are read

// [doc:tiling]
// How a block divides its head.
template <class T_, int kE_, int kWarpColumns_, int kColumnWarps_, int kParts_, int kSubChunks_,
          int kSlots_, int kSlab_, int kLoadWarps_, int kBlocks_>
struct Tiling {
  using T = T_;
  static constexpr int kE = kE_;                      // head size of q and k, padded with zeros
  static constexpr int kWarpColumns = kWarpColumns_;  // value columns of one state warp
  static constexpr int kColumnWarps = kColumnWarps_;  // state warps side by side
  static constexpr int kParts = kParts_;              // of kE, each with state warps of its own
  static constexpr int kSubChunks = kSubChunks_;  // in a round, between two barriers of the block
  static constexpr int kSlots = kSlots_;          // buffers for the rows of a round
  static constexpr int kSlab = kSlab_;            // columns of q, k and g of one preparing warp
  static constexpr int kLoadWarps = kLoadWarps_;  // that only fetch rows; 0: preparing warps do
  static constexpr int kBlocks = kBlocks_;        // side by side on one multiprocessor

  static constexpr int kM = kColumnWarps * kWarpColumns;  // value columns of the block
  static constexpr int kStateWarps = kParts * kColumnWarps;
  static constexpr int kRows = kSubChunks * kSubChunk;  // of a round
  static constexpr int kSlabs = kE / kSlab;
  static constexpr int kPrepareWarps = kSubChunks * kSlabs;
  static constexpr int kThreads = (kStateWarps + kPrepareWarps + kLoadWarps) * kWarp;

  // Of a packet: 16 bytes more than a row has, so that eight rows begin in different banks.
  static constexpr int kPitch = kE + 8;

  // Whether packets may be in fp16. At 256 there are no registers for two ways to take them.
  static constexpr bool kFp16 = sizeof(T) == 2 && kE <= 128;

  // Rows as they come.
  using Rows = SwizzledRows<const T, kE>;
  using ValueRows = SwizzledRows<const T, kM>;

  static_assert(kE % kSlab == 0 && kSlab % kWarp == 0, "lanes take whole pairs of columns");
  static_assert(kWarpColumns % kSubChunk == 0, "S transposed is made of mma.sync tiles");
  static_assert(kFirstSlabBarrier + kSubChunks + kColumnWarps <= 16, "a block has 16 barriers");
  static_assert(kParts == 1 || kParts == 2, "each of two parts adds up half of the outputs");
};
// [/doc:tiling]

// [doc:packet]
// One sub-chunk, prepared. With G_i the sum of its gates from the first row's up to row i:
template <class Tiling>
struct Packet {
  // q_i exp(G_i), for tf32, as A fragments of mma_m16n8k8_tf32: a step of 8 columns is one 16-byte
  // read per lane. A lane has columns 2t and 2t + 1 where mma.cuh says t and t + 4; S comes in the
  // same order.
  uint4 q[Tiling::kE / 8][kWarp];
  // k_j exp(G_last - G_j), two columns to a word: of slabs `in_fp16` as fp16 in k_high; of others as
  // the sum of two bf16.
  alignas(16) uint32_t k_high[kSubChunk][Tiling::kPitch / 2];
  alignas(16) uint32_t k_low[kSubChunk][Tiling::kPitch / 2];
  // The scores q_i . exp(G_i - G_j) k_j, j <= i, as the sum of two bf16: A fragments of
  // mma_m16n8k16. Before that, those of each slab but the first, as accumulators.
  static constexpr int kOtherSlabs = Tiling::kSlabs > 1 ? Tiling::kSlabs - 1 : 1;
  uint4 scores[2 * kOtherSlabs][kWarp];
  // exp(G_last): for each lane % 4 = t columns 2t and 2t + 1 of every eight, side by side. The last
  // is not used, so that the four begin in different banks.
  float4 decay[4][Tiling::kE / 16 + 1];
  // Of each slab. If it is so of all, the rows of v may be taken as fp16, too.
  bool in_fp16[Tiling::kSlabs];
};
// [/doc:packet]

template <class Tiling>
struct SharedStorage {
  using T = typename Tiling::T;
  // Rows as they lie in memory. Of q, k and g (kQ, kK, kG) those to be prepared and those on their
  // way; of v one round more, since it is used when its packets are.
  alignas(128) T qkg[3][Tiling::kSlots][Tiling::kRows][Tiling::kE];
  alignas(128) T v[Tiling::kSlots + 1][Tiling::kRows][Tiling::kM];
  Packet<Tiling> packets[2][Tiling::kSubChunks];
  // What a state warp has of the outputs that the warp with the other part of E adds up; of two
  // sub-chunks in turn.
  float4 sums[2][Tiling::kStateWarps][Tiling::kWarpColumns / 16][Tiling::kParts > 1 ? kWarp : 1];
};

// A block's place in the problem.
template <class Tiling>
struct Block {
  const GlaOperands<typename Tiling::T>& x;
  const Segments& segments;
  SharedStorage<Tiling>& smem;
  bool aligned;  // every row of every operand begins on 16 bytes and holds whole 16 bytes
  int64_t b, h;  // the head
  int segment;
  int m0;          // the first value column
  int begin, end;  // rows
  int rounds;

  __device__ __forceinline__ int64_t head() const { return b * x.k.H + h; }
  __device__ __forceinline__ int first_row(int round) const {
    return begin + round * Tiling::kRows;
  }

  // [doc:meet]
  // All warps of the block meet, from the different loops of their jobs.
  __device__ __forceinline__ void meet() const { meet_all(Tiling::kThreads); }
  // [/doc:meet]

  // The state warps of the same columns.
  __device__ __forceinline__ void meet_parts(int column_warp) const {
    constexpr int kFirst = kFirstSlabBarrier + Tiling::kSubChunks;
    meet_some(kFirst + column_warp, Tiling::kParts * kWarp);
  }
};

}  // namespace attn::chunked_gla
