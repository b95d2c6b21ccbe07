// The state warps: from packets and values to outputs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "common/chunked/block.cuh"
#include "common/mma_operands.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/grid_dependency.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"

namespace attn::chunked {

// 16 rows and 16 columns of values as the tensor core takes them: `b` as the B operand of scores times
// values, for each half of the columns, and `a` as the A operand of values^T writes. They are the same
// numbers in another order: an operand's registers must lie side by side. A float is the sum of two
// bf16, and takes twice the registers, so that there is no room for both at a time.
template <int kTerms>
struct ValueFragment {
  uint32_t b[kTerms][2][2];
  uint32_t a[kTerms][4];
};

// One state warp: it owns kWarpColumns value columns of the state.
template <class Tiling>
class StateWarp {
  using T = typename Tiling::T;
  static constexpr int kTiles = Tiling::kWarpColumns / 16;
  static constexpr int kHalves = 2 * kTiles;  // of 8 columns
  static constexpr int kRowParts = Tiling::kRowParts;
  static constexpr int kE = Tiling::kE / kRowParts;          // rows of the state
  static constexpr int kOutputHalves = kHalves / kRowParts;  // whose outputs the warp stores
  static constexpr int kTerms = Tiling::kTerms;
  // Whether the state leaves registers for more than one sub-chunk at a time.
  static constexpr bool kAhead = kTiles * kE / 2 <= 32;
  // Whether whole rounds have code of their own. It takes registers, of which there are none left
  // beside long columns of the state.
  static constexpr bool kWholeApart = Tiling::kE * kTerms <= 128;
  // Sums of the same outputs that do not wait for each other; again, if there are registers. Four
  // products at a time hide how long one takes.
  static constexpr int kChains = kTiles == 1 && kE <= 64 ? 2 : 1;

 public:
  __device__ __forceinline__ explicit StateWarp(const Block<Tiling>& block)
      : block_(block),
        lane_(threadIdx.x % kWarp),
        column_warp_(threadIdx.x / kWarp % Tiling::kColumnWarps),
        part_(kRowParts > 1 ? threadIdx.x / kWarp / Tiling::kColumnWarps : 0),
        column_(column_warp_ * Tiling::kWarpColumns),
        m0_(block.m0 + column_),
        o_m0_(m0_ + part_ * kOutputHalves * 8) {}

  // [doc:state_rounds]
  __device__ __forceinline__ void run(bool accumulate) {
    o_rows_ = output_rows(block_.begin);
    if constexpr (Tiling::Decay::kExclusive) load_bonus();
    // The bonus is there. Nothing to take yet: the first packets are being prepared.
    block_.meet();
    load_state();
    while_slabs_meet<Tiling::kSlabs>(block_.rounds > 0);
    const bool columns_whole =
        block_.aligned && !accumulate && m0_ + Tiling::kWarpColumns <= block_.x.value.D;
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
  // Here, where nobody is busy yet. The other warps send for rows.
  __device__ __forceinline__ void load_bonus() const {
    const auto& bonus = block_.x.bonus;
    for (int e = threadIdx.x; e < Tiling::kE; e += Tiling::kStateWarps * kWarp) {
      block_.smem.bonus[e] = e < bonus.D ? float(bonus.row(0, block_.h, 0)[e]) : 0;
    }
  }

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
    return {block_.smem.values[round % (Tiling::kSlots + 1)][sub * kSubChunk], column_};
  }

  // [doc:take]
  // S moves past the packet's rows, which are written into it; o = their outputs. kInFp16: all slabs of
  // the packet are, and are taken so.
  template <bool kInFp16>
  __device__ __forceinline__ void take(const Packet<Tiling>& packet,
                                       const typename Tiling::ValueRows& v_rows, int buffer,
                                       float (&o)[kOutputHalves][4]) {
    ValueFragment<kTerms> v[kTiles];
    float sums[kChains][kHalves][4] = {};
    // Scores times values. Low parts are not multiplied with low parts.
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) load_values_b(v[tile].b, v_rows.from(0, tile * 16));
#pragma unroll
    for (int i = 0; i < 2 / kRowParts; ++i) {
      const uint4 fragment = packet.scores[kRowParts == 1 ? i : part_][lane_];
      const uint32_t scores[4] = {fragment.x, fragment.y, fragment.z, fragment.w};
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        auto& sum = sums[i % kChains][half];
#pragma unroll
        for (int term = 0; term < (i == 0 ? kTerms : 1); ++term) {
          mma_m16n8k16(sum, scores, v[half / 2].b[term][half % 2], sum);
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

    // 16 columns of reads and writes after the other: while one's products wait for their turn in the sums
    // of outputs, or for the state to be decayed, those of the other run.
    const uint4(*reads)[kWarp] = packet.reads + part_ * (kE / 8);
    const float4* decay_smem = packet.decay[lane_ % 4] + part_ * (kE / 16);
    const int matrix = (lane_ % 16 * Tiling::kPitch + lane_ / 16 * 8 + part_ * kE) / 2;
#pragma unroll
    for (int n = 0; n < kE / 8; n += 2) {
      const float4 decays = decay_smem[n / 2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // reads S: the accumulators of S are B operands as they are.
        const uint4 fragment = reads[n + i][lane_];
        const uint32_t read[4] = {fragment.x, fragment.y, fragment.z, fragment.w};
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          const float* s = &S_[half / 2][n + i][half % 2 * 2];
          auto& sum = sums[i % kChains][half];
          mma_m16n8k8_tf32(sum, read, {__float_as_uint(s[0]), __float_as_uint(s[1])}, sum);
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
      // S^T += values^T writes.
      if constexpr (kInFp16) {
        uint32_t write[4];
        ldmatrix_trans(write, packet.write_high[0] + matrix + n * 4);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          mma_m16n8k16_fp16(S_[tile][n], v[tile].a[0], {write[0], write[1]}, S_[tile][n]);
          mma_m16n8k16_fp16(S_[tile][n + 1], v[tile].a[0], {write[2], write[3]}, S_[tile][n + 1]);
        }
      } else {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          uint32_t write[4];
          load_writes(write, packet, n, matrix, part);
#pragma unroll
          for (int term = 0; term < (part == 0 ? kTerms : 1); ++term) {
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile) {
              mma_m16n8k16(S_[tile][n], v[tile].a[term], {write[0], write[1]}, S_[tile][n]);
              mma_m16n8k16(S_[tile][n + 1], v[tile].a[term], {write[2], write[3]}, S_[tile][n + 1]);
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

  // [doc:load_writes]
  // 16 columns of writes, from 8 n of the warp's on, as the sum of two bf16: the first of them, or the
  // second. Every fp16 is such a sum.
  __device__ __forceinline__ void load_writes(uint32_t (&write)[4], const Packet<Tiling>& packet,
                                              int n, int matrix, int part) const {
    bool in_fp16 = false;
    if constexpr (Tiling::kFp16) in_fp16 = packet.in_fp16[(part_ * kE + n * 8) / Tiling::kSlab];
    load_bf16_part(write, packet.write_high[0], packet.write_low[0], matrix + n * 4, in_fp16, part);
  }
  // [/doc:load_writes]

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
    return block_.x.output.row(block_.b, block_.h, row0 + lane_ / 4) + o_m0_ + lane_ % 4 * 2;
  }

  __device__ __forceinline__ void store_whole(const float (&o)[kOutputHalves][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int half = 0; half < kOutputHalves; ++half) {
        store_pair(o_rows_ + half * 8, o[half][2 * i], o[half][2 * i + 1]);
      }
      o_rows_ += 8 * block_.x.output.stride_l;
    }
  }

  __device__ __forceinline__ void store_some(const float (&o)[kOutputHalves][4], int row0,
                                             bool accumulate) {
    const TensorView<T>& target = block_.x.output;
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

  // Calls visit(S, x, i) for each element of the state that the lane holds and the tensor has, in the
  // i-th of the lane's rows; x is its place there.
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
            visit(S_[half / 2][n][half % 2 * 2 + i], row[half * 8], 2 * n + i);
        }
        row += (i == 0 ? 1 : 7) * state.stride_l;
      }
    }
  }

  // [doc:load_state]
  // The state before the block's segment: what each segment before has added, as far as anything is
  // left of it, and likewise the initial state. Backwards: of the latest all is left, and with strong
  // decays nothing of the others.
  __device__ __forceinline__ void load_state() {
    const Segments& segments = block_.segments;
    const auto& initial = block_.x.initial_state;
    if (block_.segment == 0) {
      if (initial.data != nullptr) visit_state(initial, [](float& S, float x, int) { S = x; });
      return;
    }
    grid_dependency_wait();  // what the segments add is written
    // What is left of rows lane_, lane_ + 32, ... of an earlier state: 2^left.
    float left[kE / kWarp] = {};
    bool some_left = true;
#pragma unroll 1
    for (int segment = block_.segment - 1; segment >= 0 && some_left; --segment) {
      const float* log_decay = segments.log_decay_of(block_.head(), segment) + part_ * kE + lane_;
      float more[kE / kWarp];
#pragma unroll
      for (int i = 0; i < kE / kWarp; ++i) more[i] = log_decay[i * kWarp];
#pragma unroll
      for (int n = 0; n < kE / 8; ++n) {
        // So many loads are on their way together: there are no registers for all.
        if (n % 4 == 0 && part_ * kE + n * 8 >= block_.x.write.D) break;
        const float d0 = left_of(left, 2 * n), d1 = left_of(left, 2 * n + 1);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const float4 added = segments.added_at(block_.head(), segment, m0_ / 16 + tile,
                                                 part_ * (kE / 8) + n, lane_);
          float(&S)[4] = S_[tile][n];
          S[0] += d0 * added.x;
          S[1] += d1 * added.y;
          S[2] += d0 * added.z;
          S[3] += d1 * added.w;
        }
      }
      some_left = false;
#pragma unroll
      for (int i = 0; i < kE / kWarp; ++i) {
        left[i] += more[i];
        some_left = some_left || exp2_approx(left[i]) > 0;
      }
      some_left = __any_sync(kFullWarp, some_left);
    }
    if (!some_left || initial.data == nullptr) return;
    // (Not inside the visit: a shuffle takes the whole warp.)
    float d[kE / 4];
#pragma unroll
    for (int i = 0; i < kE / 4; ++i) d[i] = left_of(left, i);
    visit_state(initial, [&](float& S, float x, int i) { S += d[i] * x; });
  }

  // Of the lane's i-th row of the state: 0 and 1 are its rows of the first eight.
  static __device__ __forceinline__ float left_of(const float (&left)[kE / kWarp], int i) {
    const int from = i / 2 % 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    return exp2_approx(__shfl_sync(kFullWarp, left[i / 8], from));
  }
  // [/doc:load_state]

  __device__ __forceinline__ void store_state() {
    const auto& final = block_.x.final_state;
    if (final.data == nullptr || block_.end < block_.x.write.L) return;
    visit_state(final, [](float S, float& x, int) { x = S; });
  }

  const Block<Tiling>& block_;
  const int lane_, column_warp_, part_;
  const int column_, m0_;  // the first value column, of the block's and of the head's
  const int o_m0_;         // the first whose outputs the warp stores
  T* o_rows_;              // where the lane's outputs of the next sub-chunk go
  // The state transposed, [value columns][rows], as accumulator fragments.
  float S_[kTiles][kE / 8][4] = {};
};

}  // namespace attn::chunked
