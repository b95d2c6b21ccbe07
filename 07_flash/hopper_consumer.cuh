// A consumer of the Hopper kernel: a warpgroup that owns 64 query rows, their scores and outputs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "07_flash/hopper_block.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/mbarrier.cuh"
#include "common/ptx/named_barrier.cuh"
#include "common/ptx/wgmma.cuh"
#include "common/warp.cuh"

namespace attn::flash {

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A place in a ring of buffers and the parity of its barriers' phase.
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

template <class Tiling>
class HopperConsumer {
 public:
  static constexpr int kHead = Tiling::kHead, kKeys = Tiling::kKeys;

  __device__ __forceinline__ HopperConsumer(const HopperProblem& x, HopperStorage<Tiling>& smem,
                                            int group)
      : x_(x), smem_(smem), group_(group), lane_(threadIdx.x % 32) {
    scale_log2_ = x.scale * kLog2E;
    q_ = wgmma_k_major(shared_address(&smem.q[0][group * kWgmmaRows][0]));
    k_ = wgmma_k_major(shared_address(&smem.k[0][0][0][0]));
    v_ = wgmma_mn_major(shared_address(&smem.v[0][0][0][0]), kKeys * 128);
  }

  __device__ __forceinline__ void run() {
    // The first turn is group 0's: as if the last group had just ended one.
    if (Tiling::kTurns && group_ == Tiling::kConsumers - 1) {
      named_barrier_arrive(turn_of(0), 2 * kWarpgroup);
    }
    for (int round = 0;; ++round) {
      mbarrier_wait(&smem_.q_full, round % 2);
      const int index = smem_.tile;
      if (index < 0) break;
      work_on(tile_at<Tiling>(x_, index));
    }
    // Nobody leaves with an arrival outstanding.
    if (Tiling::kTurns && group_ == 0) named_barrier_sync(turn_of(0), 2 * kWarpgroup);
  }

 private:
  static __device__ __forceinline__ int turn_of(int group) { return 1 + group; }

  // [doc:hopper_loop]
  __device__ __forceinline__ void work_on(const Tile& tile) {
    float o[kHead / 2], s[kKeys / 2];
    uint32_t p[kKeys / 16][4];
    float factor[2];
#pragma unroll
    for (int i = 0; i < kHead / 2; ++i) o[i] = 0;
    max_[0] = max_[1] = -INFINITY;
    sum_[0] = sum_[1] = 0;

    // The row of this thread's first two of every four scores; its others are eight rows below.
    row_ = tile.first_row + group_ * kWgmmaRows + threadIdx.x % kWarpgroup / 32 * 16 + lane_ / 4;
    const int last_key = x_.Lk - 1, diagonal = x_.Lk - int(x_.o.L);
    // Blocks before this one are seen whole by all rows of the warpgroup.
    const int group_row = tile.first_row + group_ * kWgmmaRows;
    const int seen = x_.causal ? min(max(group_row + diagonal + 1, 0), x_.Lk) : x_.Lk;
    const int whole = seen / kKeys;
    limit_[0] = x_.causal ? min(last_key, row_ + diagonal) : last_key;
    limit_[1] = x_.causal ? min(last_key, row_ + 8 + diagonal) : last_key;

    int block = tile.blocks - 1;
    if (block >= 0) {
      mbarrier_wait(&smem_.k_full[k_place_.stage], k_place_.parity);
      take_turn();
      start_scores(s);
      pass_turn();
      wgmma_wait<0>();
      wgmma_own(s);
      release(smem_.k_empty[k_place_.stage]);
      k_place_.advance();
      if (block >= whole) mask(s, block);
      softmax(s, factor);
      round_to(p, s);

      for (--block; block >= whole; --block) step<true>(o, s, p, block);
      for (; block >= 0; --block) step<false>(o, s, p, block);
    }
    // The queries have been used for the last time: the next tile's may come.
    release(smem_.q_empty);
    if (tile.blocks > 0) {
      mbarrier_wait(&smem_.v_full[v_place_.stage], v_place_.parity);
      start_output(o, p);
      wgmma_wait<0>();
      wgmma_own(o);
      release(smem_.v_empty[v_place_.stage]);
      v_place_.advance();
    }
    finish(tile, o);
  }

  // With p the probabilities of the block before: starts this block's scores, then o += p v; while
  // the tensor cores multiply p v, turns the scores into probabilities.
  template <bool kMasked>
  __device__ __forceinline__ void step(float (&o)[kHead / 2], float (&s)[kKeys / 2],
                                       uint32_t (&p)[kKeys / 16][4], int block) {
    float factor[2];
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
    if (kMasked) mask(s, block);
    softmax(s, factor);
    wgmma_wait<0>();
    wgmma_own(o);
    wgmma_own(s);  // p is read until here: do not round s into it earlier
    release(smem_.v_empty[v_place_.stage]);
    v_place_.advance();
    round_to(p, s);
#pragma unroll
    for (int i = 0; i < kHead / 2; ++i) o[i] *= factor[i / 2 % 2];
  }
  // [/doc:hopper_loop]

  // Consumers take turns to start products: while one has its softmax to do, the other's products
  // run, and the two do not slip into the same phase.
  __device__ __forceinline__ void take_turn() {
    if constexpr (Tiling::kTurns) named_barrier_sync(turn_of(group_), 2 * kWarpgroup);
  }
  __device__ __forceinline__ void pass_turn() {
    if constexpr (Tiling::kTurns) {
      const int next = group_ + 1 == Tiling::kConsumers ? 0 : group_ + 1;
      named_barrier_arrive(turn_of(next), 2 * kWarpgroup);
    }
  }

  // One arrival per warp.
  __device__ __forceinline__ void release(uint64_t& empty) {
    if (lane_ == 0) mbarrier_arrive(&empty);
  }

  // s = q k^T, started.
  __device__ __forceinline__ void start_scores(float (&s)[kKeys / 2]) {
    constexpr int kQPanel = Tiling::kRows * 128 / 16, kKPanel = kKeys * 128 / 16;
    const uint64_t k = k_ + k_place_.stage * (Tiling::kPanels * kKPanel);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kHead / 16; ++step) {
      const int q_step = step / 4 * kQPanel + step % 4 * 2;  // in units of 16 bytes
      const int k_step = step / 4 * kKPanel + step % 4 * 2;
      if (step == 0) {
        wgmma_shared<kKeys, false>(s, q_ + q_step, k + k_step);
      } else {
        wgmma_shared<kKeys, true>(s, q_ + q_step, k + k_step);
      }
    }
    wgmma_commit();
  }

  // o += p v, started.
  __device__ __forceinline__ void start_output(float (&o)[kHead / 2],
                                               const uint32_t (&p)[kKeys / 16][4]) {
    const uint64_t v = v_ + v_place_.stage * (Tiling::kPanels * kKeys * 128 / 16);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      wgmma_registers<kHead>(o, p[step], v + step * (16 * 128 / 16));
    }
    wgmma_commit();
  }

  // Scores of keys that a row does not see.
  __device__ __forceinline__ void mask(float (&s)[kKeys / 2], int block) {
    const int first = block * kKeys + 2 * (lane_ % 4);
    const int limit[2] = {limit_[0] - first, limit_[1] - first};
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      if (i / 4 * 8 + i % 2 > limit[i / 2 % 2]) s[i] = -INFINITY;
    }
  }

  // [doc:hopper_softmax]
  // s becomes exp(scale s - maximum); factor is what earlier probabilities shrink by.
  __device__ __forceinline__ void softmax(float (&s)[kKeys / 2], float (&factor)[2]) {
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float high[2] = {max_[r], max_[r]};
#pragma unroll
      for (int i = 2 * r; i < kKeys / 2; i += 4) {
        high[0] = fmaxf(high[0], s[i]);
        high[1] = fmaxf(high[1], s[i + 1]);
      }
      // The four lanes of a quad hold a row together.
      float now = fmaxf(high[0], high[1]);
      now = fmaxf(now, __shfl_xor_sync(kFullWarp, now, 1));
      now = fmaxf(now, __shfl_xor_sync(kFullWarp, now, 2));
      // A row that has seen no key yet: -inf - -inf would be NaN.
      base[r] = now == -INFINITY ? 0 : now * scale_log2_;
      factor[r] = exp2_approx(max_[r] * scale_log2_ - base[r]);
      max_[r] = now;
    }
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      s[i] = exp2_approx(s[i] * scale_log2_ - base[i / 2 % 2]);
    }
    // This thread's part of the sums; those of the quad are added at the end.
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum[2] = {sum_[r] * factor[r], 0};
#pragma unroll
      for (int i = 2 * r; i < kKeys / 2; i += 4) {
        sum[0] += s[i];
        sum[1] += s[i + 1];
      }
      sum_[r] = sum[0] + sum[1];
    }
  }
  // [/doc:hopper_softmax]

  // The scores' registers are the fragments of A that the second product takes.
  static __device__ __forceinline__ void round_to(uint32_t (&p)[kKeys / 16][4],
                                                  const float (&s)[kKeys / 2]) {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) p[i / 4][i % 4] = pack(s[2 * i], s[2 * i + 1]);
  }

  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }

  // Divides by the sums and writes the rows of o and lse.
  __device__ __forceinline__ void finish(const Tile& tile, const float (&o)[kHead / 2]) {
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sum_[r];
      sum += __shfl_xor_sync(kFullWarp, sum, 1);
      sum += __shfl_xor_sync(kFullWarp, sum, 2);
      inverse[r] = sum == 0 ? 0 : 1 / sum;  // 0: no key was seen
      const int row = row_ + 8 * r;
      if (x_.lse.data != nullptr && lane_ % 4 == 0 && row < x_.o.L) {
        x_.lse.row(tile.b, tile.h, 0)[row] =
            sum == 0 ? -INFINITY : max_[r] * x_.scale + log2f(sum) * kLn2;
      }
    }
    // A lane has 2 of every 8 columns. The quad transposes 4 x 4 words, so that each lane has 8
    // columns in a row: 16 bytes to write.
    const int M = int(x_.o.D);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row_ + 8 * r;
      __nv_bfloat16* out = x_.o.row(tile.b, tile.h, row);
#pragma unroll
      for (int group = 0; group < kHead / 32; ++group) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int d = 4 * (4 * group + i) + 2 * r;
          w[i] = pack(o[d] * inverse[r], o[d + 1] * inverse[r]);
        }
        transpose_in_quad(w);
        const int column = (4 * group + lane_ % 4) * 8;
        if (row >= x_.o.L || column >= M) continue;
        if (x_.o_vectors) {
          *reinterpret_cast<uint4*>(out + column) = make_uint4(w[0], w[1], w[2], w[3]);
        } else {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const uint32_t bits = i % 2 == 0 ? w[i / 2] & 0xffff : w[i / 2] >> 16;
            if (column + i < M) out[column + i] = __ushort_as_bfloat16(uint16_t(bits));
          }
        }
      }
    }
  }

  // Word i of lane t becomes word t of lane i.
  __device__ __forceinline__ void transpose_in_quad(uint32_t (&w)[4]) {
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2) {
      const bool upper = lane_ & bit;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i & bit) continue;
        const uint32_t give = upper ? w[i] : w[i + bit];
        const uint32_t taken = __shfl_xor_sync(kFullWarp, give, bit);
        (upper ? w[i] : w[i + bit]) = taken;
      }
    }
  }

  const HopperProblem& x_;
  HopperStorage<Tiling>& smem_;
  const int group_, lane_;
  uint64_t q_, k_, v_;  // descriptors
  RingPlace<Tiling::kStages> k_place_, v_place_;
  float scale_log2_;
  int row_, limit_[2];  // the last key that rows row_ and row_ + 8 see
  float max_[2], sum_[2];
};

#endif

}  // namespace attn::flash
