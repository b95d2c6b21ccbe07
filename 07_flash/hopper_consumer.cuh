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
#include "common/warp.cuh"

namespace attn::flash {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class Tiling>
class HopperConsumer {
 public:
  __device__ __forceinline__ HopperConsumer(const HopperProblem& x, HopperStorage<Tiling>& smem,
                                            int group)
      : x_(x), smem_(smem), group_(group) {
    scale_log2_ = x.scale * kLog2e;
    q_ = wgmma_k_major(shared_address(smem.q[0][group * kWgmmaRows]));
    k_ = wgmma_k_major(shared_address(smem.k[0]));
    v_ = wgmma_mn_major(shared_address(smem.v[0]), sizeof(smem.v[0][0]));
  }

  // All tiles of the block, until the producer has no more.
  __device__ __forceinline__ void run() {
    // The first turn is group 0's: as if the last group had just had its own.
    if (group_ == Tiling::kConsumers - 1) pass_turn();
    for (int round = 0;; ++round) {
      mbarrier_wait(&smem_.q_full, round % 2);
      // Read by the lane that will give the buffer back.
      int index = 0;
      if (threadIdx.x % 32 == 0) index = smem_.tile;
      index = __shfl_sync(kFullWarp, index, 0);
      if (index < 0) break;
      work_on(tile_at<Tiling>(x_, index));
    }
    // Nobody leaves with an arrival outstanding.
    if (group_ == 0) take_turn();
  }

 private:
  using Scores = float[Tiling::kKeys / 2];                // of [64, keys]
  using Output = float[Tiling::kHead / 2];                // of [64, M]
  using Probabilities = uint32_t[Tiling::kKeys / 16][4];  // of [64, keys]

  // [doc:hopper_tile]
  __device__ __forceinline__ void work_on(const HopperTile& tile) {
    const int Lq = static_cast<int>(x_.o.L), group_row = tile.first_row + group_ * kWgmmaRows;
    const int row_in_group = threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4;
    rows_.begin(group_row + row_in_group, Lq, x_.Lk, x_.causal);
    // Blocks before this one are seen whole by all 64 rows, since the first of them does.
    const int seen = x_.causal ? min(max(group_row + (x_.Lk - Lq) + 1, 0), x_.Lk) : x_.Lk;
    const int whole_blocks = seen / Tiling::kKeys;
    Scores s;
    Output o;
    Probabilities p;
#pragma unroll
    for (int i = 0; i < Tiling::kHead / 2; ++i) o[i] = 0;

    // From the last block to the first, so that masks come first and then are done with.
    int block = tile.blocks - 1;
    mbarrier_wait(&smem_.k_full[k_place_.stage], k_place_.parity);
    take_turn();
    start_scores(s);
    pass_turn();
    wgmma_wait<0>();
    wgmma_own(s);
    release(smem_.k_empty[k_place_.stage]);
    k_place_.advance();
    if (block >= whole_blocks) rows_.mask(s, block * Tiling::kKeys);
    float factor[2];
    rows_.update(s, scale_log2_, factor);
    round_to(p, s);
    for (--block; block >= whole_blocks; --block) step<true>(block, s, o, p);
    for (; block >= 0; --block) step<false>(block, s, o, p);
    release(smem_.q_empty);

    mbarrier_wait(&smem_.v_full[v_place_.stage], v_place_.parity);
    start_output(o, p);
    wgmma_wait<0>();
    wgmma_own(o);
    release(smem_.v_empty[v_place_.stage]);
    v_place_.advance();
    write_rows(x_, tile, rows_, o);
  }
  // [/doc:hopper_tile]

  // [doc:hopper_step]
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
    release(smem_.k_empty[k_place_.stage]);
    k_place_.advance();
    if (kMasked) rows_.mask(s, block * Tiling::kKeys);
    float factor[2];
    const bool moved = rows_.update(s, scale_log2_, factor);
    wgmma_wait<0>();
    wgmma_own(o);
    wgmma_own(s);  // p was being read until here: s is not rounded into it earlier
    release(smem_.v_empty[v_place_.stage]);
    v_place_.advance();
    round_to(p, s);
    if (moved) {
#pragma unroll
      for (int i = 0; i < Tiling::kHead / 2; ++i) o[i] *= factor[accumulator_row(i)];
    }
  }
  // [/doc:hopper_step]

  // [doc:hopper_turns]
  // Consumers start their products in turn. So one has its softmax to do while the products of the
  // others run, and they do not slip into the same phase. A turn is a named barrier of two
  // warpgroups: the one that passes it on arrives, the one that takes it waits.
  __device__ __forceinline__ void take_turn() { named_barrier_sync(1 + group_, 2 * kWarpgroup); }
  __device__ __forceinline__ void pass_turn() {
    const int next = group_ + 1 == Tiling::kConsumers ? 0 : group_ + 1;
    named_barrier_arrive(1 + next, 2 * kWarpgroup);
  }
  // [/doc:hopper_turns]

  // Tells the producer that this warp has read the buffer.
  static __device__ __forceinline__ void release(uint64_t& empty) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&empty);
  }

  // s = q k^T. Offsets of descriptors are in units of 16 bytes.
  __device__ __forceinline__ void start_scores(Scores& s) {
    constexpr int kQueryPanel = sizeof(smem_.q[0]) / 16, kKeyPanel = sizeof(smem_.k[0][0]) / 16;
    const uint64_t k = k_ + k_place_.stage * (Tiling::kPanels * kKeyPanel);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Tiling::kHead / 16; ++step) {
      const int panel = step / 4, in_row = step % 4 * 2;
      const uint64_t a = q_ + panel * kQueryPanel + in_row, b = k + panel * kKeyPanel + in_row;
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
  uint64_t q_, k_, v_;  // descriptors; of the first stages
  RingPlace<Tiling::kStages> k_place_, v_place_;
  float scale_log2_;
  SoftmaxRows rows_;
};

#endif

}  // namespace attn::flash
