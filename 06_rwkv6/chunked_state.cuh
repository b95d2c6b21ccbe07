// The state warps of the chunked kernel: from packets and rows of v to outputs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "06_rwkv6/chunked_block.cuh"
#include "common/ptx/block_barrier.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/grid_dependency.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"

namespace attn::rwkv6 {

// 16 rows and 16 columns of v as the tensor core takes them: `b` as the B operand of scores v, for
// each half of the columns, and `a` as the A operand of v^T k. They are the same numbers in another
// order, held twice: an operand's registers must lie side by side. A float is the sum of two bf16.
template <int kParts>
struct ValueFragment {
  uint32_t b[kParts][2][2];
  uint32_t a[kParts][4];
};

__device__ __forceinline__ void load_values(ValueFragment<1>& v, const __nv_bfloat16* v_smem,
                                            int pitch) {
  const int lane = threadIdx.x % kWarp;
  uint32_t b[4];
  ldmatrix_trans(b, v_smem + lane % 16 * pitch + lane / 16 * 8);
#pragma unroll
  for (int i = 0; i < 4; ++i) v.b[0][i / 2][i % 2] = b[i];
  ldmatrix_trans(v.a[0], v_smem + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8);
}

__device__ __forceinline__ void load_values(ValueFragment<2>& v, const float* v_smem, int pitch) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* x = v_smem + (lane % 4 * 2 + i * 8) * pitch + lane / 4 + half * 8;
      const uint32_t high = pack_high(x[0], x[pitch]);
      v.b[0][half][i] = v.a[0][2 * i + half] = high;
      v.b[1][half][i] = v.a[1][2 * i + half] = pack_low(x[0], x[pitch], high);
    }
  }
}

// One state warp: it owns kWarpColumns value columns of the state.
template <class Tiling, bool kOutputs>
class StateWarp {
  using T = typename Tiling::T;
  static constexpr int kTiles = Tiling::kWarpColumns / 16;
  static constexpr int kHalves = 2 * kTiles;  // of 8 columns
  static constexpr int kValueParts = sizeof(T) / 2;
  // Sums of products that are formed side by side: each product waits for the one before in its sum.
  static constexpr int kChains = kTiles == 1 ? 2 : 1;

 public:
  __device__ __forceinline__ explicit StateWarp(const Block<Tiling>& block)
      : block_(block),
        lane_(threadIdx.x % kWarp),
        column_(threadIdx.x / kWarp * Tiling::kWarpColumns),
        m0_(block.m0 + column_) {}

  // [doc:state_rounds]
  __device__ __forceinline__ void run(bool accumulate) {
    load_state();
    all_warps_sync();  // nothing to take yet: the first packets are being prepared
#pragma unroll 1
    for (int round = 0; round < block_.rounds; ++round) {
      all_warps_sync();  // the packets of this round are whole
      const bool strong = block_.any_incomplete(round);
#pragma unroll 1
      for (int sub = 0; sub < Tiling::kSubChunks;) {
        take(round, sub);
        if (strong && block_.incomplete(round, sub)) {
          all_warps_sync();  // before the next packet is prepared
          all_warps_sync();  // before it is taken
          continue;
        }
        if constexpr (kOutputs) finish(round, sub, accumulate);
        ++sub;
      }
    }
    store_state();
    if constexpr (!kOutputs) {
      all_warps_sync();  // the packets' place is used again
      all_warps_sync();
    }
  }
  // [/doc:state_rounds]

 private:
  // [doc:take]
  // Takes a packet: outputs read the state before it, then the state decays and takes the rows in.
  __device__ __forceinline__ void take(int round, int sub) {
    const auto& packet = block_.smem.packets[round % 2][sub];
    const T* v_smem = &block_.smem.v[round % (Tiling::kSlots + 1)][sub * kSubChunk][column_];
    ValueFragment<kValueParts> v[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      load_values(v[tile], v_smem + tile * 16, Tiling::kPitchV);
    }

    if constexpr (kOutputs) {
      float o_chain[kHalves][4] = {};
      // r S: the accumulators of S are B operands as they are.
#pragma unroll
      for (int n = 0; n < Tiling::kE / 8; ++n) {
        const uint4 fragment = packet.r[n][lane_];
        const uint32_t r[4] = {fragment.x, fragment.y, fragment.z, fragment.w};
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          const float* s = &S_[half / 2][n][half % 2 * 2];
          float(&o)[4] = n % kChains == 0 ? o_[half] : o_chain[half];
          mma_m16n8k8_tf32(o, r, {__float_as_uint(s[0]), __float_as_uint(s[1])}, o);
        }
      }
      // scores v. Low parts are not multiplied with low parts.
#pragma unroll
      for (int i = 0; i < 2 * Tiling::kSlabs; ++i) {
        const uint4 fragment = packet.scores[i / 2][i % 2][lane_];
        const uint32_t scores[4] = {fragment.x, fragment.y, fragment.z, fragment.w};
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
#pragma unroll
          for (int part = 0; part < (i % 2 == 0 ? kValueParts : 1); ++part) {
            float(&o)[4] = i % kChains == 0 ? o_[half] : o_chain[half];
            mma_m16n8k16(o, scores, v[half / 2].b[part][half % 2], o);
          }
        }
      }
      if constexpr (kChains > 1) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
#pragma unroll
          for (int i = 0; i < 4; ++i) o_[half][i] += o_chain[half][i];
        }
      }
    }

    scale_state(packet.decay);
    // S^T += v^T k.
    const int matrix = (lane_ % 16 * Tiling::kPitch + lane_ / 16 * 8) / 2;
#pragma unroll
    for (int n = 0; n < Tiling::kE / 8; n += 2) {
#pragma unroll
      for (int k_part = 0; k_part < 2; ++k_part) {
        uint32_t k[4];
        ldmatrix_trans(k, (k_part == 0 ? packet.k_high[0] : packet.k_low[0]) + matrix + n * 4);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int part = 0; part < (k_part == 0 ? kValueParts : 1); ++part) {
            mma_m16n8k16(S_[tile][n], v[tile].a[part], {k[0], k[1]}, S_[tile][n]);
            mma_m16n8k16(S_[tile][n + 1], v[tile].a[part], {k[2], k[3]}, S_[tile][n + 1]);
          }
        }
      }
    }
  }
  // [/doc:take]

  // [doc:load_state]
  // The state before the block's segment: the initial state, through the segments before.
  __device__ __forceinline__ void load_state() {
    if constexpr (!kOutputs) return;  // what a segment adds is counted from zero
    const auto& initial = block_.x.initial_state;
    if (initial.data != nullptr) {
      visit_state(initial, [](float& S, const float& x) { S = x; });
    }
    if (block_.segments.count > 1) grid_dependency_wait();  // the segments' sums are written
#pragma unroll 1
    for (int segment = 0; segment < block_.segment; ++segment) {
      const float* log_decay = block_.log_decay(segment) + lane_ % 4 * 2;
      const float4* added = block_.added(segment) + threadIdx.x;
#pragma unroll
      for (int n = 0; n < Tiling::kE / 8; ++n) {
        const float2 log_d = load_pair(log_decay + n * 8);
        const float2 d = {exp2_approx(log_d.x), exp2_approx(log_d.y)};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const float4 A = added[(n * kTiles + tile) * Tiling::kStateWarps * kWarp];
          float(&S)[4] = S_[tile][n];
          S[0] = S[0] * d.x + A.x;
          S[1] = S[1] * d.y + A.y;
          S[2] = S[2] * d.x + A.z;
          S[3] = S[3] * d.y + A.w;
        }
      }
    }
  }
  // [/doc:load_state]

  __device__ __forceinline__ void store_state() {
    if constexpr (kOutputs) {
      const auto& final = block_.x.final_state;
      if (final.data == nullptr || block_.segment < block_.segments.count - 1) return;
      visit_state(final, [](const float& S, float& x) { x = S; });
    } else {
      float4* added = block_.added(block_.segment) + threadIdx.x;
#pragma unroll
      for (int n = 0; n < Tiling::kE / 8; ++n) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const float(&S)[4] = S_[tile][n];
          added[(n * kTiles + tile) * Tiling::kStateWarps * kWarp] = {S[0], S[1], S[2], S[3]};
        }
      }
    }
  }

  __device__ __forceinline__ void scale_state(const float* decay) {
#pragma unroll
    for (int n = 0; n < Tiling::kE / 8; ++n) {
      const float2 d = load_pair(decay + n * 8 + lane_ % 4 * 2);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        S_[tile][n][0] *= d.x;
        S_[tile][n][1] *= d.y;
        S_[tile][n][2] *= d.x;
        S_[tile][n][3] *= d.y;
      }
    }
  }

  // Stores the outputs of a sub-chunk whose packets have all been taken.
  __device__ __forceinline__ void finish(int round, int sub, bool accumulate) {
    store_outputs(round, sub, accumulate);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o_[half][i] = 0;
    }
  }

  __device__ __forceinline__ void store_outputs(int round, int sub, bool accumulate) const {
    const TensorView<T>& target = block_.x.o;
    const float scale = block_.x.scale * kUncut;
    const int row0 = block_.begin + round * Tiling::kRows + sub * kSubChunk;
    const int m = m0_ + lane_ % 4 * 2;
    T* o_rows = target.row(block_.b, block_.h, row0 + lane_ / 4) + m;
    const bool whole = block_.aligned && !accumulate && row0 + kSubChunk <= block_.end &&
                       m0_ + Tiling::kWarpColumns <= target.D;
    if (whole) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          store_pair(o_rows + half * 8, o_[half][2 * i] * scale, o_[half][2 * i + 1] * scale);
        }
        o_rows += 8 * target.stride_l;
      }
      return;
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i / 2 * 8, column = half * 8 + i % 2;
        if (row0 + lane_ / 4 + row >= block_.end || m + column >= target.D) continue;
        T& y = o_rows[row * target.stride_l + column];
        y = T(accumulate ? float(y) + o_[half][i] * scale : o_[half][i] * scale);
      }
    }
  }

  // Calls visit(S, x) for each element S of the state that the lane holds and its place x in a tensor
  // of states, if the tensor has it.
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
          if (inside) visit(S_[half / 2][n][half % 2 * 2 + i], row[half * 8]);
        }
        row += i == 0 ? states.stride_l : 7 * states.stride_l;
      }
      e += 8;
    }
  }

  const Block<Tiling>& block_;
  const int lane_, column_, m0_;
  // The state transposed, [value columns][E], as accumulator fragments.
  float S_[kTiles][Tiling::kE / 8][4] = {};
  float o_[kHalves][4] = {};  // of the sub-chunk
};

}  // namespace attn::rwkv6
