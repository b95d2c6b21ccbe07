// What every segment of a sequence adds to the state, without the recurrence.
//
// The idea: a row of a segment is left at the segment's end with k_j v_j^T, decayed by all gates
// after it. So walk backwards, with a running sum of the gates of each column:
//
//   added = sum over j of k'_j v_j^T,   k'_j = k_j exp(sum over i > j of g_i)
//
// This is a product of matrices that is only added to. No state decays, nothing waits for the row
// before but a sum, and no gate is too strong: no exponent is above 0. And it ends early: once the
// sum of every column is so low that its exponential is 0 in a float, all further rows add 0, and
// are not read. With gates of logsigmoid(N(0, 1)) / 16 that is after 1800 rows, with gates of
// logsigmoid(N(0, 1)) after 120. (So a NaN or an infinity in such a row is forgotten. The recurrence
// would carry it on, as 0 times infinity.)
//
// Who computes what: a block has a segment of one head and a tile of the state. A warp has 16 of the
// columns of k, all of the block's columns of v, and every second (or fourth) sub-chunk of 16 rows.
// It sums up the gates of its next sub-chunk, by products with ones, and tells the warps that share
// its columns; scales its elements of k, in the registers in which a tensor core takes them; and
// keeps what they add in accumulators, which the warps that share columns add up in the end.
//
// What memory moves: k and g of the rows that count once for each 128 columns of v, and v for as many
// columns of k; the states are little beside them.
//
// What limits it: not one thing. A block of 128 x 128 takes 1.4 us for 32 rows on an H200, of which
// their way from memory would be 0.8, their products 0.4, and scaling k with all that goes with it 1:
// between two barriers the warps do the same at the same time. Where there are few rows, the first
// take 3 us to arrive.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "05_chunked_gla/fused_block.cuh"
#include "05_chunked_gla/fused_load.cuh"
#include "05_chunked_gla/operands.cuh"
#include "05_chunked_gla/segments.cuh"
#include "common/launch.cuh"
#include "common/mma_operands.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/grid_dependency.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/max_bf16.cuh"
#include "common/ptx/mma.cuh"
#include "common/shared_storage.cuh"
#include "common/warp.cuh"

namespace attn::chunked_gla {

// How a block divides its tile of a state.
template <class T_, int kColumns, int kGroups_>
struct SumTiling {
  using T = T_;
  static constexpr int kE = kColumns;       // columns of k and g
  static constexpr int kM = kColumns;       // columns of v
  static constexpr int kGroups = kGroups_;  // of warps, which take sub-chunks in turn
  static constexpr int kStages = 4;         // buffers of a sub-chunk for each group
  static constexpr int kWarpColumns = 16;   // of k: two tiles of a B operand
  static constexpr int kSlabs = kE / kWarpColumns;
  static constexpr int kWarps = kGroups * kSlabs;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kRows = kGroups * kSubChunk;  // a tile: between two barriers

  using KeyRows = SwizzledRows<const T, kE>;
  using ValueRows = SwizzledRows<const T, kM>;

  struct Rows {
    alignas(128) T k[kStages][kRows][kE];
    alignas(128) T g[kStages][kRows][kE];
    alignas(128) T v[kStages][kRows][kM];
  };
  // What each group has of the sums that the others store.
  using Sums = float4[kGroups][kGroups][kSlabs][kM / 16 / kGroups][2][kWarp];
  // Of a column of k: the sums of the gates of a tile's sub-chunks.
  struct alignas(4 * kGroups) GateSums {
    float of_group[kGroups];
  };
  struct SharedStorage {
    union {
      Rows rows;
      Sums sums;  // when the rows are used up
    };
    GateSums gate_sums[2][kE];
    bool forgotten[2][kWarps];  // whether earlier rows count no more for the warp's columns
  };

  static_assert(kSegmentRows % kRows == 0, "segments are walked in whole tiles");
};

// The same with each element as the sum of bf16: one, or two for a float.
__device__ __forceinline__ void split(uint32_t (&parts)[1][4], const uint32_t (&x)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) parts[0][i] = x[i];
}
__device__ __forceinline__ void split(uint32_t (&parts)[2][4], const float2 (&x)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    parts[0][i] = pack_high(x[i].x, x[i].y);
    parts[1][i] = pack_low(x[i].x, x[i].y, parts[0][i]);
  }
}

// Gates of -inf become the lowest finite numbers, which decay as much: nothing is left. They are
// multiplied with zeros, too, and must not make NaN of them.
__device__ __forceinline__ uint32_t finite(uint32_t gates) {
  return max_bf16x2(gates, 0xff7fff7fu);
}
__device__ __forceinline__ float2 finite(float2 gates) {
  constexpr float kLowest = -3e38f;
  return {gates.x < kLowest ? kLowest : gates.x, gates.y < kLowest ? kLowest : gates.y};
}

// What a warp sums up.
template <class Tiling>
class SegmentSum {
  using T = typename Tiling::T;
  static constexpr int kParts = sizeof(T) / 2;  // bf16 to an element
  static constexpr int kTiles = Tiling::kM / 16;
  static constexpr int kOwnTiles = kTiles / Tiling::kGroups;  // to be stored by a group

 public:
  // `group` takes its sub-chunks of the columns from e on. Columns past E count as forgotten.
  __device__ __forceinline__ SegmentSum(int group, int e, int E)
      : lane_(threadIdx.x % kWarp), group_(group) {
    const float forgotten = -__uint_as_float(0x7f800000u);
#pragma unroll
    for (int i = 0; i < 2; ++i) log_decay_[i] = e + lane_ / 4 + i * 8 < E ? 0 : forgotten;
    const int row = lane_ % 4 * 2, column = lane_ / 4;
    before_ = (row < column ? kOne : 0) | (row + 1 < column ? kOne << 16 : 0);
  }

  // Whether all that is to come would be multiplied with zero.
  __device__ __forceinline__ bool forgotten() const {
    return __all_sync(kFullWarp,
                      exp2_approx(log_decay_[0]) == 0 && exp2_approx(log_decay_[1]) == 0);
  }

  // [doc:sum_gates]
  // Sums up the gates of the group's sub-chunk of a tile: all, for the other groups, and those before
  // each row, by products with ones and with a triangle of ones. They turn out as k lies.
  __device__ __forceinline__ void sum_gates(const typename Tiling::KeyRows& g_rows,
                                            typename Tiling::GateSums* all_smem) {
    Pair<T> gates[4];
    load_transposed(gates, g_rows.from(group_ * kSubChunk, 0));
#pragma unroll
    for (int i = 0; i < 4; ++i) gates[i] = finite(gates[i]);
    uint32_t g[kParts][4];
    split(g, gates);
    const uint32_t ones = kOne << 16 | kOne;
    float all[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) sums_[0][i] = sums_[1][i] = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      mma_m16n8k16(all, g[part], {ones, ones}, all);
      mma_m16n8k16(sums_[0], g[part], {before_, 0}, sums_[0]);
      mma_m16n8k16(sums_[1], g[part], {ones, before_}, sums_[1]);
    }
    if (lane_ % 4 > 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) all_smem[lane_ / 4 + i * 8].of_group[group_] = all[2 * i];
  }
  // [/doc:sum_gates]

  // [doc:take_backwards]
  // Takes the sub-chunk whose gates were summed up last. Time runs backwards: the gates of the rows
  // before a row are what it decays by.
  __device__ __forceinline__ void take(const typename Tiling::KeyRows& k_rows,
                                       const typename Tiling::GateSums* all_smem,
                                       const typename Tiling::ValueRows& v_rows) {
    float log_decay[2];  // by the rows before the sub-chunk
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto sums = all_smem[lane_ / 4 + i * 8];
      float before = 0, all = 0;
#pragma unroll
      for (int group = 0; group < Tiling::kGroups; ++group) {
        if (group == group_) before = all;
        all += sums.of_group[group];
      }
      log_decay[i] = fmaf(before, kLog2e, log_decay_[i]);
      log_decay_[i] = fmaf(all, kLog2e, log_decay_[i]);
    }

    Pair<T> keys[4];
    load_transposed(keys, k_rows.from(group_ * kSubChunk, 0));
    uint32_t high[4], low[4];  // k'
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* sum = &sums_[i / 2][i % 2 * 2];
      const float2 k = to_floats(keys[i]);
      const float k0 = k.x * exp2_approx(fmaf(sum[0], kLog2e, log_decay[i % 2]));
      const float k1 = k.y * exp2_approx(fmaf(sum[1], kLog2e, log_decay[i % 2]));
      high[i] = pack_high(k0, k1);
      low[i] = pack_low(k0, k1, high[i]);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      uint32_t v[kParts][4];
      load_values_a(v, v_rows.from(group_ * kSubChunk, tile * 16));
      float(&S)[2][4] = S_[tile];
      // Low parts are not multiplied with low parts.
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        mma_m16n8k16(S[0], v[part], {high[0], high[2]}, S[0]);
        mma_m16n8k16(S[1], v[part], {high[1], high[3]}, S[1]);
      }
      mma_m16n8k16(S[0], v[0], {low[0], low[2]}, S[0]);
      mma_m16n8k16(S[1], v[0], {low[1], low[3]}, S[1]);
    }
  }
  // [/doc:take_backwards]

  // [doc:store_sums]
  // Adds up what the groups have, and stores it. Every group stores some of the tiles; the first is
  // at (m_tile, e_tile). All threads of the block call it, when the rows are used up.
  __device__ __forceinline__ void store(typename Tiling::Sums& smem, const Segments& segments,
                                        int64_t head, int segment, int slab, int m_tile,
                                        int e_tile) {
    if constexpr (Tiling::kGroups > 1) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        if (tile / kOwnTiles == group_) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float(&S)[4] = S_[tile][half];
          smem[tile / kOwnTiles][group_][slab][tile % kOwnTiles][half][lane_] = {S[0], S[1], S[2],
                                                                                 S[3]};
        }
      }
      __syncthreads();  // the other groups' sums are there
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile / kOwnTiles != group_) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float(&S)[4] = S_[tile][half];
        for (int other = 0; other < Tiling::kGroups; ++other) {
          if (other == group_) continue;
          const float4 x = smem[group_][other][slab][tile % kOwnTiles][half][lane_];
          S[0] += x.x;
          S[1] += x.y;
          S[2] += x.z;
          S[3] += x.w;
        }
        segments.added_at(head, segment, m_tile + tile, e_tile + half, lane_) = {S[0], S[1], S[2],
                                                                                 S[3]};
      }
    }
    if (m_tile > 0 || group_ > 0 || lane_ % 4 > 0) return;  // others have the same sums of gates
    float* log_decay = segments.log_decay_of(head, segment) + e_tile * 8 + lane_ / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) log_decay[half * 8] = log_decay_[half];
  }
  // [/doc:store_sums]

 private:
  static constexpr uint32_t kOne = 0x3f80;  // 1, in bf16

  const int lane_, group_;
  uint32_t before_;     // 1 where a row is before a column: two rows of a triangle of ones
  float sums_[2][4];    // of the gates before each row of the sub-chunk that is next
  float log_decay_[2];  // to base 2, of columns lane / 4 and lane / 4 + 8, by the rows so far
  float S_[kTiles][2][4] = {};  // transposed: [columns of v][columns of k]
};

// [doc:segment_states]
// x: the operands with time running backwards.
template <class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads)
    segment_states_kernel(GlaOperands<typename Tiling::T> x, Segments segments, bool aligned) {
  using T = typename Tiling::T;
  constexpr int kRows = Tiling::kRows, kStages = Tiling::kStages, kThreads = Tiling::kThreads;
  auto& smem = shared_storage<typename Tiling::SharedStorage>();
  grid_dependency_launch();  // first segments wait for nothing that is computed here

  const int e_blocks = segments.e_tiles * 8 / Tiling::kE;
  const int m_blocks = segments.m_tiles * 16 / Tiling::kM;
  const int e0 = blockIdx.x % e_blocks * Tiling::kE;
  const int m0 = blockIdx.x / e_blocks % m_blocks * Tiling::kM;
  const int segment = blockIdx.x / e_blocks / m_blocks % (segments.count - 1);
  const int64_t head = blockIdx.x / e_blocks / m_blocks / (segments.count - 1);
  const int64_t b = head / x.k.H, h = head % x.k.H;
  const int end = segments.begin(segment + 1), rows = end - segments.begin(segment);

  const int first = static_cast<int>(x.k.L) - end;
  using KeyTile = RowTile<T, kRows, Tiling::kE, kThreads>;
  using ValueTile = RowTile<T, kRows, Tiling::kM, kThreads>;
  const int thread = threadIdx.x;
  const auto first_element = [&]<class Tile>(Tile, const TensorView<const T>& of, int column) {
    return of.row(b, h, first + Tile::row(thread)) + column + Tile::column(thread);
  };
  const T* k_source = first_element(KeyTile(), x.k, e0);
  const T* g_source = first_element(KeyTile(), x.g, e0);
  const T* v_source = first_element(ValueTile(), x.v, m0);
  const auto load_tile = [&]<class Tile>(Tile, T* to, const T*& from, int64_t stride, int columns) {
    from = aligned ? Tile::load(to, from, stride, thread, kRows, columns)
                   : Tile::load_elements(to, from, stride, thread, kRows, columns);
  };
  const auto load = [&](int i) {
    auto& [k, g, v] = smem.rows;
    const int stage = i % kStages;
    if (i * kRows < rows) {
      const int E = static_cast<int>(x.k.D), M = static_cast<int>(x.v.D);
      load_tile(KeyTile(), k[stage][0], k_source, x.k.stride_l, E - e0);
      load_tile(KeyTile(), g[stage][0], g_source, x.g.stride_l, E - e0);
      load_tile(ValueTile(), v[stage][0], v_source, x.v.stride_l, M - m0);
    }
    cp_async_commit();
  };

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, slab = warp % Tiling::kSlabs;
  const int column = slab * Tiling::kWarpColumns;
  SegmentSum<Tiling> sum(warp / Tiling::kSlabs, e0 + column, static_cast<int>(x.k.D));
  for (int i = 0; i < kStages - 1; ++i) load(i);
  cp_async_wait<kStages - 2>();
  __syncthreads();  // the rows of tile 0 have arrived, of all threads
  sum.sum_gates({smem.rows.g[0][0], column}, smem.gate_sums[0] + column);
#pragma unroll 1
  for (int i = 0; i * kRows < rows; ++i) {
    cp_async_wait<kStages - 3>();
    // The rows of tile i + 1 have arrived, of all threads, and the gates of tile i are summed up. The
    // rows of i - 1 are used before they are overwritten, and it is written whether they were the
    // last.
    __syncthreads();
    if (i > 0 && __all_sync(kFullWarp, smem.forgotten[(i - 1) % 2][lane % Tiling::kWarps])) break;
    load(i + kStages - 1);
    const int stage = i % kStages, next = (i + 1) % kStages;
    sum.take({smem.rows.k[stage][0], column}, smem.gate_sums[i % 2] + column,
             {smem.rows.v[stage][0]});
    if ((i + 1) * kRows < rows) {
      sum.sum_gates({smem.rows.g[next][0], column}, smem.gate_sums[(i + 1) % 2] + column);
    }
    const bool forgotten = sum.forgotten();
    if (lane == 0) smem.forgotten[i % 2][warp] = forgotten;
  }
  cp_async_wait<0>();
  __syncthreads();  // the rows are used, and no copy is on its way, before their place is
  sum.store(smem.sums, segments, head, segment, slab, m0 / 16, (e0 + column) / 8);
}
// [/doc:segment_states]

template <class Tiling>
void launch_segment_states(const GlaOperands<typename Tiling::T>& x, const Segments& segments,
                           cudaStream_t stream) {
  GlaOperands<typename Tiling::T> backwards = x;
  backwards.k = flip(x.k);
  backwards.v = flip(x.v);
  backwards.g = flip(x.g);
  const bool aligned = rows_are_16_bytes(x.k) && rows_are_16_bytes(x.v) && rows_are_16_bytes(x.g);
  const int64_t blocks = x.k.B * x.k.H * (segments.count - 1) *
                         (segments.e_tiles * 8 / Tiling::kE) * (segments.m_tiles * 16 / Tiling::kM);
  launch({blocks, Tiling::kThreads, dynamic_shared_bytes<typename Tiling::SharedStorage>(), stream},
         segment_states_kernel<Tiling>, backwards, segments, aligned);
}

// Columns of k and of v of a block.
inline int64_t sum_tile(int64_t E) { return E <= 64 ? 64 : 128; }

// What every segment but each sequence's last adds to the state and decays it by: fills
// segments.added and segments.log_decay, whose tiles cover whole blocks, there and of the fused kernel.
template <class T>
void segment_states(const GlaOperands<T>& x, const Segments& segments, cudaStream_t stream) {
  //                                columns groups
  if (sum_tile(x.k.D) == 64) {
    launch_segment_states<SumTiling<T, 64, 4>>(x, segments, stream);
  } else {
    launch_segment_states<SumTiling<T, 128, sizeof(T) == 4 ? 1 : 2>>(x, segments, stream);
  }
}

// segment_states.cu holds them.
extern template void segment_states(const GlaOperands<float>&, const Segments&, cudaStream_t);
extern template void segment_states(const GlaOperands<__nv_bfloat16>&, const Segments&,
                                    cudaStream_t);

}  // namespace attn::chunked_gla
