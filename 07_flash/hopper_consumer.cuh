// A consumer of the Hopper kernel: a warpgroup that owns 64 query rows, their scores and outputs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "07_flash/hopper_block.cuh"
#include "07_flash/hopper_softmax.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/named_barrier.cuh"
#include "common/ptx/wgmma.cuh"

namespace attn::flash {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class Tiling>
class HopperConsumer {
 public:
  __device__ __forceinline__ HopperConsumer(const HopperProblem& x, HopperStorage<Tiling>& smem,
                                            int group)
      : x_(x), smem_(smem), group_(group) {
    scale_log2_ = x.scale * kLog2E;
    q_ = wgmma_k_major(shared_address(smem.q[0][0][group * kWgmmaRows]));
    k_ = wgmma_k_major(shared_address(smem.k[0]));
    v_ = wgmma_mn_major(shared_address(smem.v[0]), sizeof(smem.v[0][0]));
  }

  // [doc:hopper_tiles]
  // All tiles of the block. The tensor cores go on from one to the next: the first scores of the
  // next tile are computed while the outputs of this one are written.
  __device__ __forceinline__ void run() {
    Scores s;
    Output o;
    Probabilities p;
    // The first turn is group 0's: as if the last group had just had its own.
    if (group_ == Tiling::kConsumers - 1) pass_turn();
    HopperTile tile = take_tile();
    take_turn();
    start_scores(s);
    pass_turn();
    wgmma_wait<0>();
    wgmma_own(s);
    for (;;) {
      first_block(tile, s, o, p);
      int block = tile.blocks - 2;
      for (; block >= whole_blocks_; --block) step<true>(block, s, o, p);
      for (; block >= 0; --block) step<false>(block, s, o, p);

      const HopperTile next = take_tile();
      mbarrier_wait(&smem_.v_full[v_place_.stage], v_place_.parity);
      take_turn();
      if (next.blocks == 0) {
        start_output(o, p);
        pass_turn();
        end_tile<0>(tile, o);
        break;
      }
      start_output(o, p);
      start_scores(s);
      pass_turn();
      end_tile<1>(tile, o);
      wgmma_wait<0>();
      wgmma_own(s);
      tile = next;
    }
    // Nobody leaves with an arrival outstanding.
    if (group_ == 0) take_turn();
  }
  // [/doc:hopper_tiles]

 private:
  using Scores = float[Tiling::kKeys / 2];                // of [64, keys]
  using Output = float[Tiling::kHead / 2];                // of [64, M]
  using Probabilities = uint32_t[Tiling::kKeys / 16][4];  // of [64, keys]

  // The next tile; its queries and its first keys are there. It has no blocks if there is none.
  __device__ __forceinline__ HopperTile take_tile() {
    mbarrier_wait(&smem_.q_full[q_place_.stage], q_place_.parity);
    const int index = smem_.tile[q_place_.stage];
    if (index < 0) return {};
    mbarrier_wait(&smem_.k_full[k_place_.stage], k_place_.parity);
    return tile_at<Tiling>(x_, index);
  }

  // [doc:hopper_step]
  // The last key block of a tile, which is the first: its scores are there.
  __device__ __forceinline__ void first_block(const HopperTile& tile, Scores& s, Output& o,
                                              Probabilities& p) {
    const int Lq = static_cast<int>(x_.o.L), group_row = tile.first_row + group_ * kWgmmaRows;
    const int row_in_group = threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4;
    rows_.begin(group_row + row_in_group, Lq, x_.Lk, x_.causal);
    // Blocks before this one are seen whole by all 64 rows: those that the first of them sees whole.
    const int seen = x_.causal ? min(max(group_row + x_.Lk - Lq + 1, 0), x_.Lk) : x_.Lk;
    whole_blocks_ = seen / Tiling::kKeys;

    const int block = tile.blocks - 1;
    release_keys(block);
    if (block >= whole_blocks_) rows_.mask(s, block * Tiling::kKeys);
    float factor[2];
    rows_.update(s, scale_log2_, factor);
    round_to(p, s);
#pragma unroll
    for (int i = 0; i < Tiling::kHead / 2; ++i) o[i] = 0;
  }

  // With p the probabilities of the block after this one: starts this block's scores, then o += p v
  // for the other; while the tensor cores do the latter, turns the scores into probabilities.
  template <bool kMasked>
  __device__ __forceinline__ void step(int block, Scores& s, Output& o, Probabilities& p) {
    mbarrier_wait(&smem_.k_full[k_place_.stage], k_place_.parity);
    take_turn();
    start_scores(s);
    mbarrier_wait(&smem_.v_full[v_place_.stage], v_place_.parity);
    start_output(o, p);
    pass_turn();
    wgmma_wait<1>();
    wgmma_own(s);
    release_keys(block);
    if (kMasked) rows_.mask(s, block * Tiling::kKeys);
    float factor[2];
    rows_.update(s, scale_log2_, factor);
    wgmma_wait<0>();
    wgmma_own(o);
    wgmma_own(s);  // p was being read until here: s is not rounded into it earlier
    release(smem_.v_empty[v_place_.stage]);
    v_place_.advance();
    round_to(p, s);
#pragma unroll
    for (int i = 0; i < Tiling::kHead / 2; ++i) o[i] *= factor[accumulator_row(i)];
  }
  // [/doc:hopper_step]

  // Waits until at most kPending products are on their way, and writes the tile's rows.
  template <int kPending>
  __device__ __forceinline__ void end_tile(const HopperTile& tile, Output& o) {
    wgmma_wait<kPending>();
    wgmma_own(o);
    release(smem_.v_empty[v_place_.stage]);
    v_place_.advance();
    write_rows(x_, tile, rows_, o);
  }

  // [doc:hopper_turns]
  // Consumers start their products in turn. So one has its softmax to do while the products of the
  // others run, and they do not slip into the same phase. A turn is a named barrier of two
  // warpgroups: the one that passes it on arrives, the one that takes it waits.
  __device__ __forceinline__ void take_turn() {
    if constexpr (Tiling::kTurns) named_barrier_sync(1 + group_, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void pass_turn() {
    if constexpr (Tiling::kTurns) {
      const int next = group_ + 1 == Tiling::kConsumers ? 0 : group_ + 1;
      named_barrier_arrive(1 + next, 2 * kWarpgroup);
    }
  }
  // [/doc:hopper_turns]

  // Tells the producer that this warp has read the buffer.
  __device__ __forceinline__ void release(uint64_t& empty) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&empty);
  }

  // After a block's scores: its keys are not needed any more, and if it is the tile's last, block 0,
  // neither are the queries.
  __device__ __forceinline__ void release_keys(int block) {
    release(smem_.k_empty[k_place_.stage]);
    k_place_.advance();
    if (block == 0) {
      release(smem_.q_empty[q_place_.stage]);
      q_place_.advance();
    }
  }

  // s = q k^T. Offsets of descriptors are in units of 16 bytes.
  __device__ __forceinline__ void start_scores(Scores& s) {
    constexpr int kQueryPanel = sizeof(smem_.q[0][0]) / 16, kKeyPanel = sizeof(smem_.k[0][0]) / 16;
    const uint64_t q = q_ + q_place_.stage * (Tiling::kPanels * kQueryPanel);
    const uint64_t k = k_ + k_place_.stage * (Tiling::kPanels * kKeyPanel);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Tiling::kHead / 16; ++step) {
      const int panel = step / 4, in_row = step % 4 * 2;
      const uint64_t a = q + panel * kQueryPanel + in_row, b = k + panel * kKeyPanel + in_row;
      if (step == 0) {
        wgmma_shared<Tiling::kKeys, false>(s, a, b);
      } else {
        wgmma_shared<Tiling::kKeys, true>(s, a, b);
      }
    }
    wgmma_commit();
  }

  // o += p v.
  __device__ __forceinline__ void start_output(Output& o, const Probabilities& p) {
    constexpr int kStage = sizeof(smem_.v[0]) / 16, kSixteenRows = 16 * kPanel * 2 / 16;
    const uint64_t v = v_ + v_place_.stage * kStage;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Tiling::kKeys / 16; ++step) {
      wgmma_registers<Tiling::kHead>(o, p[step], v + step * kSixteenRows);
    }
    wgmma_commit();
  }

  // The registers of the scores are, two by two, those of the A that the second product takes.
  static __device__ __forceinline__ void round_to(Probabilities& p, const Scores& s) {
#pragma unroll
    for (int i = 0; i < Tiling::kKeys / 4; ++i) {
      p[i / 4][i % 4] = pack_bf16(s[2 * i], s[2 * i + 1]);
    }
  }

  const HopperProblem& x_;
  HopperStorage<Tiling>& smem_;
  const int group_;
  uint64_t q_, k_, v_;  // descriptors of the first stages
  RingPlace<Tiling::kQueryStages> q_place_;
  RingPlace<Tiling::kKeyStages> k_place_, v_place_;
  float scale_log2_;
  int whole_blocks_;
  SoftmaxRows rows_;
};

#endif

}  // namespace attn::flash
