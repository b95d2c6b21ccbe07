// What the two kinds of warps of the fused kernel share: how a block is cut, its shared memory, and
// the packet, in which one sub-chunk goes from the warps that decay it to the warps that own the
// state.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace attn::chunked_gla {

constexpr int kWarp = 32;
constexpr int kRound = 1, kPrepared = 2;  // named barriers
constexpr int kSubChunk = 16;  // rows of an mma.sync tile

// How a block divides its head.
template <class T_, int kE_, int kWarpColumns_, int kStateWarps_, int kSubChunks_,
          int kSlots_, int kBlocks_, int kSlab_>
struct Tiling {
  using T = T_;
  static constexpr int kE = kE_;                      // head size of q and k, padded with zeros
  static constexpr int kWarpColumns = kWarpColumns_;  // value columns of a state warp
  static constexpr int kStateWarps = kStateWarps_;
  static constexpr int kSubChunks = kSubChunks_;  // sub-chunks between two barriers
  static constexpr int kSlots = kSlots_;          // buffers of rows
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kSlab = kSlab_;  // columns of q, k and g that one preparing warp decays
  static constexpr int kSlabs = kE / kSlab;
  static constexpr int kM = kStateWarps * kWarpColumns;  // value columns of the block
  static constexpr int kRows = kSubChunks * kSubChunk;
  static constexpr int kPrepareWarps = kSubChunks * kSlabs;
  static constexpr int kThreads = (kStateWarps + kPrepareWarps) * kWarp;

  static_assert(kE % kSlab == 0 && kWarpColumns % 16 == 0);
};

// One group of rows of a sub-chunk (mostly all 16), decayed. With c_i the sum of its gates after the
// first row's up to row i, and h = c_last / 2, in the middle between the ends:
template <class Tiling>
struct Packet {
  static constexpr int kPitch = Tiling::kE + 8;  // 16 more bytes a row: ldmatrix without conflicts

  // q_i exp(c_i - h) in tf32, as the A fragments of mma_m16n8k8_tf32: one k-step of 8 columns is
  // one 16-byte read per lane. Index of a lane's columns: 2 (lane % 4) and 2 (lane % 4) + 1.
  uint4 q[Tiling::kE / 8][kWarp];
  // k_j exp(h - c_j), as the sum of two bf16.
  alignas(16) __nv_bfloat16 k_high[kSubChunk][kPitch];
  alignas(16) __nv_bfloat16 k_low[kSubChunk][kPitch];
  // The scores q_i . exp(c_i - c_j) k_j, j <= i, of each slab, as the sum of two bf16: A fragments
  // of mma_m16n8k16.
  uint4 scores[Tiling::kSlabs][2][kWarp];
  // What the state takes on its way to the middle of this packet's rows, and from there to their
  // end. `decay` is `in` and the `out` of the sub-chunk before in one.
  float in[Tiling::kE], out[Tiling::kE], decay[Tiling::kE], h[Tiling::kE];
};

template <class Tiling>
struct SharedStorage {
  using T = typename Tiling::T;
  static constexpr int kPitch = Tiling::kE + 8;                // as Packet's
  static constexpr int kPitchV = Tiling::kM + 16 / sizeof(T);  // likewise
  // Rows as they lie in memory. Of q, k and g the chunk to be decayed and two on their way; of v
  // one more, since it is used when its packets are.
  alignas(16) T q[Tiling::kSlots][Tiling::kRows][kPitch];
  alignas(16) T k[Tiling::kSlots][Tiling::kRows][kPitch];
  alignas(16) T g[Tiling::kSlots][Tiling::kRows][kPitch];
  alignas(16) T v[Tiling::kSlots + 1][Tiling::kRows][kPitchV];
  Packet<Tiling> packets[2][Tiling::kSubChunks];
  // Of each slab of a sub-chunk the first row that is not in its packet, mostly 16.
  int next_row[2][Tiling::kSubChunks][Tiling::kSlabs];
};

}  // namespace attn::chunked_gla
