// What every segment of a sequence adds to the state, without the recurrence.
//
// The idea: a row of a segment is left at the segment's end with what it wrote, write_j value_j^T,
// decayed by all that comes after it. So walk backwards, with a running sum of each column's decays:
//
//   added = sum over j of w_j value_j^T,   w_j = write_j exp(sum over i > j of decay_i)
//
// This is a product of matrices that is only added to. No state decays, nothing waits for the row
// before but a sum, and no decay is too strong: no exponent is above 0. And it ends early: once the
// sum of every column is so low that its exponential is 0 in a float, all further rows add 0, and
// are not read. With decays of logsigmoid(N(0, 1)) / 16 that is after 1800 rows, with those of
// logsigmoid(N(0, 1)) after 120. (So a NaN or an infinity in such a row is forgotten. The recurrence
// would carry it on, as 0 times infinity.)
//
// Who computes what: a block has a segment of one head and a tile of the state. A warp has 16 columns
// of the writes, all of the block's columns of values, and every second (or fourth) sub-chunk of 16
// rows. It sums up the decays of its next sub-chunk, by products with ones, and tells the warps that
// share its columns; scales its elements of the writes, in the registers in which a tensor core takes
// them; and keeps what they add in accumulators, which the warps that share columns add up in the end.
//
// What memory moves: writes and decays of the rows that count once for each 128 columns of values, and
// values for as many columns of writes; the states are little beside them.
//
// What limits it: not one thing. A block of 128 x 128 takes 1.4 us for 32 rows on an H200, of which
// their way from memory would be 0.8, their products 0.4, and scaling the writes with all that goes
// with it 1: between two barriers the warps do the same at the same time. Where there are few rows,
// the first take 3 us to arrive.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "common/chunked/resets.cuh"
#include "common/chunked/rows.cuh"
#include "common/chunked/segments.cuh"
#include "common/chunked/walk.cuh"
#include "common/device.hpp"
#include "common/launch.cuh"
#include "common/mma_operands.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/grid_dependency.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/shared_storage.cuh"
#include "common/warp.cuh"

namespace attn::chunked {

// How a block divides its tile of a state.
template <class T_, int kColumns_, int kGroups_>
struct SumTiling {
  using T = T_;
  static constexpr int kColumns = kColumns_;  // of writes and decays, and as many of values
  static constexpr int kGroups = kGroups_;    // of warps, which take sub-chunks in turn
  static constexpr int kSlots = 4;            // buffers of a sub-chunk for each group
  static constexpr int kWarpColumns = 16;     // of writes: two tiles of a B operand
  static constexpr int kSlabs = kColumns / kWarpColumns;
  static constexpr int kWarps = kGroups * kSlabs;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kRows = kGroups * kSubChunk;  // a tile: between two barriers

  using Rows = SwizzledRows<const T, kColumns>;

  struct Slots {
    alignas(128) T write[kSlots][kRows][kColumns];
    alignas(128) T decay[kSlots][kRows][kColumns];
    alignas(128) T value[kSlots][kRows][kColumns];
  };
  // What each group has of the sums that the others store.
  using Sums = float4[kGroups][kGroups][kSlabs][kColumns / 16 / kGroups][2][kWarp];
  // Of a column: the sums of the decays of a tile's sub-chunks.
  struct alignas(4 * kGroups) DecaySums {
    float of_group[kGroups];
  };
  struct SharedStorage {
    union {
      Slots rows;
      Sums sums;  // when the rows are used up
    };
    DecaySums decay_sums[2][kColumns];
    bool forgotten[2][kWarps];  // whether earlier rows count no more for the warp's columns
  };

  static_assert(kSegmentRows % kRows == 0, "segments are walked in whole tiles");
};

// Elements as sums of bf16: of one, or of two for a float.
__device__ __forceinline__ void split(uint32_t (&terms)[1][4], const uint32_t (&x)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) terms[0][i] = x[i];
}
__device__ __forceinline__ void split(uint32_t (&terms)[2][4], const float2 (&x)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    terms[0][i] = pack_high(x[i].x, x[i].y);
    terms[1][i] = pack_low(x[i].x, x[i].y, terms[0][i]);
  }
}

// What a warp sums up.
template <class Tiling>
class SegmentSum {
  using T = typename Tiling::T;
  static constexpr int kTerms = sizeof(T) / 2;  // bf16 of which an element is the sum
  static constexpr int kTiles = Tiling::kColumns / 16;
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

  // [doc:sum_decays]
  // Sums up the decays of the group's sub-chunk of a tile: all, for the other groups, and those before
  // each row, by products with ones and with a triangle of ones. They turn out as writes lie.
  __device__ __forceinline__ void sum_decays(const typename Tiling::Rows& decay_rows,
                                             typename Tiling::DecaySums* all_smem) {
    Pair<T> pairs[4];
    load_transposed(pairs, decay_rows.from(group_ * kSubChunk, 0));
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = finite(pairs[i]);
    uint32_t decay[kTerms][4];
    split(decay, pairs);
    const uint32_t ones = kOne << 16 | kOne;
    float all[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) sums_[0][i] = sums_[1][i] = 0;
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
      mma_m16n8k16(all, decay[term], {ones, ones}, all);
      mma_m16n8k16(sums_[0], decay[term], {before_, 0}, sums_[0]);
      mma_m16n8k16(sums_[1], decay[term], {ones, before_}, sums_[1]);
    }
    if (lane_ % 4 > 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) all_smem[lane_ / 4 + i * 8].of_group[group_] = all[2 * i];
  }
  // [/doc:sum_decays]

  // [doc:take_backwards]
  // Takes the sub-chunk whose decays were summed up last. Time runs backwards: those of the rows before
  // a row are what it decays by.
  __device__ __forceinline__ void take(const typename Tiling::Rows& write_rows,
                                       const typename Tiling::DecaySums* all_smem,
                                       const typename Tiling::Rows& value_rows) {
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

    Pair<T> writes[4];
    load_transposed(writes, write_rows.from(group_ * kSubChunk, 0));
    uint32_t high[4], low[4];  // scaled, as the sum of two bf16
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* sum = &sums_[i / 2][i % 2 * 2];
      const float2 write = to_floats(writes[i]);
      const float w0 = write.x * exp2_approx(fmaf(sum[0], kLog2e, log_decay[i % 2]));
      const float w1 = write.y * exp2_approx(fmaf(sum[1], kLog2e, log_decay[i % 2]));
      high[i] = pack_high(w0, w1);
      low[i] = pack_low(w0, w1, high[i]);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      uint32_t v[kTerms][4];
      load_values_a(v, value_rows.from(group_ * kSubChunk, tile * 16));
      float(&S)[2][4] = S_[tile];
      // Low parts are not multiplied with low parts.
#pragma unroll
      for (int term = 0; term < kTerms; ++term) {
        mma_m16n8k16(S[0], v[term], {high[0], high[2]}, S[0]);
        mma_m16n8k16(S[1], v[term], {high[1], high[3]}, S[1]);
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
    if (m_tile > 0 || group_ > 0 || lane_ % 4 > 0) return;  // others have the same sums of decays
    float* log_decay = segments.log_decay_of(head, segment) + e_tile * 8 + lane_ / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) log_decay[half * 8] = log_decay_[half];
  }
  // [/doc:store_sums]

 private:
  static constexpr uint32_t kOne = 0x3f80;  // 1, in bf16

  const int lane_, group_;
  uint32_t before_;     // 1 where a row is before a column: two rows of a triangle of ones
  float sums_[2][4];    // of the decays before each row of the sub-chunk that is next
  float log_decay_[2];  // to base 2, of columns lane / 4 and lane / 4 + 8, by the rows so far
  float S_[kTiles][2][4] = {};  // transposed: [value columns][write columns]
};

// [doc:sum_segment]
// Sums up one segment of a head, for the tile of the state from row e0 and column m0 on. All threads of
// the block call it.
template <class Tiling>
__device__ __forceinline__ void sum_segment(const Walk<typename Tiling::T>& x,
                                            const Segments& segments, int head, int segment, int e0,
                                            int m0, bool aligned) {
  using T = typename Tiling::T;
  constexpr int kRows = Tiling::kRows, kSlots = Tiling::kSlots, kColumns = Tiling::kColumns;
  auto& smem = shared_storage<typename Tiling::SharedStorage>();
  const int H = static_cast<int>(x.write.H), b = head / H, h = head % H;
  const int end = segments.begin(segment + 1), rows = end - segments.begin(segment);
  const int first = static_cast<int>(x.write.L) - end;
  using Tile = RowTile<T, kRows, kColumns, Tiling::kThreads>;
  const int thread = threadIdx.x;
  const auto first_element = [&](const TensorView<const T>& of, int column) {
    return of.row(b, h, first + Tile::row(thread)) + column + Tile::column(thread);
  };
  const T* write_source = first_element(x.write, e0);
  const T* decay_source = first_element(x.decay, e0);
  const T* value_source = first_element(x.value, m0);
  const auto load_tile = [&](T* to, const T*& from, int64_t stride, int columns) {
    from = aligned ? Tile::template load<true>(to, from, stride, thread, kRows, columns)
                   : Tile::template load<false>(to, from, stride, thread, kRows, columns);
  };
  const auto load = [&](int i) {
    auto& [write, decay, value] = smem.rows;
    const int slot = i % kSlots;
    if (i * kRows < rows) {
      const int E = static_cast<int>(x.write.D), M = static_cast<int>(x.value.D);
      load_tile(write[slot][0], write_source, x.write.stride_l, E - e0);
      load_tile(decay[slot][0], decay_source, x.decay.stride_l, E - e0);
      load_tile(value[slot][0], value_source, x.value.stride_l, M - m0);
    }
    cp_async_commit();
  };

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, slab = warp % Tiling::kSlabs;
  const int column = slab * Tiling::kWarpColumns;
  SegmentSum<Tiling> sum(warp / Tiling::kSlabs, e0 + column, static_cast<int>(x.write.D));
  for (int i = 0; i < kSlots - 1; ++i) load(i);
  cp_async_wait<kSlots - 2>();
  __syncthreads();  // the rows of tile 0 have arrived, of all threads
  sum.sum_decays({smem.rows.decay[0][0], column}, smem.decay_sums[0] + column);
#pragma unroll 1
  for (int i = 0; i * kRows < rows; ++i) {
    cp_async_wait<kSlots - 3>();
    // The rows of tile i + 1 have arrived, of all threads, and the decays of tile i are summed up. The
    // rows of i - 1 are used before they are overwritten, and it is written whether they were the
    // last.
    __syncthreads();
    if (i > 0 && __all_sync(kFullWarp, smem.forgotten[(i - 1) % 2][lane % Tiling::kWarps])) break;
    load(i + kSlots - 1);
    const int slot = i % kSlots, next = (i + 1) % kSlots;
    sum.take({smem.rows.write[slot][0], column}, smem.decay_sums[i % 2] + column,
             {smem.rows.value[slot][0]});
    if ((i + 1) * kRows < rows) {
      sum.sum_decays({smem.rows.decay[next][0], column}, smem.decay_sums[(i + 1) % 2] + column);
    }
    const bool forgotten = sum.forgotten();
    if (lane == 0) smem.forgotten[i % 2][warp] = forgotten;
  }
  cp_async_wait<0>();
  __syncthreads();  // the rows are used, and no copy is on its way, before their place is
  sum.store(smem.sums, segments, head, segment, slab, m0 / 16, (e0 + column) / 8);
}
// [/doc:sum_segment]

// [doc:segment_states]
// x: the walk with time running backwards. A block takes sum after sum, of all `sums`.
template <class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads)
    segment_states_kernel(Walk<typename Tiling::T> x, Segments segments, int sums, bool aligned) {
  grid_dependency_launch();  // first segments wait for nothing that is computed here
  const int e_blocks = segments.e_tiles * 8 / Tiling::kColumns;
  const int m_blocks = segments.m_tiles * 16 / Tiling::kColumns;
#pragma unroll 1
  for (int i = blockIdx.x; i < sums; i += gridDim.x) {
    const int e_block = i % e_blocks, m_block = i / e_blocks % m_blocks;
    const int segment = i / e_blocks / m_blocks % (segments.count - 1);
    const int head = i / e_blocks / m_blocks / (segments.count - 1);
    sum_segment<Tiling>(x, segments, head, segment, e_block * Tiling::kColumns,
                        m_block * Tiling::kColumns, aligned);
    __syncthreads();  // what was shared is used, before the next sum writes there
  }
}
// [/doc:segment_states]

template <class Tiling>
void launch_segment_states(const Walk<typename Tiling::T>& x, const Segments& segments,
                           cudaStream_t stream) {
  Walk<typename Tiling::T> backwards = x;
  backwards.write = flip(x.write);
  backwards.value = flip(x.value);
  backwards.decay = flip(x.decay);
  const bool aligned =
      rows_are_16_bytes(x.write) && rows_are_16_bytes(x.value) && rows_are_16_bytes(x.decay);
  const int64_t tiles =
      (segments.e_tiles * 8 / Tiling::kColumns) * (segments.m_tiles * 16 / Tiling::kColumns);
  const int64_t sums = x.heads() * (segments.count - 1) * tiles;
  // Above 64 rows of the state a block of the walk has a multiprocessor to itself, and finds none among
  // sums: they keep to those that first segments leave over, so that these begin at once.
  const int64_t idle = multiprocessors() - x.heads() * tiles;
  const int64_t blocks = Tiling::kColumns > 64 && idle > 0 ? std::min(sums, idle) : sums;
  launch({blocks, Tiling::kThreads, dynamic_shared_bytes<typename Tiling::SharedStorage>(), stream},
         segment_states_kernel<Tiling>, backwards, segments, static_cast<int>(sums), aligned);
}

// Columns of writes and of values of a block.
inline int64_t sum_tile(int64_t E) { return E <= 64 ? 64 : 128; }

// What every segment but each sequence's last adds to the state and decays it by: fills
// segments.added and segments.log_decay, whose tiles cover whole blocks, there and of the walk.
template <class T>
void segment_states(const Walk<T>& x, const Segments& segments, cudaStream_t stream) {
  //                                columns groups
  if (sum_tile(x.write.D) == 64) {
    launch_segment_states<SumTiling<T, 64, 2>>(x, segments, stream);
  } else {
    launch_segment_states<SumTiling<T, 128, sizeof(T) == 4 ? 1 : 2>>(x, segments, stream);
  }
}

// segment_states.cu holds them.
extern template void segment_states(const Walk<float>&, const Segments&, cudaStream_t);
extern template void segment_states(const Walk<__nv_bfloat16>&, const Segments&, cudaStream_t);

}  // namespace attn::chunked
