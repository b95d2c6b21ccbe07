// Rows from global to shared memory, for the fused kernel.
#pragma once

#include <cuda_runtime.h>

#include "05_chunked_gla/fused_block.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/tensor_view.cuh"

namespace attn::chunked_gla {

// A thread's part of tile after tile of one tensor: kRows rows and kWidth columns of one head, which
// kThreads threads copy.
template <class T, int kRows, int kWidth, int kPitch, int kThreads>
struct RowTile {
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kPerRow = kWidth / kVector;
  static constexpr int kLanes = kThreads < kPerRow ? kThreads : kPerRow;  // that share a row
  static constexpr int kRowStep = kThreads / kLanes;
  static_assert(kPerRow % kLanes == 0 && kThreads % kLanes == 0 && kRows % kRowStep == 0);

  static __device__ __forceinline__ int row(int thread) { return thread / kLanes; }
  static __device__ __forceinline__ int column(int thread) { return thread % kLanes * kVector; }

  // Starts the copy of a tile, of which the first `rows` rows and `columns` columns are there; the
  // rest is zeros. Every row must begin on 16 bytes and hold whole 16 bytes. `source` is the
  // thread's first element; returns that of the next tile.
  static __device__ __forceinline__ const T* load(T* smem, const T* source, int64_t stride,
                                                  int thread, int rows, int columns) {
    smem += row(thread) * kPitch + column(thread);
    rows -= row(thread);
    columns -= column(thread);
#pragma unroll
    for (int first = 0; first < kRows; first += kRowStep) {
#pragma unroll
      for (int d = 0; d < kWidth; d += kLanes * kVector) {
        cp_async<16>(smem + first * kPitch + d, source + d, first < rows && d < columns);
      }
      source += kRowStep * stride;
    }
    return source;
  }

  // The same for rows that begin anywhere, element by element.
  static __device__ __forceinline__ const T* load_elements(T* smem, const T* source, int64_t stride,
                                                           int thread, int rows, int columns) {
    smem += row(thread) * kPitch + column(thread);
    rows -= row(thread);
    columns -= column(thread);
#pragma unroll 1
    for (int first = 0; first < kRows; first += kRowStep) {
#pragma unroll 1
      for (int d = 0; d < kWidth; d += kLanes * kVector) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const bool inside = first < rows && d + i < columns;
          smem[first * kPitch + d + i] = inside ? source[d + i] : T(0.0f);
        }
      }
      source += kRowStep * stride;
    }
    return source;
  }
};

// [doc:row_loader]
// The rows that one preparing warp fetches. A warp keeps to one of q, k, g and v, or to two of them
// where there are two warps only: so it has one address to count up, not four.
template <class Tiling>
class RowLoader {
  using T = typename Tiling::T;
  static constexpr int kGroups = Tiling::kPrepareWarps < 4 ? Tiling::kPrepareWarps : 4;
  static constexpr int kTensors = 4 / kGroups;  // of a group
  static constexpr int kThreads = Tiling::kPrepareWarps / kGroups * kWarp;
  using QkgTile = RowTile<T, Tiling::kRows, Tiling::kE, Tiling::kPitch, kThreads>;
  using ValueTile = RowTile<T, Tiling::kRows, Tiling::kM, Tiling::kPitchV, kThreads>;
  static_assert(kTensors * kGroups == 4 && Tiling::kPrepareWarps % kGroups == 0);

 public:
  // `thread` counts those of the preparing warps. Without `outputs` q is not read.
  __device__ __forceinline__ RowLoader(const Block<Tiling>& block, int thread, bool outputs)
      : block_(block), thread_(thread % kThreads), first_tensor_(thread / kThreads * kTensors) {
#pragma unroll
    for (int i = 0; i < kTensors; ++i) {
      const int tensor = first_tensor_ + i;
      const auto& x = tensor == 0   ? block.x.q
                      : tensor == 1 ? block.x.k
                      : tensor == 2 ? block.x.g
                                    : block.x.v;
      const bool is_v = tensor == 3;
      const int row = is_v ? ValueTile::row(thread_) : QkgTile::row(thread_);
      const int column = is_v ? block.m0 + ValueTile::column(thread_) : QkgTile::column(thread_);
      source_[i] =
          tensor == 0 && !outputs ? nullptr : x.row(block.b, block.h, block.begin + row) + column;
      stride_[i] = x.stride_l;
      columns_[i] = static_cast<int>(x.D) - (is_v ? block.m0 : 0);
    }
  }

  // Starts the copies of a round's rows; to be called for round after round.
  __device__ __forceinline__ void load(int round) {
    if (round < block_.rounds) {
      auto& smem = block_.smem;
      const int rows = block_.end - block_.begin - round * Tiling::kRows;
#pragma unroll
      for (int i = 0; i < kTensors; ++i) {
        const int tensor = first_tensor_ + i;
        if (tensor == 3) {
          load_tile<ValueTile>(i, smem.v[round % (Tiling::kSlots + 1)][0], rows);
        } else if (source_[i] != nullptr) {
          load_tile<QkgTile>(i, smem.qkg[tensor][round % Tiling::kSlots][0], rows);
        }
      }
    }
    cp_async_commit();
  }

 private:
  template <class Tile>
  __device__ __forceinline__ void load_tile(int i, T* smem, int rows) {
    source_[i] =
        block_.aligned
            ? Tile::load(smem, source_[i], stride_[i], thread_, rows, columns_[i])
            : Tile::load_elements(smem, source_[i], stride_[i], thread_, rows, columns_[i]);
  }

  const Block<Tiling>& block_;
  const int thread_, first_tensor_;
  const T* source_[kTensors];
  int64_t stride_[kTensors];
  int columns_[kTensors];
};
// [/doc:row_loader]

}  // namespace attn::chunked_gla
