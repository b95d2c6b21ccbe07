// Rows from global to shared memory: by warps that do nothing else, or by the preparing warps.
#pragma once

#include <cuda_runtime.h>

#include "common/chunked/block.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/swizzled_rows.cuh"
#include "common/tensor_view.cuh"

namespace attn::chunked {

// A thread's part of tile after tile of one tensor: kRows rows and kWidth columns of one head, which
// kThreads threads copy.
template <class T, int kRows, int kWidth, int kThreads>
struct RowTile {
  using Rows = SwizzledRows<T, kWidth>;
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kPerRow = kWidth / kVector;
  static constexpr int kLanes = kThreads < kPerRow ? kThreads : kPerRow;  // that share a row
  static constexpr int kRowStep = kThreads / kLanes;
  static_assert(kPerRow % kLanes == 0 && kThreads % kLanes == 0 && kRows % kRowStep == 0);

  static __device__ __forceinline__ int row(int thread) { return thread / kLanes; }
  static __device__ __forceinline__ int column(int thread) { return thread % kLanes * kVector; }

  // Starts the copy of a tile, of which the first `rows` rows and `columns` columns are there; the
  // rest is zeros. kAligned: every row begins on 16 bytes and holds whole 16 bytes; otherwise it goes
  // element by element. `source` is the thread's first element; returns that of the next tile.
  template <bool kAligned>
  static __device__ __forceinline__ const T* load(T* smem, const T* source, int64_t stride,
                                                  int thread, int rows, int columns) {
    const Rows to = {smem};
    rows -= row(thread);
    columns -= column(thread);
#pragma unroll(kAligned ? kRows : 1)
    for (int first = 0; first < kRows; first += kRowStep) {
#pragma unroll(kAligned ? kWidth : 1)
      for (int d = 0; d < kWidth; d += kLanes * kVector) {
        if constexpr (kAligned) {
          cp_async<16>(to.at(row(thread) + first, column(thread) + d), source + d,
                       first < rows && d < columns);
        } else {
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            const bool inside = first < rows && d + i < columns;
            *to.at(row(thread) + first, column(thread) + d + i) = inside ? source[d + i] : T(0.0f);
          }
        }
      }
      source += kRowStep * stride;
    }
    return source;
  }
};

// The tensors of rows that a block reads.
constexpr int kRead = 0, kWrite = 1, kDecay = 2, kValue = 3;

// [doc:row_loader]
// The rows that one warp fetches. A warp keeps to one of the four tensors, or where warps are few to
// two: so it has one address to count up, or two, not four.
template <class Tiling>
class RowLoader {
  using T = typename Tiling::T;
  static constexpr int kWarps = Tiling::kLoadWarps > 0 ? Tiling::kLoadWarps : Tiling::kPrepareWarps;
  static constexpr int kOwn = kWarps >= 4 ? 1 : 4 / kWarps;   // tensors of a warp
  static constexpr int kThreads = kWarps * kOwn / 4 * kWarp;  // that share a tensor
  static_assert(kThreads * 4 == kWarps * kOwn * kWarp, "as many warps for each tensor");
  using Tile = RowTile<T, Tiling::kRows, Tiling::kE, kThreads>;
  using ValueTile = RowTile<T, Tiling::kRows, Tiling::kM, kThreads>;

 public:
  // `thread` counts those of the warps that fetch.
  __device__ __forceinline__ RowLoader(const Block<Tiling>& block, int thread)
      : block_(block), first_(thread / kThreads * kOwn), thread_(thread % kThreads) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int tensor = first_ + i;
      const auto& x = tensor == kRead    ? block.x.read
                      : tensor == kWrite ? block.x.write
                      : tensor == kDecay ? block.x.decay
                                         : block.x.value;
      const bool is_value = tensor == kValue;
      const int row = is_value ? ValueTile::row(thread_) : Tile::row(thread_);
      const int column = is_value ? block.m0 + ValueTile::column(thread_) : Tile::column(thread_);
      source_[i] = x.row(block.b, block.h, block.begin + row) + column;
      stride_[i] = x.stride_l;
      columns_[i] = static_cast<int>(x.D) - (is_value ? block.m0 : 0);
    }
  }

  // Starts the copies of the first rounds' rows.
  __device__ __forceinline__ void begin() {
    for (int round = 0; round < Tiling::kSlots - 1; ++round) load(round);
  }
  // Waits for all of the thread's copies but those of the latest rounds: the rows of the round have
  // arrived that comes kSlots - 1 before the next to load().
  __device__ __forceinline__ void wait() const { cp_async_wait<Tiling::kSlots - 2>(); }

  // Starts the copies of a round's rows; to be called for round after round.
  __device__ __forceinline__ void load(int round) {
    if (round < block_.rounds) {
      auto& smem = block_.smem;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        if (first_ + i == kValue) {
          load_tile<ValueTile>(smem.values[round % (Tiling::kSlots + 1)][0], round, i);
        } else {
          load_tile<Tile>(smem.rows[first_ + i][round % Tiling::kSlots][0], round, i);
        }
      }
    }
    cp_async_commit();
  }

 private:
  template <class AnyTile>
  __device__ __forceinline__ void load_tile(T* smem, int round, int i) {
    const int rows = block_.end - block_.begin - round * Tiling::kRows;
    source_[i] = block_.aligned ? AnyTile::template load<true>(smem, source_[i], stride_[i],
                                                               thread_, rows, columns_[i])
                                : AnyTile::template load<false>(smem, source_[i], stride_[i],
                                                                thread_, rows, columns_[i]);
  }

  const Block<Tiling>& block_;
  const int first_, thread_;  // the warp's first tensor
  const T* source_[kOwn];     // the thread's first element of the next round
  int64_t stride_[kOwn];
  int columns_[kOwn];
};
// [/doc:row_loader]

// What a preparing warp has in place of a RowLoader if loading warps fetch the rows.
template <class Tiling>
struct NoRows {
  __device__ __forceinline__ NoRows(const Block<Tiling>&, int) {}
  __device__ __forceinline__ void begin() const {}
  __device__ __forceinline__ void wait() const {}
  __device__ __forceinline__ void load(int) const {}
};

// [doc:loading_warp]
// A warp that only fetches rows, for blocks with few warps. A copy of 32 times 16 bytes keeps the
// load unit for some ten cycles, and the warp that asks for it as long: here it is one that has
// nothing else to do.
template <class Tiling>
class LoadingWarp {
 public:
  __device__ __forceinline__ explicit LoadingWarp(const Block<Tiling>& block)
      : block_(block),
        rows_(block, threadIdx.x - (Tiling::kStateWarps + Tiling::kPrepareWarps) * kWarp) {}

  // The barriers, and what they order, are those of PreparingWarp::run().
  __device__ __forceinline__ void run() {
    rows_.begin();
#pragma unroll 1
    for (int round = -1; round < block_.rounds; ++round) {
      rows_.wait();
      block_.meet();
      rows_.load(round + Tiling::kSlots);
      while_slabs_meet<Tiling::kSlabs>(round + 1 < block_.rounds);
    }
  }

 private:
  const Block<Tiling>& block_;
  RowLoader<Tiling> rows_;
};
// [/doc:loading_warp]

}  // namespace attn::chunked
