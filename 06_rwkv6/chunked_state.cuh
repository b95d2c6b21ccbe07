// The state warps of the chunked kernel: from packets and rows of v to outputs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "06_rwkv6/chunked_block.cuh"
#include "06_rwkv6/chunked_rows.cuh"
#include "common/mma_operands.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/grid_dependency.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/warp.cuh"

namespace attn::rwkv6 {

// One state warp: it owns kWarpColumns value columns of the state, with all or half of its rows.
template <class Tiling>
class StateWarp {
  using T = typename Tiling::T;
  static constexpr int kTiles = Tiling::kWarpColumns / 16;
  static constexpr int kHalves = 2 * kTiles;  // of 8 columns
  static constexpr int kParts = Tiling::kParts;
  static constexpr int kE = Tiling::kE / kParts;          // rows of the state
  static constexpr int kOutputHalves = kHalves / kParts;  // whose outputs the warp stores
  static constexpr int kValueParts = sizeof(T) / 2;
  static constexpr bool kFours = sizeof(T) == 2 && kOutputHalves % 2 == 0;
  static constexpr int kThreads = Tiling::kStateWarps * kWarp;
  static constexpr bool kAhead = Tiling::kStateWarpsAhead;
  // Whether the state leaves registers for more than one sub-chunk at a time.
  static constexpr bool kUnrolled = kTiles * kE / 2 <= 32;
  // Sums of products that do not wait for each other: four of them hide how long a product takes.
  static constexpr int kChains = kTiles == 1 ? 2 : 1;

 public:
  __device__ __forceinline__ explicit StateWarp(const Block<Tiling>& block)
      : block_(block),
        lane_(threadIdx.x % kWarp),
        column_warp_(threadIdx.x / kWarp % Tiling::kColumnWarps),
        part_(threadIdx.x / kWarp / Tiling::kColumnWarps),
        column_(column_warp_ * Tiling::kWarpColumns),
        m0_(block.m0 + column_),
        o_m0_(m0_ + part_ * kOutputHalves * 8),
        o_rows_(output_rows(block.begin) + (kFours && lane_ % 2 == 1 ? 8 - 2 : 0)) {}

  // [doc:state_rounds]
  __device__ __forceinline__ void run(bool accumulate) {
    const bool columns_whole =
        block_.aligned && !accumulate && m0_ + Tiling::kWarpColumns <= block_.x.v.D;
    const auto whole = [&](int round) {
      return columns_whole && first_row(round, Tiling::kSubChunks) <= block_.end;
    };
    if constexpr (kAhead) {
      run_ahead(whole);
    } else {
      load_bonus(block_, threadIdx.x, kThreads);
      block_.meet();  // nothing to take yet: the first packets are being prepared, meanwhile
      load_state();
      block_.while_slabs_meet(0);
#pragma unroll 1
      for (int round = 0; round < block_.rounds; ++round) {
        block_.meet();  // the packets of this round are whole
        block_.while_slabs_meet(round + 1);
        if (kUnrolled && whole(round)) {
          take_round<true>(round, true, accumulate);
        } else {
          take_round<false>(round, whole(round), accumulate);
        }
      }
    }
    store_state();
  }
  // [/doc:state_rounds]

 private:
  __device__ __forceinline__ int first_row(int round, int sub) const {
    return block_.begin + round * Tiling::kRows + sub * kSubChunk;
  }

  // [doc:take_round]
  // whole: all rows and columns are there, and outputs are stored, not added. kWhole: that is known
  // beforehand, so that there are no branches, and a sub-chunk may begin while products of the one
  // before are on their way.
  template <bool kWhole>
  __device__ __forceinline__ void take_round(int round, bool whole, bool accumulate) {
#pragma unroll(kWhole ? Tiling::kSubChunks : 1)
    for (int sub = 0; sub < Tiling::kSubChunks; ++sub) {
      float o[kHalves][4];
      take(place(round, sub), o);
      if constexpr (kParts > 1) {
        share(o, sub % 2);
        if (kWhole || whole) {
          add_and_store<true>(first_row(round, sub));
        } else {
          add_and_store<false>(first_row(round, sub));
        }
      } else if (kWhole || whole) {
        store_whole(o);
      } else {
        store_some(o, first_row(round, sub), accumulate);
      }
    }
  }
  // [/doc:take_round]

  // [doc:run_ahead]
  // With registers for all fragments of a sub-chunk. Those of the next are fetched among the products
  // of one, and so are rows of a round to come; and a sub-chunk's outputs are added up among the
  // products of the next.
  template <class Whole>
  __device__ __forceinline__ void run_ahead(Whole&& whole) {
    constexpr int kSlots = Tiling::kSlots;
    BlockRows<Tiling, kThreads> rows(block_, threadIdx.x);
    for (int round = 0; round < kSlots - 1; ++round) rows.load_round();
    rows.template wait<kSlots - 2>();
    block_.meet();  // the rows of round 0 have arrived, and the bonus
    rows.load_round();
    load_state();
    block_.while_slabs_meet(0);
    rows.template wait<kSlots - 2>();
    block_.meet();  // the packets of round 0 are whole, and the rows of round 1 have arrived
    block_.while_slabs_meet(1);
    fetch(place(0, 0));
#pragma unroll 1
    for (int round = 0; round < block_.rounds; ++round) {
      if (whole(round)) {
        take_round_ahead<true>(rows, round);
      } else {
        take_round_ahead<false>(rows, round);
      }
    }
    add_and_store<false>(first_row(block_.rounds, -1));
    cp_async_wait<0>();
  }

  template <bool kWhole>
  __device__ __forceinline__ void take_round_ahead(BlockRows<Tiling, kThreads>& rows, int round) {
#pragma unroll
    for (int sub = 0; sub < Tiling::kSubChunks; ++sub) {
      const bool last = sub == Tiling::kSubChunks - 1;
      if (last && round + 1 < block_.rounds) {
        rows.template wait<Tiling::kSlots - 2, 1>();
        // The packets of the next round are whole, and those of this one in registers. The rows of
        // round + 2 have arrived, and those of this one are used.
        block_.meet();
        block_.while_slabs_meet(round + 2);
      }
      float sums[kHalves][4];
      // (After the last sub-chunk there is nothing to fetch. What is read then is not used.)
      take(last ? place(round + 1, 0) : place(round, sub + 1), sums);
      rows.load(sub, kWhole || block_.aligned);
      if (round > 0 || sub > 0) add_and_store<kWhole>(first_row(round, sub - 1));
      share(sums, sub % 2);
    }
  }
  // [/doc:run_ahead]

  // A sub-chunk in shared memory.
  struct Place {
    const Packet<Tiling>& packet;
    typename Tiling::ValueRows v;
  };
  __device__ __forceinline__ Place place(int round, int sub) const {
    return {block_.smem.packets[round % 2][sub],
            {block_.smem.v[round % (Tiling::kSlots + 1)][sub * kSubChunk], column_}};
  }

  // [doc:fetch]
  // What a lane has of a sub-chunk as operands of products: scores and values, and of every 16 columns
  // r, the decays, and k.
  struct Columns {
    uint4 r[2];
    float4 decays;
    uint32_t k[2][4];
  };
  __device__ __forceinline__ void fetch_scores(const Place& place) {
#pragma unroll
    for (int i = 0; i < 2 / kParts; ++i) {
      scores_[i] = place.packet.scores[kParts == 1 ? i : part_][lane_];
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      load_values_b(v_b_[tile], place.v.from(0, tile * 16));
    }
  }
  __device__ __forceinline__ void fetch_values(const Place& place) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      load_values_a(v_a_[tile], place.v.from(0, tile * 16));
    }
  }
  __device__ __forceinline__ void fetch_columns(const Place& place, int n) {
    const Packet<Tiling>& packet = place.packet;
    Columns& columns = columns_[n];
    const int matrix = (lane_ % 16 * Tiling::kPitch + lane_ / 16 * 8 + part_ * kE) / 2 + n * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) columns.r[i] = packet.r[part_ * (kE / 8) + 2 * n + i][lane_];
    columns.decays = packet.decay[lane_ % 4][part_ * (kE / 16) + n];
    ldmatrix_trans(columns.k[0], packet.k_high[0] + matrix);
    ldmatrix_trans(columns.k[1], packet.k_low[0] + matrix);
  }
  __device__ __forceinline__ void fetch(const Place& place) {
    fetch_scores(place);
    fetch_values(place);
#pragma unroll
    for (int n = 0; n < kE / 16; ++n) fetch_columns(place, n);
  }
  // [/doc:fetch]

  // [doc:take]
  // Takes a sub-chunk: outputs read the state before it, then the state decays and takes the rows in.
  // What it needs is fetched from `place`; or, kAhead, what the next needs, as soon as there is room.
  __device__ __forceinline__ void take(const Place& place, float (&o)[kHalves][4]) {
    float sums[kChains][kHalves][4] = {};
    // scores v. Low parts are not multiplied with low parts.
    if (!kAhead) fetch_scores(place);
#pragma unroll
    for (int i = 0; i < 2 / kParts; ++i) {
      const uint32_t scores[4] = {scores_[i].x, scores_[i].y, scores_[i].z, scores_[i].w};
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        auto& sum = sums[i % kChains][half];
#pragma unroll
        for (int part = 0; part < (i == 0 ? kValueParts : 1); ++part) {
          mma_m16n8k16(sum, scores, v_b_[half / 2][part][half % 2], sum);
        }
      }
    }
    if (kAhead) fetch_scores(place);
    if (!kAhead) fetch_values(place);
    // 16 columns of r and k after the other: while one's products wait for their turn in the sums of
    // outputs, or for the state to be decayed, those of the other run.
#pragma unroll
    for (int n = 0; n < kE / 16; ++n) {
      if (!kAhead) fetch_columns(place, n);
      const Columns& columns = columns_[n];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // r S: the accumulators of S are B operands as they are.
        const uint32_t r[4] = {columns.r[i].x, columns.r[i].y, columns.r[i].z, columns.r[i].w};
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          const float* s = &S_[half / 2][2 * n + i][half % 2 * 2];
          auto& sum = sums[i % kChains][half];
          mma_m16n8k8_tf32(sum, r, {__float_as_uint(s[0]), __float_as_uint(s[1])}, sum);
        }
        const float2 decay = i == 0 ? float2{columns.decays.x, columns.decays.y}
                                    : float2{columns.decays.z, columns.decays.w};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          S_[tile][2 * n + i][0] *= decay.x;
          S_[tile][2 * n + i][1] *= decay.y;
          S_[tile][2 * n + i][2] *= decay.x;
          S_[tile][2 * n + i][3] *= decay.y;
        }
      }
      // S^T += v^T k.
#pragma unroll
      for (int k_part = 0; k_part < 2; ++k_part) {
        const uint32_t(&k)[4] = columns.k[k_part];
#pragma unroll
        for (int part = 0; part < (k_part == 0 ? kValueParts : 1); ++part) {
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            auto& v = v_a_[tile][part];
            mma_m16n8k16(S_[tile][2 * n], v, {k[0], k[1]}, S_[tile][2 * n]);
            mma_m16n8k16(S_[tile][2 * n + 1], v, {k[2], k[3]}, S_[tile][2 * n + 1]);
          }
        }
      }
      if (kAhead) fetch_columns(place, n);
    }
    if (kAhead) fetch_values(place);
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

  // [doc:share_outputs]
  // Two warps with the same columns and half of E each: each adds up half of the outputs. The other
  // half goes to the other warp ...
  __device__ __forceinline__ void share(const float (&sums)[kHalves][4], int buffer) {
    const bool upper = part_ == 1;
#pragma unroll
    for (int i = 0; i < kOutputHalves; ++i) {
      const float(&x)[4] = sums[i], (&y)[4] = sums[i + kOutputHalves];
      block_.smem.sums[buffer][threadIdx.x / kWarp][i][lane_] =
          upper ? float4{x[0], x[1], x[2], x[3]} : float4{y[0], y[1], y[2], y[3]};
#pragma unroll
      for (int j = 0; j < 4; ++j) own_[i][j] = upper ? y[j] : x[j];
    }
    buffer_ = buffer;
  }

  // ... and is there when both have met. It has then also read mine of the sub-chunk before, whose
  // place is next.
  template <bool kWhole>
  __device__ __forceinline__ void add_and_store(int row0) {
    block_.meet_parts(column_warp_);
    const int other = column_warp_ + (1 - part_) * Tiling::kColumnWarps;
#pragma unroll
    for (int i = 0; i < kOutputHalves; ++i) {
      const float4 more = block_.smem.sums[buffer_][other][i][lane_];
      own_[i][0] += more.x;
      own_[i][1] += more.y;
      own_[i][2] += more.z;
      own_[i][3] += more.w;
    }
    if (kWhole) {
      store_whole(own_);
    } else {
      store_some(own_, row0, false);
    }
  }
  // [/doc:share_outputs]

  // [doc:load_state]
  // The state before the block's segment: the initial state, through the segments before; or zero
  // through as many of them as there is anything left of.
  __device__ __forceinline__ void load_state() {
    const auto& segments = block_.segments;
    const int64_t index = segments.index(block_.b * block_.x.k.H + block_.h, 0);
    if (block_.segment > 0) grid_dependency_wait();  // what the segments do is written
    int first = block_.segment;
    bool some_left = true;  // of the state before `first`, in any row
    float left[Tiling::kE / kWarp] = {};
    while (first > 0 && some_left) {
      const float* log_decay = segments.log_decay_of(index + --first) + lane_;
      some_left = false;
#pragma unroll
      for (int i = 0; i < Tiling::kE / kWarp; ++i) {
        left[i] += log_decay[i * kWarp];
        some_left = some_left || left[i] >= kNothing;
      }
      some_left = __any_sync(kFullWarp, some_left);
    }
    const auto& initial = block_.x.initial_state;
    if (some_left && initial.data != nullptr) {
      visit_state(initial, [](float& S, const float& x) { S = x; });
    }
#pragma unroll 1
    for (int segment = first; segment < block_.segment; ++segment) {
      const float* log_decay = segments.log_decay_of(index + segment) + part_ * kE + lane_ % 4 * 2;
      const float4* added = segments.added_by(index + segment, m0_ / 16) +
                            part_ * (kE / 8) * segments.column_tiles * kWarp + lane_;
#pragma unroll
      for (int n = 0; n < kE / 8; ++n) {
        const float2 log_d = load_pair(log_decay + n * 8);
        const float2 d = {exp2_approx(log_d.x), exp2_approx(log_d.y)};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const float4 A = added[(n * segments.column_tiles + tile) * kWarp];
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
    const auto& final = block_.x.final_state;
    if (final.data == nullptr || block_.segment < block_.segments.count - 1) return;
    visit_state(final, [](const float& S, float& x) { x = S; });
  }

  // Where the lane's outputs of the sub-chunk go that begins with row0.
  __device__ __forceinline__ T* output_rows(int row0) const {
    return block_.x.o.row(block_.b, block_.h, row0 + lane_ / 4) + o_m0_ + lane_ % 4 * 2;
  }
  __device__ __forceinline__ float scale() const { return block_.x.scale * kUncut; }

  // The outputs of the next 16 rows, and all columns. Pairs of bf16 are brought together to four by
  // neighbouring lanes, so that four lanes write whole sectors of 32 bytes: one lane the first eight
  // columns', the other the next eight's.
  __device__ __forceinline__ void store_whole(const float (&o)[kOutputHalves][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kFours) {
        const bool odd = lane_ % 2 == 1;
#pragma unroll
        for (int half = 0; half < kOutputHalves; half += 2) {
          const uint32_t x = scaled_pair(o[half], i), y = scaled_pair(o[half + 1], i);
          const uint32_t other = __shfl_xor_sync(kFullWarp, odd ? x : y, 1);
          *reinterpret_cast<uint2*>(o_rows_ + half * 8) = odd ? uint2{other, y} : uint2{x, other};
        }
      } else {
#pragma unroll
        for (int half = 0; half < kOutputHalves; ++half) {
          store_pair(o_rows_ + half * 8, o[half][2 * i] * scale(), o[half][2 * i + 1] * scale());
        }
      }
      o_rows_ += 8 * block_.x.o.stride_l;
    }
  }
  __device__ __forceinline__ uint32_t scaled_pair(const float (&o)[4], int i) const {
    return pack_high(o[2 * i] * scale(), o[2 * i + 1] * scale());
  }

  // Those of them that there are.
  __device__ __forceinline__ void store_some(const float (&o)[kOutputHalves][4], int row0,
                                             bool accumulate) const {
    T* const o_rows = output_rows(row0);
    const int m = o_m0_ + lane_ % 4 * 2;
#pragma unroll
    for (int half = 0; half < kOutputHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i / 2 * 8, column = half * 8 + i % 2;
        if (row0 + lane_ / 4 + row >= block_.end || m + column >= block_.x.o.D) continue;
        T& y = o_rows[row * block_.x.o.stride_l + column];
        y = T(accumulate ? float(y) + o[half][i] * scale() : o[half][i] * scale());
      }
    }
  }

  // Calls visit(S, x) for each element S of the state that the lane holds and its place x in a tensor
  // of states, if the tensor has it.
  template <class U, class Visit>
  __device__ __forceinline__ void visit_state(const TensorView<U>& states, Visit&& visit) {
    const int m = m0_ + lane_ / 4;
    int e = part_ * kE + lane_ % 4 * 2;
    U* row = states.row(block_.b, block_.h, e) + m;
#pragma unroll
    for (int n = 0; n < kE / 8; ++n) {
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
  const int lane_, column_warp_, part_;
  const int column_, m0_;  // the first value column, of the block's and of the head's
  const int o_m0_;         // the first whose outputs the warp stores
  T* o_rows_;              // where the lane's outputs of the next whole sub-chunk go
  uint4 scores_[2 / kParts];
  uint32_t v_b_[kTiles][kValueParts][2][2], v_a_[kTiles][kValueParts][4];
  Columns columns_[kE / 16];
  float own_[kOutputHalves][4];  // outputs that wait for the other part's
  int buffer_;                   // where these are
  // The state transposed, [value columns][rows], as accumulator fragments.
  float S_[kTiles][kE / 8][4] = {};
};

}  // namespace attn::rwkv6
