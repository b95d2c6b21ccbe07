// The state warps of the chunked kernel: from packets and rows of v to outputs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "06_rwkv6/chunked_block.cuh"
#include "common/ptx/exp2.cuh"
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

 public:
  __device__ __forceinline__ explicit StateWarp(const Block<Tiling>& block)
      : block_(block),
        lane_(threadIdx.x % kWarp),
        column_(threadIdx.x / kWarp * Tiling::kWarpColumns),
        m0_(block.m0 + column_) {}

  // [doc:state_rounds]
  __device__ __forceinline__ void run(bool accumulate) {
    load_state();
    meet<Tiling>();  // nothing to take yet: the first packets are being prepared
#pragma unroll 1
    for (int round = 0; round < block_.rounds; ++round) {
      meet<Tiling>();  // the packets of this round are whole
      const bool strong = block_.any_incomplete(round);
#pragma unroll 1
      for (int sub = 0; sub < Tiling::kSubChunks;) {
        take(round, sub);
        if (strong && block_.incomplete(round, sub)) {
          meet<Tiling>();  // before the next packet is prepared
          meet<Tiling>();  // before it is taken
          continue;
        }
        if constexpr (kOutputs) finish(round, sub, accumulate);
        ++sub;
      }
    }
    store_state();
    if constexpr (!kOutputs) {
      meet<Tiling>();  // the packets' place is used again
      meet<Tiling>();
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
      // r S: the accumulators of S are B operands as they are.
#pragma unroll
      for (int n = 0; n < Tiling::kE / 8; ++n) {
        const uint4 fragment = packet.r[n][lane_];
        const uint32_t r[4] = {fragment.x, fragment.y, fragment.z, fragment.w};
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          const float* s = &S_[half / 2][n][half % 2 * 2];
          mma_m16n8k8_tf32(o_[half], r, {__float_as_uint(s[0]), __float_as_uint(s[1])}, o_[half]);
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
            mma_m16n8k16(o_[half], scores, v[half / 2].b[part][half % 2], o_[half]);
          }
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
    const int64_t b = block_.b, h = block_.h;
    const auto& initial = block_.x.initial_state;
    if (initial.data != nullptr) {
      visit_state([&](float& S, int e, int m) { S = initial.row(b, h, e)[m]; });
    }
#pragma unroll 1
    for (int segment = 0; segment < block_.segment; ++segment) {
      const auto& [count, rows, walked, added, log_decay] = block_.segments;
      const int64_t i = block_.segments.index(h, segment);
      visit_state([&](float& S, int e, int m) {
        S = S * exp2_approx(log_decay.row(b, i, 0)[e]) + added.row(b, i, e)[m];
      });
    }
  }
  // [/doc:load_state]

  __device__ __forceinline__ void store_state() {
    const auto& segments = block_.segments;
    const auto& target = kOutputs ? block_.x.final_state : segments.added;
    if (target.data == nullptr || (kOutputs && block_.segment < segments.count - 1)) return;
    const int64_t i = kOutputs ? block_.h : segments.index(block_.h, block_.segment);
    visit_state([&](float& S, int e, int m) { target.row(block_.b, i, e)[m] = S; });
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

  // Calls visit(S, e, m) for each element of the state that the lane holds and the tensors have.
  template <class Visit>
  __device__ __forceinline__ void visit_state(Visit&& visit) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int n = 0; n < Tiling::kE / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int e = n * 8 + lane_ % 4 * 2 + i % 2;
          const int m = m0_ + tile * 16 + i / 2 * 8 + lane_ / 4;
          if (e < block_.x.k.D && m < block_.x.v.D) visit(S_[tile][n][i], e, m);
        }
      }
    }
  }

  const Block<Tiling>& block_;
  const int lane_, column_, m0_;
  // The state transposed, [value columns][E], as accumulator fragments.
  float S_[kTiles][Tiling::kE / 8][4] = {};
  float o_[kHalves][4] = {};  // of the sub-chunk
};

}  // namespace attn::rwkv6
