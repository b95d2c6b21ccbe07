// What the two kinds of warpgroups of the Hopper kernel share: how the work is cut, the block's
// shared memory, and the order in which tiles are taken.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "common/tensor_view.cuh"

namespace attn::flash {

constexpr int kWarpgroup = 128;
constexpr int kPanel = 64;      // columns of a swizzled row of shared memory: 128 bytes
constexpr int kWgmmaRows = 64;  // what wgmma makes a warpgroup own

// [doc:hopper_tiling]
// How a block is cut.
template <int kHead_, int kConsumers_, int kKeys_, int kStages_>
struct HopperTiling {
  static constexpr int kHead = kHead_;            // head size of q, k and v, padded with zeros
  static constexpr int kConsumers = kConsumers_;  // warpgroups, 64 query rows each
  static constexpr int kKeys = kKeys_;            // of a key block
  static constexpr int kStages = kStages_;  // key blocks in shared memory, and as many of values

  static constexpr int kRows = kConsumers * kWgmmaRows;  // of a query tile
  static constexpr int kPanels = kHead / kPanel;
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
  // 65536 in all, in steps of 8 a thread: what the producer can do without goes to the consumers.
  static constexpr int kProducerRegisters = kConsumers == 2 ? 24 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 240 : 160;

  static_assert((kProducerRegisters + kConsumers * kConsumerRegisters) * kWarpgroup <= 65536);
  static_assert(kKeys % 16 == 0 && kKeys <= 256, "whole steps of wgmma, one box of TMA");
};
// [/doc:hopper_tiling]

// [doc:hopper_storage]
template <class Tiling>
struct HopperStorage {
  // In panels of 64 columns, swizzled (common/ptx/tma.cuh).
  alignas(1024) __nv_bfloat16 q[Tiling::kPanels][Tiling::kRows][kPanel];
  alignas(1024) __nv_bfloat16 k[Tiling::kStages][Tiling::kPanels][Tiling::kKeys][kPanel];
  alignas(1024) __nv_bfloat16 v[Tiling::kStages][Tiling::kPanels][Tiling::kKeys][kPanel];
  // mbarriers: full when the copy engine has written, empty when all consumers have read.
  uint64_t q_full, q_empty;
  uint64_t k_full[Tiling::kStages], k_empty[Tiling::kStages];
  uint64_t v_full[Tiling::kStages], v_empty[Tiling::kStages];
  int tile;  // whose queries q holds, handed over with them; -1: there is no more work
};
// [/doc:hopper_storage]

struct HopperProblem {
  TensorView<__nv_bfloat16> o;  // [B, H, Lq, M]
  TensorView<float> lse;        // [B, H, 1, Lq], or null
  int Lk;                       // at least 1
  int query_heads_per_key_head;
  int query_tiles;     // of a head
  int heads_together;  // whose keys and values fit in the L2 cache
  int tiles;           // in all
  float scale;
  bool causal;
  bool o_vectors;  // rows of o can be written 16 bytes at a time
  int* next_tile;  // a counter, zero at launch
};

// [doc:hopper_order]
// A query tile: its head, its first row, and how many key blocks its rows see.
struct HopperTile {
  int b, h, first_row;
  int blocks;  // at least 1, so that all tiles are worked on in the same way; 0: there is no tile
};

// Tiles in the order in which they are taken: a few heads at a time, so that their keys and values
// stay in the L2 cache; of those the last rows first, which under the causal mask see the most
// keys. The short tiles come last and fill the gaps.
template <class Tiling>
__device__ __forceinline__ HopperTile tile_at(const HopperProblem& x, int index) {
  const int H = static_cast<int>(x.o.H), heads = static_cast<int>(x.o.B) * H;
  const int Lq = static_cast<int>(x.o.L);
  const int first_head = index / (x.heads_together * x.query_tiles) * x.heads_together;
  const int together = min(x.heads_together, heads - first_head);
  const int i = index - first_head * x.query_tiles, head = first_head + i % together;
  const int first_row = (x.query_tiles - 1 - i / together) * Tiling::kRows;
  // The last row of the tile stands at key last_row + Lk - Lq.
  const int last_row = min(first_row + Tiling::kRows, Lq) - 1;
  const int keys = x.causal ? last_row + (x.Lk - Lq) + 1 : x.Lk;
  return {head / H, head % H, first_row, max((keys + Tiling::kKeys - 1) / Tiling::kKeys, 1)};
}
// [/doc:hopper_order]

// A place in a ring of buffers, and the parity of the phase that its barriers are in.
template <int kStages>
struct RingPlace {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace attn::flash
