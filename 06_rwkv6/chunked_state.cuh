// The state warps of the chunked kernel: from packets and rows of v to outputs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "06_rwkv6/chunked_block.cuh"
#include "common/mma_operands.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/grid_dependency.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/warp.cuh"

namespace attn::rwkv6 {

// One state warp: it owns kWarpColumns value columns of the state.
template <class Tiling>
class StateWarp {
  using T = typename Tiling::T;
  static constexpr int kTiles = Tiling::kWarpColumns / 16;
  static constexpr int kHalves = 2 * kTiles;  // of 8 columns
  static constexpr int kValueParts = sizeof(T) / 2;
  // Sums of products that do not wait for each other: four of them hide how long a product takes.
  static constexpr int kChains = kTiles == 1 ? 2 : 1;

 public:
  __device__ __forceinline__ explicit StateWarp(const Block<Tiling>& block)
      : block_(block),
        lane_(threadIdx.x % kWarp),
        column_(threadIdx.x / kWarp * Tiling::kWarpColumns),
        m0_(block.m0 + column_) {}

  // [doc:state_rounds]
  __device__ __forceinline__ void run(bool accumulate) {
    const bool columns_whole =
        block_.aligned && !accumulate && m0_ + Tiling::kWarpColumns <= block_.x.v.D;
    load_bonus();
    // The bonus is there. Nothing to take yet: the first packets are being prepared, meanwhile.
    block_.meet();
    load_state();
    o_rows_ = output(block_.begin);
    while_slabs_meet<Tiling::kSlabs>(block_.rounds > 0);
#pragma unroll 1
    for (int round = 0; round < block_.rounds; ++round) {
      block_.meet();  // the packets of this round are whole
      while_slabs_meet<Tiling::kSlabs>(round + 1 < block_.rounds);
      const bool whole = columns_whole && first_row(round, Tiling::kSubChunks) <= block_.end;
      if (Tiling::kFp16 && !in_fp16(round)) {
        take_round<false>(round, whole, accumulate);
      } else {
        take_round<Tiling::kFp16>(round, whole, accumulate);
      }
    }
    store_state();
  }
  // [/doc:state_rounds]

 private:
  // Here, where nobody is busy yet. The preparing warps send for rows.
  __device__ __forceinline__ void load_bonus() const {
    const auto& u = block_.x.u;
    for (int e = threadIdx.x; e < Tiling::kE; e += Tiling::kStateWarps * kWarp) {
      block_.smem.u[e] = e < u.D ? float(u.row(0, block_.h, 0)[e]) : 0;
    }
  }

  __device__ __forceinline__ int first_row(int round, int sub) const {
    return block_.begin + round * Tiling::kRows + sub * kSubChunk;
  }

  // Whether all packets of a round are.
  __device__ __forceinline__ bool in_fp16(int round) const {
    const auto& packets = block_.smem.packets[round % 2];
    const auto& packet = packets[lane_ % Tiling::kSubChunks];
    return __all_sync(kFullWarp, packet.in_fp16[lane_ / Tiling::kSubChunks % Tiling::kSlabs]);
  }

  // kInFp16: all packets are. whole: all rows and columns are there, and outputs are stored, not
  // added.
  template <bool kInFp16>
  __device__ __forceinline__ void take_round(int round, bool whole, bool accumulate) {
#pragma unroll 1
    for (int sub = 0; sub < Tiling::kSubChunks; ++sub) {
      float o[kHalves][4];
      take<kInFp16>(block_.smem.packets[round % 2][sub],
                    {block_.smem.v[round % (Tiling::kSlots + 1)][sub * kSubChunk], column_}, o);
      if (whole) {
        store_whole(o);
      } else {
        store_some(o, first_row(round, sub), accumulate);
      }
    }
  }

  // [doc:take]
  // Takes a packet: outputs read the state before it, then the state decays and takes the rows in.
  // kInFp16: all of its slabs are, and are taken so.
  template <bool kInFp16>
  __device__ __forceinline__ void take(const Packet<Tiling>& packet,
                                       const typename Tiling::ValueRows& v_rows,
                                       float (&o)[kHalves][4]) {
    float sums[kChains][kHalves][4] = {};
    // scores v. Low parts are not multiplied with low parts.
    uint32_t v_b[kTiles][kValueParts][2][2];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      load_values_b(v_b[tile], v_rows.from(0, tile * 16));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 fragment = packet.scores[i][lane_];
      const uint32_t scores[4] = {fragment.x, fragment.y, fragment.z, fragment.w};
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        auto& sum = sums[i % kChains][half];
#pragma unroll
        for (int part = 0; part < (i == 0 ? kValueParts : 1); ++part) {
          mma_m16n8k16(sum, scores, v_b[half / 2][part][half % 2], sum);
        }
      }
    }
    uint32_t v_a[kTiles][kValueParts][4];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      load_values_a(v_a[tile], v_rows.from(0, tile * 16));
      if constexpr (kInFp16) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v_a[tile][0][i] = bf16_to_halves(v_a[tile][0][i]);
      }
    }
    // 16 columns of r and k after the other: while one's products wait for their turn in the sums of
    // outputs, or for the state to be decayed, those of the other run.
    const int matrix = (lane_ % 16 * Tiling::kPitch + lane_ / 16 * 8) / 2;
#pragma unroll
    for (int n = 0; n < Tiling::kE / 8; n += 2) {
      const float4 decays = packet.decay[lane_ % 4][n / 2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // r S: the accumulators of S are B operands as they are.
        const uint4 fragment = packet.r[n + i][lane_];
        const uint32_t r[4] = {fragment.x, fragment.y, fragment.z, fragment.w};
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          const float* s = &S_[half / 2][n + i][half % 2 * 2];
          auto& sum = sums[i % kChains][half];
          mma_m16n8k8_tf32(sum, r, {__float_as_uint(s[0]), __float_as_uint(s[1])}, sum);
        }
        const float2 decay = i == 0 ? float2{decays.x, decays.y} : float2{decays.z, decays.w};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          S_[tile][n + i][0] *= decay.x;
          S_[tile][n + i][1] *= decay.y;
          S_[tile][n + i][2] *= decay.x;
          S_[tile][n + i][3] *= decay.y;
        }
      }
      // S^T += v^T k.
      if constexpr (kInFp16) {
        uint32_t k[4];
        ldmatrix_trans(k, packet.k_high[0] + matrix + n * 4);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          mma_m16n8k16_fp16(S_[tile][n], v_a[tile][0], {k[0], k[1]}, S_[tile][n]);
          mma_m16n8k16_fp16(S_[tile][n + 1], v_a[tile][0], {k[2], k[3]}, S_[tile][n + 1]);
        }
      } else {
#pragma unroll
        for (int k_part = 0; k_part < 2; ++k_part) {
          uint32_t k[4];
          load_keys(k, packet, n, matrix, k_part);
#pragma unroll
          for (int part = 0; part < (k_part == 0 ? kValueParts : 1); ++part) {
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile) {
              mma_m16n8k16(S_[tile][n], v_a[tile][part], {k[0], k[1]}, S_[tile][n]);
              mma_m16n8k16(S_[tile][n + 1], v_a[tile][part], {k[2], k[3]}, S_[tile][n + 1]);
            }
          }
        }
      }
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        o[half][i] = sums[0][half][i];
#pragma unroll
        for (int chain = 1; chain < kChains; ++chain) o[half][i] += sums[chain][half][i];
      }
    }
  }
  // [/doc:take]

  // 16 columns of k, from 8 n on, as the sum of two bf16: the first of them, or the second. Every
  // fp16 is such a sum.
  __device__ __forceinline__ void load_keys(uint32_t (&k)[4], const Packet<Tiling>& packet, int n,
                                            int matrix, int part) const {
    bool in_fp16 = false;
    if constexpr (Tiling::kFp16) in_fp16 = packet.in_fp16[n * 8 / Tiling::kSlab];
    load_bf16_part(k, packet.k_high[0], packet.k_low[0], matrix + n * 4, in_fp16, part);
  }

  // [doc:load_state]
  // The state before the block's segment: what each segment before has added, as far as there is
  // anything left of it, and likewise the initial state. Backwards: of the latest all is left, and
  // with strong decays nothing of the others.
  __device__ __forceinline__ void load_state() {
    const auto& segments = block_.segments;
    const int64_t index = segments.index(block_.b * block_.x.k.H + block_.h, 0);
    if (block_.segment > 0) grid_dependency_wait();  // what the segments add is written
    // What is left of rows lane_, lane_ + 32, ... of an earlier state: 2^left.
    float left[Tiling::kE / kWarp] = {};
    bool some_left = true;
#pragma unroll 1
    for (int segment = block_.segment - 1; segment >= 0 && some_left; --segment) {
      const float* log_decay = segments.log_decay_of(index + segment) + lane_;
      const float4* added = segments.added_by(index + segment, m0_ / 16) + lane_;
      float more[Tiling::kE / kWarp];
#pragma unroll
      for (int i = 0; i < Tiling::kE / kWarp; ++i) more[i] = log_decay[i * kWarp];
#pragma unroll
      for (int n = 0; n < Tiling::kE / 8; ++n) {
        const float d0 = left_of(left, 2 * n), d1 = left_of(left, 2 * n + 1);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const float4 A = added[(n * segments.column_tiles + tile) * kWarp];
          float(&S)[4] = S_[tile][n];
          S[0] += d0 * A.x;
          S[1] += d1 * A.y;
          S[2] += d0 * A.z;
          S[3] += d1 * A.w;
        }
      }
      some_left = false;
#pragma unroll
      for (int i = 0; i < Tiling::kE / kWarp; ++i) {
        left[i] += more[i];
        some_left = some_left || left[i] >= kNothing;
      }
      some_left = __any_sync(kFullWarp, some_left);
    }
    const auto& initial = block_.x.initial_state;
    if (!some_left || initial.data == nullptr) return;
    visit_state(initial, [&](float& S, const float* x, bool inside, int row) {
      const float d = left_of(left, row);
      if (inside) S += d * *x;
    });
  }
  // Of the lane's row `row` of the state: 0 and 1 are its rows of the first eight.
  __device__ __forceinline__ float left_of(const float (&left)[Tiling::kE / kWarp], int row) const {
    const int from = row / 2 % 4 * 8 + lane_ % 4 * 2 + row % 2;
    return exp2_approx(__shfl_sync(kFullWarp, left[row / 8], from));
  }
  // [/doc:load_state]

  __device__ __forceinline__ void store_state() {
    const auto& final = block_.x.final_state;
    if (final.data == nullptr || block_.segment < block_.segments.count - 1) return;
    visit_state(final, [](float S, float* x, bool inside, int) {
      if (inside) *x = S;
    });
  }

  // Where the lane's first output of 16 rows goes.
  __device__ __forceinline__ T* output(int row0) const {
    return block_.x.o.row(block_.b, block_.h, row0 + lane_ / 4) + m0_ + lane_ % 4 * 2;
  }
  __device__ __forceinline__ float scale() const { return block_.x.scale * kUncut; }

  // The outputs of the next 16 rows, and all columns.
  __device__ __forceinline__ void store_whole(const float (&o)[kHalves][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        store_pair(o_rows_ + half * 8, o[half][2 * i] * scale(), o[half][2 * i + 1] * scale());
      }
      o_rows_ += 8 * block_.x.o.stride_l;
    }
  }

  // Those of them that there are.
  __device__ __forceinline__ void store_some(const float (&o)[kHalves][4], int row0,
                                             bool accumulate) const {
    T* const o_rows = output(row0);
    const int m = m0_ + lane_ % 4 * 2;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i / 2 * 8, column = half * 8 + i % 2;
        if (row0 + lane_ / 4 + row >= block_.end || m + column >= block_.x.o.D) continue;
        T& y = o_rows[row * block_.x.o.stride_l + column];
        y = T(accumulate ? float(y) + o[half][i] * scale() : o[half][i] * scale());
      }
    }
  }

  // Calls visit(S, x, inside, row) for each element S of the state that the lane holds, in the row-th
  // of its rows: x is its place in a tensor of states, if the tensor has it.
  template <class U, class Visit>
  __device__ __forceinline__ void visit_state(const TensorView<U>& states, Visit&& visit) {
    const int m = m0_ + lane_ / 4;
    int e = lane_ % 4 * 2;
    U* row = states.row(block_.b, block_.h, e) + m;
#pragma unroll
    for (int n = 0; n < Tiling::kE / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          const bool inside = e + i < states.L && m + half * 8 < states.D;
          visit(S_[half / 2][n][half % 2 * 2 + i], row + half * 8, inside, 2 * n + i);
        }
        row += i == 0 ? states.stride_l : 7 * states.stride_l;
      }
      e += 8;
    }
  }

  const Block<Tiling>& block_;
  const int lane_, column_, m0_;
  T* o_rows_;  // where store_whole() goes on
  // The state transposed, [value columns][E], as accumulator fragments.
  float S_[kTiles][Tiling::kE / 8][4] = {};
};

}  // namespace attn::rwkv6
