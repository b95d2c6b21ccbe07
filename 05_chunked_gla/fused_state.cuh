// The state warps of the fused kernel: from packets and rows of v to outputs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "05_chunked_gla/fused_block.cuh"
#include "common/mma_operands.cuh"
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

// One state warp: it owns kWarpColumns value columns of the state.
template <class Tiling>
class StateWarp {
  using T = typename Tiling::T;
  static constexpr int kTiles = Tiling::kWarpColumns / 16;
  static constexpr int kHalves = 2 * kTiles;  // of 8 columns
  static constexpr int kParts = Tiling::kParts;
  static constexpr int kE = Tiling::kE / kParts;          // rows of the state
  static constexpr int kOutputHalves = kHalves / kParts;  // whose outputs the warp stores
  static constexpr int kValueParts = sizeof(T) / 2;
  // Whether the state leaves registers for more than one sub-chunk at a time.
  static constexpr bool kAhead = kTiles * kE / 2 <= 32;
  // Whether whole rounds have code of their own. It takes registers, of which there are none left
  // beside long columns of the state.
  static constexpr bool kWholeApart = Tiling::kE * kValueParts <= 128;
  // Sums of the same outputs that do not wait for each other; again, if there are registers. Four
  // products at a time hide how long one takes.
  static constexpr int kChains = kTiles == 1 && kE <= 64 ? 2 : 1;

 public:
  __device__ __forceinline__ explicit StateWarp(const Block<Tiling>& block)
      : block_(block),
        lane_(threadIdx.x % kWarp),
        column_warp_(threadIdx.x / kWarp % Tiling::kColumnWarps),
        part_(kParts > 1 ? threadIdx.x / kWarp / Tiling::kColumnWarps : 0),
        column_(column_warp_ * Tiling::kWarpColumns),
        m0_(block.m0 + column_),
        o_m0_(m0_ + part_ * kOutputHalves * 8) {}

  // [doc:state_rounds]
  __device__ __forceinline__ void run(bool accumulate) {
    o_rows_ = output_rows(block_.begin);
    block_.meet();  // nothing to take yet: the first packets are being prepared
    load_state();
    while_slabs_meet<Tiling::kSlabs>(block_.rounds > 0);
    const bool columns_whole =
        block_.aligned && !accumulate && m0_ + Tiling::kWarpColumns <= block_.x.v.D;
#pragma unroll 1
    for (int round = 0; round < block_.rounds; ++round) {
      block_.meet();  // the packets of this round are whole
      while_slabs_meet<Tiling::kSlabs>(round + 1 < block_.rounds);
      const bool whole = columns_whole && block_.first_row(round + 1) <= block_.end;
      if (Tiling::kFp16 && !in_fp16(round)) {
        take_round<false, false>(round, whole, accumulate);
      } else if (kWholeApart && whole) {
        take_round<Tiling::kFp16, true>(round, whole, accumulate);
      } else {
        take_round<Tiling::kFp16, false>(round, whole, accumulate);
      }
    }
    store_state();
  }
  // [/doc:state_rounds]

 private:
  // Whether all packets of a round are.
  __device__ __forceinline__ bool in_fp16(int round) const {
    const auto& packets = block_.smem.packets[round % 2];
    const auto& packet = packets[lane_ % Tiling::kSubChunks];
    return __all_sync(kFullWarp, packet.in_fp16[lane_ / Tiling::kSubChunks % Tiling::kSlabs]);
  }

  // [doc:take_round]
  // kInFp16: all packets are. whole: all rows and columns are there, and outputs are stored, not
  // added. kWhole: that is known beforehand, so that there are no branches, and the compiler can
  // begin with a sub-chunk while it waits for the one before.
  template <bool kInFp16, bool kWhole>
  __device__ __forceinline__ void take_round(int round, bool whole, bool accumulate) {
    // Rounds with packets that are not in fp16, where they may be, have one code for all.
    constexpr bool kSomeOnly = kWholeApart && kInFp16 == Tiling::kFp16;
#pragma unroll(kWhole&& kAhead ? Tiling::kSubChunks : 1)
    for (int sub = 0; sub < Tiling::kSubChunks; ++sub) {
      float o[kOutputHalves][4];
      take<kInFp16>(block_.smem.packets[round % 2][sub], values(round, sub), sub % 2, o);
      if (kWhole || (!kSomeOnly && whole)) {
        store_whole(o);
      } else {
        store_some(o, block_.first_row(round) + sub * kSubChunk, accumulate);
      }
    }
  }
  // [/doc:take_round]

  __device__ __forceinline__ typename Tiling::ValueRows values(int round, int sub) const {
    return {block_.smem.v[round % (Tiling::kSlots + 1)][sub * kSubChunk], column_};
  }

  // [doc:take]
  // S moves past the packet's rows, and takes them in; o = their outputs. kInFp16: all slabs of the
  // packet are, and are taken so.
  template <bool kInFp16>
  __device__ __forceinline__ void take(const Packet<Tiling>& packet,
                                       const typename Tiling::ValueRows& v_rows, int buffer,
                                       float (&o)[kOutputHalves][4]) {
    ValueFragment<kValueParts> v[kTiles];
    float sums[kChains][kHalves][4] = {};
    // scores v. Low parts are not multiplied with low parts.
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) load_values_b(v[tile].b, v_rows.from(0, tile * 16));
#pragma unroll
    for (int i = 0; i < 2 / kParts; ++i) {
      const uint4 fragment = packet.scores[kParts == 1 ? i : part_][lane_];
      const uint32_t scores[4] = {fragment.x, fragment.y, fragment.z, fragment.w};
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        auto& sum = sums[i % kChains][half];
#pragma unroll
        for (int part = 0; part < (i == 0 ? kValueParts : 1); ++part) {
          mma_m16n8k16(sum, scores, v[half / 2].b[part][half % 2], sum);
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      load_values_a(v[tile].a, v_rows.from(0, tile * 16));
      if constexpr (kInFp16) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[tile].a[0][i] = bf16_to_halves(v[tile].a[0][i]);
      }
    }

    // 16 columns of q and k after the other: while one's products wait for their turn in the sums
    // of outputs, or for the state to be decayed, those of the other run.
    const uint4(*q_smem)[kWarp] = packet.q + part_ * (kE / 8);
    const float4* decay_smem = packet.decay[lane_ % 4] + part_ * (kE / 16);
    const int matrix = (lane_ % 16 * Tiling::kPitch + lane_ / 16 * 8 + part_ * kE) / 2;
#pragma unroll
    for (int n = 0; n < kE / 8; n += 2) {
      const float4 decays = decay_smem[n / 2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // q S: the accumulators of S are B operands as they are.
        const uint4 fragment = q_smem[n + i][lane_];
        const uint32_t q[4] = {fragment.x, fragment.y, fragment.z, fragment.w};
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          const float* s = &S_[half / 2][n + i][half % 2 * 2];
          auto& sum = sums[i % kChains][half];
          mma_m16n8k8_tf32(sum, q, {__float_as_uint(s[0]), __float_as_uint(s[1])}, sum);
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
          mma_m16n8k16_fp16(S_[tile][n], v[tile].a[0], {k[0], k[1]}, S_[tile][n]);
          mma_m16n8k16_fp16(S_[tile][n + 1], v[tile].a[0], {k[2], k[3]}, S_[tile][n + 1]);
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
              mma_m16n8k16(S_[tile][n], v[tile].a[part], {k[0], k[1]}, S_[tile][n]);
              mma_m16n8k16(S_[tile][n + 1], v[tile].a[part], {k[2], k[3]}, S_[tile][n + 1]);
            }
          }
        }
      }
    }
#pragma unroll
    for (int chain = 1; chain < kChains; ++chain) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[0][half][i] += sums[chain][half][i];
      }
    }
    share_outputs(sums[0], buffer, o);
  }
  // [/doc:take]

  // [doc:load_keys]
  // 16 columns of k, from 8 n of the warp's on, as the sum of two bf16: the first of them, or the
  // second. Every fp16 is such a sum.
  __device__ __forceinline__ void load_keys(uint32_t (&k)[4], const Packet<Tiling>& packet, int n,
                                            int matrix, int k_part) const {
    bool in_fp16 = false;
    if constexpr (Tiling::kFp16) in_fp16 = packet.in_fp16[(part_ * kE + n * 8) / Tiling::kSlab];
    load_bf16_part(k, packet.k_high[0], packet.k_low[0], matrix + n * 4, in_fp16, k_part);
  }
  // [/doc:load_keys]

  // [doc:share_outputs]
  // Two warps with the same columns and half of E each: each adds up half of the outputs.
  __device__ __forceinline__ void share_outputs(const float (&sums)[kHalves][4], int buffer,
                                                float (&o)[kOutputHalves][4]) const {
    constexpr int kShared = kHalves - kOutputHalves;
    if constexpr (kShared > 0) {
      auto& smem = block_.smem.sums[buffer];
      const bool upper = part_ == 1;
#pragma unroll
      for (int half = 0; half < kShared; ++half) {
        const float(&x)[4] = sums[half], (&y)[4] = sums[half + kShared];
        smem[threadIdx.x / kWarp][half][lane_] =
            upper ? float4{x[0], x[1], x[2], x[3]} : float4{y[0], y[1], y[2], y[3]};
      }
      // The other's are there. It has also read mine of the sub-chunk before, whose place is next.
      block_.meet_parts(column_warp_);
#pragma unroll
      for (int half = 0; half < kShared; ++half) {
        const float(&x)[4] = sums[half], (&y)[4] = sums[half + kShared];
        const float4 more = smem[column_warp_ + (1 - part_) * Tiling::kColumnWarps][half][lane_];
        o[half][0] = (upper ? y[0] : x[0]) + more.x;
        o[half][1] = (upper ? y[1] : x[1]) + more.y;
        o[half][2] = (upper ? y[2] : x[2]) + more.z;
        o[half][3] = (upper ? y[3] : x[3]) + more.w;
      }
    } else {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[half][i] = sums[half][i];
      }
    }
  }
  // [/doc:share_outputs]

  // Where the lane's outputs of the sub-chunk go that begins with row0.
  __device__ __forceinline__ T* output_rows(int row0) const {
    return block_.x.o.row(block_.b, block_.h, row0 + lane_ / 4) + o_m0_ + lane_ % 4 * 2;
  }

  __device__ __forceinline__ void store_whole(const float (&o)[kOutputHalves][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int half = 0; half < kOutputHalves; ++half) {
        store_pair(o_rows_ + half * 8, o[half][2 * i], o[half][2 * i + 1]);
      }
      o_rows_ += 8 * block_.x.o.stride_l;
    }
  }

  __device__ __forceinline__ void store_some(const float (&o)[kOutputHalves][4], int row0,
                                             bool accumulate) {
    const TensorView<T>& target = block_.x.o;
    const int m = o_m0_ + lane_ % 4 * 2;
#pragma unroll
    for (int half = 0; half < kOutputHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i / 2 * 8, column = half * 8 + i % 2;
        if (row0 + lane_ / 4 + row >= block_.end || m + column >= target.D) continue;
        T& y = o_rows_[row * target.stride_l + column];
        y = T(accumulate ? float(y) + o[half][i] : o[half][i]);
      }
    }
    o_rows_ += kSubChunk * target.stride_l;
  }

  // Calls visit(S, x) for each element of the state that the lane holds and the tensor has; x is its
  // place there.
  template <class U, class Visit>
  __device__ __forceinline__ void visit_state(const TensorView<U>& state, Visit&& visit) {
    const int e0 = part_ * kE + lane_ % 4 * 2, m0 = m0_ + lane_ / 4;
    const int E = static_cast<int>(state.L) - e0, M = static_cast<int>(state.D) - m0;
    U* row = state.row(block_.b, block_.h, e0) + m0;
#pragma unroll
    for (int n = 0; n < kE / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          if (n * 8 + i < E && half * 8 < M)
            visit(S_[half / 2][n][half % 2 * 2 + i], row[half * 8]);
        }
        row += (i == 0 ? 1 : 7) * state.stride_l;
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
      visit_state(initial, [](float& S, float x) { S = x; });
    }
#pragma unroll 1
    for (int segment = first; segment < block_.segment; ++segment) {
      const float* log_decay = block_.segments.log_decay_of(block_.head(), segment) + part_ * kE;
#pragma unroll
      for (int n = 0; n < kE / 8; ++n) {
        // So many loads are on their way together: there are no registers for all.
        if (n % 4 == 0 && part_ * kE + n * 8 >= block_.x.k.D) break;
        const float2 log_d = load_pair(log_decay + n * 8 + lane_ % 4 * 2);
        const float2 d = {exp2_approx(log_d.x), exp2_approx(log_d.y)};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const float4 added = block_.segments.added_at(block_.head(), segment, m0_ / 16 + tile,
                                                        part_ * (kE / 8) + n, lane_);
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
    visit_state(final, [](float S, float& x) { x = S; });
  }

  const Block<Tiling>& block_;
  const int lane_, column_warp_, part_;
  const int column_, m0_;  // the first value column, of the block's and of the head's
  const int o_m0_;         // the first whose outputs the warp stores
  T* o_rows_;              // where the lane's outputs of the next sub-chunk go
  // The state transposed, [value columns][rows], as accumulator fragments.
  float S_[kTiles][kE / 8][4] = {};
};

}  // namespace attn::chunked_gla
