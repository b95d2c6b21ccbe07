// The state warps of the fused kernel: from packets and rows of v to outputs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "05_chunked_gla/fused_block.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/grid_dependency.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/warp.cuh"

namespace attn::chunked_gla {

// 16 rows and 16 columns of v as the tensor core takes them: `b` as the B operand of scores v, for
// each half of the columns, and `a` as the A operand of v^T k. They are the same numbers in another
// order: an operand's registers must lie side by side. A float is the sum of two bf16, and takes
// twice the registers, so that there is no room for both at a time.
template <int kParts>
struct ValueFragment {
  uint32_t b[kParts][2][2];
  uint32_t a[kParts][4];
};

__device__ __forceinline__ void load_b(ValueFragment<1>& v, const __nv_bfloat16* v_smem,
                                       int pitch) {
  const int lane = threadIdx.x % kWarp;
  uint32_t b[4];
  ldmatrix_trans(b, v_smem + lane % 16 * pitch + lane / 16 * 8);
#pragma unroll
  for (int i = 0; i < 4; ++i) v.b[0][i / 2][i % 2] = b[i];
}
__device__ __forceinline__ void load_a(ValueFragment<1>& v, const __nv_bfloat16* v_smem,
                                       int pitch) {
  const int lane = threadIdx.x % kWarp;
  ldmatrix_trans(v.a[0], v_smem + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8);
}

// Calls store(half, i, high, low) for two rows of a column of each half, from row
// 2 (lane % 4) + 8 i on.
template <class Store>
__device__ __forceinline__ void split_values(const float* v_smem, int pitch, Store&& store) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* x = v_smem + (lane % 4 * 2 + i * 8) * pitch + lane / 4 + half * 8;
      const uint32_t high = pack_high(x[0], x[pitch]);
      store(half, i, high, pack_low(x[0], x[pitch], high));
    }
  }
}
__device__ __forceinline__ void load_b(ValueFragment<2>& v, const float* v_smem, int pitch) {
  split_values(v_smem, pitch, [&](int half, int i, uint32_t high, uint32_t low) {
    v.b[0][half][i] = high;
    v.b[1][half][i] = low;
  });
}
__device__ __forceinline__ void load_a(ValueFragment<2>& v, const float* v_smem, int pitch) {
  split_values(v_smem, pitch, [&](int half, int i, uint32_t high, uint32_t low) {
    v.a[0][2 * i + half] = high;
    v.a[1][2 * i + half] = low;
  });
}

// One state warp: it owns kWarpColumns value columns of the state.
template <class Tiling>
class StateWarp {
  using T = typename Tiling::T;
  static constexpr int kTiles = Tiling::kWarpColumns / 16;
  static constexpr int kHalves = 2 * kTiles;  // of 8 columns
  static constexpr int kValueParts = sizeof(T) / 2;
  // Whether the state leaves registers for more than one sub-chunk at a time.
  static constexpr bool kAhead = kTiles * Tiling::kE / 2 <= 32;
  // Sums of products that do not wait for each other: four of them hide how long a product takes.
  static constexpr int kChains = kAhead ? 4 / kHalves : 1;
  // [doc:uncut]
  // Tensor cores cut a float off after 10 bits of mantissa, half a unit of them too low on average:
  // 2^-11 E(1 / mantissa). Every output is a sum of products of two such floats.
  static constexpr float kUncut = 1 + 2 * 3.52e-4f;
  // [/doc:uncut]

 public:
  __device__ __forceinline__ explicit StateWarp(const Block<Tiling>& block)
      : block_(block),
        lane_(threadIdx.x % kWarp),
        column_(threadIdx.x / kWarp * Tiling::kWarpColumns),
        m0_(block.m0 + column_) {}

  // [doc:state_rounds]
  __device__ __forceinline__ void run(bool accumulate) {
    block_.meet();  // nothing to take yet: the first packets are being prepared
    load_state();
    const bool columns_whole =
        block_.aligned && !accumulate && m0_ + Tiling::kWarpColumns <= block_.x.v.D;
    // Whether S is the state behind the last packet's rows; else it is still halfway.
    bool settled = true;
#pragma unroll 1
    for (int round = 0; round < block_.rounds; ++round) {
      block_.meet();  // the packets of this round are whole
      const bool strong = block_.any_incomplete(round);
      const bool whole = columns_whole && block_.first_row(round + 1) <= block_.end;
      if (kAhead && !strong && whole) {
        take_whole_round(round, settled);
      } else {
        take_any_round(round, settled, strong, columns_whole, accumulate);
      }
      settled = strong;
    }
    if (!settled) {
      scale_state(block_.smem.packets[(block_.rounds - 1) % 2][Tiling::kSubChunks - 1].out);
    }
    store_state();
  }
  // [/doc:state_rounds]

 private:
  // [doc:whole_round]
  // A round with nothing special: one packet for each sub-chunk, all rows and columns are there. No
  // branches, so that the compiler can begin with a sub-chunk while it waits for the one before.
  __device__ __forceinline__ void take_whole_round(int round, bool settled) {
    const auto& packets = block_.smem.packets[round % 2];
    T* o_rows = output_rows(block_.first_row(round));
#pragma unroll
    for (int sub = 0; sub < Tiling::kSubChunks; ++sub) {
      float o[kHalves][4] = {};
      take(packets[sub], sub == 0 && settled ? packets[sub].in : packets[sub].between,
           values(round, sub), o);
      store_whole(o, o_rows + sub * kSubChunk * block_.x.o.stride_l);
    }
  }
  // [/doc:whole_round]

  // [doc:any_round]
  // Any round: rows or columns may be missing, and a strong sub-chunk comes in several packets.
  __device__ __forceinline__ void take_any_round(int round, bool settled, bool strong,
                                                 bool columns_whole, bool accumulate) {
    const auto& packets = block_.smem.packets[round % 2];
    float o[kHalves][4] = {};
#pragma unroll 1
    for (int sub = 0; sub < Tiling::kSubChunks;) {
      take(packets[sub], settled ? packets[sub].in : packets[sub].between, values(round, sub), o);
      settled = strong;
      if (strong) {
        scale_state(packets[sub].out);
        if (block_.incomplete(round, sub)) {
          block_.meet();  // before the next packet is prepared
          block_.meet();  // before it is taken
          continue;
        }
      }
      const int row0 = block_.first_row(round) + sub * kSubChunk;
      if (columns_whole && row0 + kSubChunk <= block_.end) {
        store_whole(o, output_rows(row0));
      } else {
        store_some(o, row0, accumulate);
      }
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[half][i] = 0;
      }
      ++sub;
    }
  }
  // [/doc:any_round]

  __device__ __forceinline__ const T* values(int round, int sub) const {
    return &block_.smem.v[round % (Tiling::kSlots + 1)][sub * kSubChunk][column_];
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

  // [doc:take]
  // o += the packet's outputs; S moves halfway through its rows, and takes them in.
  __device__ __forceinline__ void take(const Packet<Tiling>& packet, const float* decay,
                                       const T* v_smem, float (&o)[kHalves][4]) {
    scale_state(decay);

    ValueFragment<kValueParts> v[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      load_b(v[tile], v_smem + tile * 16, Tiling::kPitchV);
      if constexpr (kValueParts == 1) load_a(v[tile], v_smem + tile * 16, Tiling::kPitchV);
    }

    float sums[kChains][kHalves][4] = {};
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[0][half][i] = o[half][i];
    }
    // q S: the accumulators of S are B operands as they are.
#pragma unroll
    for (int n = 0; n < Tiling::kE / 8; ++n) {
      const uint4 fragment = packet.q[n][lane_];
      const uint32_t q[4] = {fragment.x, fragment.y, fragment.z, fragment.w};
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const float* s = &S_[half / 2][n][half % 2 * 2];
        auto& sum = sums[n % kChains][half];
        mma_m16n8k8_tf32(sum, q, {__float_as_uint(s[0]), __float_as_uint(s[1])}, sum);
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
          auto& sum = sums[i % kChains][half];
          mma_m16n8k16(sum, scores, v[half / 2].b[part][half % 2], sum);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int chain = 1; chain < kChains; ++chain) sums[0][half][i] += sums[chain][half][i];
        o[half][i] = sums[0][half][i];
      }
    }

    // S^T += v^T k.
    if constexpr (kValueParts > 1) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        load_a(v[tile], v_smem + tile * 16, Tiling::kPitchV);
      }
    }
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

  // Where the lane's outputs of the sub-chunk go that begins with row0.
  __device__ __forceinline__ T* output_rows(int row0) const {
    return block_.x.o.row(block_.b, block_.h, row0 + lane_ / 4) + m0_ + lane_ % 4 * 2;
  }

  __device__ __forceinline__ void store_whole(const float (&o)[kHalves][4], T* o_rows) const {
    const float scale = block_.x.scale * kUncut;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        store_pair(o_rows + half * 8, o[half][2 * i] * scale, o[half][2 * i + 1] * scale);
      }
      o_rows += 8 * block_.x.o.stride_l;
    }
  }

  __device__ __forceinline__ void store_some(const float (&o)[kHalves][4], int row0,
                                             bool accumulate) const {
    const TensorView<T>& target = block_.x.o;
    const float scale = block_.x.scale * kUncut;
    const int m = m0_ + lane_ % 4 * 2;
    T* o_rows = output_rows(row0);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i / 2 * 8, column = half * 8 + i % 2;
        if (row0 + lane_ / 4 + row >= block_.end || m + column >= target.D) continue;
        T& y = o_rows[row * target.stride_l + column];
        y = T(accumulate ? float(y) + o[half][i] * scale : o[half][i] * scale);
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

  // [doc:load_state]
  // The state before the block's segment: the initial state, through the segments before; or what
  // is left of these, where they are so long that it is forgotten.
  __device__ __forceinline__ void load_state() {
    if (block_.segment > 0) grid_dependency_wait();  // what the segments add is written
    const int first = first_remembered();
    const auto& initial = block_.x.initial_state;
    if (first == 0 && initial.data != nullptr) {
      visit_state([&](float& S, int e, int m) { S = initial.row(block_.b, block_.h, e)[m]; });
    }
#pragma unroll 1
    for (int segment = first; segment < block_.segment; ++segment) {
      const float* log_decay = block_.segments.log_decay_of(block_.head(), segment);
#pragma unroll
      for (int n = 0; n < Tiling::kE / 8; ++n) {
        // So many loads are on their way together: there are no registers for all.
        if (n % 4 == 0 && n * 8 >= block_.x.k.D) break;
        const float2 log_d = load_pair(log_decay + n * 8 + lane_ % 4 * 2);
        const float2 d = {exp2_approx(log_d.x), exp2_approx(log_d.y)};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const float4 added =
              block_.segments.added_at(block_.head(), segment, m0_ / 16 + tile, n, lane_);
          float(&S)[4] = S_[tile][n];
          S[0] = S[0] * d.x + added.x;
          S[1] = S[1] * d.y + added.y;
          S[2] = S[2] * d.x + added.z;
          S[3] = S[3] * d.y + added.w;
        }
      }
    }
  }

  // The latest segment before the block's from which on every column decays to nothing; else 0.
  __device__ __forceinline__ int first_remembered() const {
    float log_decay[Tiling::kE / kWarp] = {};
    int segment = block_.segment - 1;
    for (; segment > 0; --segment) {
      const float* of_segment = block_.segments.log_decay_of(block_.head(), segment);
      bool forgotten = true;
#pragma unroll
      for (int i = 0; i < Tiling::kE / kWarp; ++i) {
        log_decay[i] += of_segment[i * kWarp + lane_];
        forgotten = forgotten && exp2_approx(log_decay[i]) == 0;
      }
      if (__all_sync(kFullWarp, forgotten)) break;
    }
    return segment > 0 ? segment : 0;
  }
  // [/doc:load_state]

  __device__ __forceinline__ void store_state() {
    const auto& final = block_.x.final_state;
    if (final.data == nullptr || block_.end < block_.x.k.L) return;
    visit_state([&](float& S, int e, int m) { final.row(block_.b, block_.h, e)[m] = S; });
  }

  const Block<Tiling>& block_;
  const int lane_, column_, m0_;
  // The state transposed, [value columns][E], as accumulator fragments.
  float S_[kTiles][Tiling::kE / 8][4] = {};
};

}  // namespace attn::chunked_gla
