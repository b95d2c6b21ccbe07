// What the two kinds of warps of the chunked kernel share: how a block is cut, its place in the
// problem, its shared memory, and the packet, in which one sub-chunk goes from the warps that
// prepare it to the warps that own the state.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "06_rwkv6/operands.cuh"
#include "common/pairs.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/role_barriers.cuh"
#include "common/slabs.cuh"
#include "common/swizzled_rows.cuh"
#include "common/warp.cuh"

namespace attn::rwkv6 {

constexpr int kSubChunk = 16;  // rows of an mma.sync tile

constexpr float kNothing = -126;  // below it, exp2_approx gives 0

// [doc:uncut]
// Tensor cores cut a float off after 10 bits of mantissa, half a unit of them too low on average:
// 2^-11 E(1 / mantissa). Every output but the bonus is a sum of products of two such floats.
constexpr float kUncut = 1 + 2 * 3.52e-4f;
// [/doc:uncut]

// [doc:tiling]
// How a block divides its head.
template <class T_, int kE_, int kWarpColumns_, int kStateWarps_, int kSubChunks_, int kSlots_,
          int kSlab_, int kLoadWarps_, int kBlocks_>
struct Tiling {
  using T = T_;
  static constexpr int kE = kE_;                      // head size of r and k, padded with zeros
  static constexpr int kWarpColumns = kWarpColumns_;  // value columns of one state warp
  static constexpr int kStateWarps = kStateWarps_;
  static constexpr int kSubChunks = kSubChunks_;  // in a round, between two barriers of the block
  static constexpr int kSlots = kSlots_;          // buffers for the rows of a round
  static constexpr int kSlab = kSlab_;            // columns of r, k and w of one preparing warp
  static constexpr int kLoadWarps = kLoadWarps_;  // that only fetch rows; 0: preparing warps do
  static constexpr int kBlocks = kBlocks_;        // side by side on one multiprocessor

  static constexpr int kM = kStateWarps * kWarpColumns;  // value columns of the block
  static constexpr int kRows = kSubChunks * kSubChunk;   // of a round
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
  static_assert(kFirstSlabBarrier + kSubChunks <= 16, "a block has 16 barriers");
};
// [/doc:tiling]

// [doc:packet]
// One sub-chunk, prepared: all that the state warps need of r, k, w and u.
template <class Tiling>
struct Packet {
  // r_i, decayed from the sub-chunk's beginning to row i, for tf32, as A fragments of
  // mma_m16n8k8_tf32: a step of 8 columns is one 16-byte read per lane. A lane has columns 2t and
  // 2t + 1 where mma.cuh says t and t + 4; S comes in the same order.
  uint4 r[Tiling::kE / 8][kWarp];
  // k_j, decayed from row j to the sub-chunk's end, two columns to a word: of slabs `in_fp16` as fp16
  // in k_high; of others as the sum of two bf16.
  alignas(16) uint32_t k_high[kSubChunk][Tiling::kPitch / 2];
  alignas(16) uint32_t k_low[kSubChunk][Tiling::kPitch / 2];
  // The scores, as the sum of two bf16: A fragments of mma_m16n8k16. Below the diagonal r_i . k_j
  // with the decays between, on it r_i . (u k_i). Before that, those of each slab but the first, as
  // accumulators.
  static constexpr int kOtherSlabs = Tiling::kSlabs > 1 ? Tiling::kSlabs - 1 : 1;
  uint4 scores[2 * kOtherSlabs][kWarp];
  // Of the state, over the sub-chunk: for each lane % 4 = t columns 2t and 2t + 1 of every eight,
  // side by side. The last is not used, so that the four begin in different banks.
  float4 decay[4][Tiling::kE / 16 + 1];
  // Of each slab. If it is so of all, the rows of v may be taken as fp16, too.
  bool in_fp16[Tiling::kSlabs];
};
// [/doc:packet]

template <class Tiling>
struct SharedStorage {
  using T = typename Tiling::T;
  // Rows as they lie in memory. Of r, k and w those to be prepared and those on their way; of v one
  // round more, since it is used when its packets are.
  alignas(128) T r[Tiling::kSlots][Tiling::kRows][Tiling::kE];
  alignas(128) T k[Tiling::kSlots][Tiling::kRows][Tiling::kE];
  alignas(128) T w[Tiling::kSlots][Tiling::kRows][Tiling::kE];
  alignas(128) T v[Tiling::kSlots + 1][Tiling::kRows][Tiling::kM];
  Packet<Tiling> packets[2][Tiling::kSubChunks];
  alignas(8) float u[Tiling::kE];
};

// [doc:segments]
// The parts of every sequence that are walked at the same time.
struct Segments {
  int count;             // of a sequence
  int first_rows;        // of the first segment, and ...
  int rows = 0;          // ... of each other but the last
  int eights = 0;        // of rows of a state, padded to whole tiles of blocks
  int column_tiles = 0;  // of 16, of a state, padded likewise
  // What each segment but the last does to the state: S becomes 2^log_decay S + added. The elements
  // of `added` follow each other as the lanes of a state warp hold them.
  float4* added = nullptr;     // [B * H, count - 1, eights, column tiles, 32]
  float* log_decay = nullptr;  // [B * H, count - 1, eights * 8]; -inf of rows that E does not have

  __device__ int begin(int segment) const {
    return segment == 0 ? 0 : first_rows + (segment - 1) * rows;
  }
  __device__ int64_t index(int64_t head, int segment) const { return head * (count - 1) + segment; }
  __device__ float4* added_by(int64_t index, int column_tile) const {
    return added + (index * eights * column_tiles + column_tile) * kWarp;
  }
  __device__ float* log_decay_of(int64_t index) const { return log_decay + index * eights * 8; }
};
// [/doc:segments]

// A block's place in the problem.
template <class Tiling>
struct Block {
  const Rwkv6Operands<typename Tiling::T>& x;
  const Segments& segments;
  SharedStorage<Tiling>& smem;
  bool aligned;    // every row of every operand begins on 16 bytes and holds whole 16 bytes
  int64_t b, h;    // the head
  int segment;     // of its sequence
  int m0;          // the first value column
  int begin, end;  // rows
  int rounds;

  // [doc:meet]
  // All warps of the block meet, from the different loops of their two jobs.
  __device__ __forceinline__ void meet() const { meet_all(Tiling::kThreads); }
  // [/doc:meet]
};

}  // namespace attn::rwkv6
