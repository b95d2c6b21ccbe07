// What the kinds of warps of a block share: its place in the problem, its shared memory, and the
// packet, in which one sub-chunk goes from the warps that prepare it to the warps that own the state.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "common/chunked/segments.cuh"
#include "common/chunked/tiling.cuh"
#include "common/chunked/walk.cuh"
#include "common/ptx/role_barriers.cuh"

namespace attn::chunked {

// [doc:packet]
// One sub-chunk, prepared: all that the state warps need of its reads, writes and decays.
template <class Tiling>
struct Packet {
  // Reads, decayed from the sub-chunk's beginning on, for tf32, as A fragments of
  // mma_m16n8k8_tf32: a step of 8 columns is one 16-byte read per lane. A lane has columns 2t and
  // 2t + 1 where mma.cuh says t and t + 4; S comes in the same order.
  uint4 reads[Tiling::kE / 8][kWarp];
  // Writes, decayed to the sub-chunk's end, two columns to a word: of slabs `in_fp16` as fp16 in
  // write_high; of others as the sum of two bf16.
  alignas(16) uint32_t write_high[kSubChunk][Tiling::kPitch / 2];
  alignas(16) uint32_t write_low[kSubChunk][Tiling::kPitch / 2];
  // The scores, row i's read times row j's write with the decays between, as the sum of two bf16: A
  // fragments of mma_m16n8k16. Before that, those of each slab but the first, as accumulators.
  static constexpr int kOtherSlabs = Tiling::kSlabs > 1 ? Tiling::kSlabs - 1 : 1;
  uint4 scores[2 * kOtherSlabs][kWarp];
  // Of the state, over the sub-chunk: for each lane % 4 = t columns 2t and 2t + 1 of every eight,
  // side by side. The last is not used, so that the four begin in different banks.
  float4 decay[4][Tiling::kE / 16 + 1];
  // Of each slab. If it is so of all, the values may be taken as fp16, too.
  bool in_fp16[Tiling::kSlabs];
};
// [/doc:packet]

template <class Tiling>
struct SharedStorage {
  using T = typename Tiling::T;
  // Rows as they lie in memory. Of reads, writes and decays those to be prepared and those on their
  // way; of values one round more, since they are used when their packets are.
  alignas(128) T rows[3][Tiling::kSlots][Tiling::kRows][Tiling::kE];
  alignas(128) T values[Tiling::kSlots + 1][Tiling::kRows][Tiling::kM];
  Packet<Tiling> packets[2][Tiling::kSubChunks];
  // What a state warp has of the outputs that the warp with the other part of the rows adds up; of
  // two sub-chunks in turn.
  float4 sums[2][Tiling::kStateWarps][Tiling::kWarpColumns / 16][Tiling::kRowParts > 1 ? kWarp : 1];
  alignas(8) float bonus[Tiling::Decay::kExclusive ? Tiling::kE : 2];
};

// A block's place in the problem.
template <class Tiling>
struct Block {
  const Walk<typename Tiling::T>& x;
  const Segments& segments;
  SharedStorage<Tiling>& smem;
  bool aligned;  // every row of every operand begins on 16 bytes and holds whole 16 bytes
  int64_t b, h;  // the head
  int segment;
  int m0;          // the first value column
  int begin, end;  // rows
  int rounds;

  __device__ __forceinline__ int64_t head() const { return b * x.write.H + h; }
  __device__ __forceinline__ int first_row(int round) const {
    return begin + round * Tiling::kRows;
  }

  // [doc:meet]
  // All warps of the block meet, from the different loops of their jobs.
  __device__ __forceinline__ void meet() const { meet_all(Tiling::kThreads); }
  // [/doc:meet]

  // The state warps of the same columns.
  __device__ __forceinline__ void meet_parts(int column_warp) const {
    meet_some(kFirstSlabBarrier + Tiling::kSubChunks + column_warp, Tiling::kRowParts * kWarp);
  }
};

}  // namespace attn::chunked
