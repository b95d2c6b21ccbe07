// Rows from global to shared memory, for the chunked kernel.
#pragma once

#include <cuda_runtime.h>

#include "06_rwkv6/chunked_block.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/swizzled_rows.cuh"
#include "common/tensor_view.cuh"

namespace attn::rwkv6 {

// Copies tile after tile of kRows rows and kWidth columns of one head, by kThreads threads.
template <class T, int kRows, int kWidth, int kThreads>
class RowLoader {
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kPerRow = kWidth / kVector;
  static constexpr int kRowStep = kThreads / kPerRow;
  static constexpr int kPasses = kRows / kRowStep;
  static constexpr int kSources = kPasses <= 4 ? kPasses : 1;  // addresses kept in registers
  static_assert(kThreads % kPerRow == 0 && kRows % kRowStep == 0);

 public:
  // From row `first` and column `column` of x on.
  __device__ __forceinline__ RowLoader(const TensorView<const T>& x, int64_t b, int64_t h,
                                       int first, int column, int thread)
      : row_(thread / kPerRow),
        d_(thread % kPerRow * kVector),
        columns_(static_cast<int>(x.D) - column),
        stride_(x.stride_l) {
#pragma unroll
    for (int i = 0; i < kSources; ++i) {
      source_[i] = x.row(b, h, first - kRows + row_ + i * kRowStep) + column + d_;
    }
  }

  // Starts the copy of the next tile, of which the first `rows` are there; the rest is zeros. Every
  // row must begin on 16 bytes and hold whole 16 bytes.
  __device__ __forceinline__ void load(T (&smem)[kRows][kWidth], int rows) {
    const SwizzledRows<T, kWidth> to = {smem[0]};
    advance();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = row_ + pass * kRowStep;
      const T* source = source_[pass % kSources] + pass / kSources * kRowStep * stride_;
      cp_async<16>(to.at(row, d_), source, row < rows && d_ < columns_);
    }
  }

  // The same for rows that begin anywhere, element by element.
  __device__ __forceinline__ void load_elements(T (&smem)[kRows][kWidth], int rows) {
    const SwizzledRows<T, kWidth> to = {smem[0]};
    advance();
#pragma unroll 1
    for (int row = row_; row < kRows; row += kRowStep) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const bool inside = row < rows && d_ + i < columns_;
        *to.at(row, d_ + i) = inside ? source_[0][(row - row_) * stride_ + i] : T(0.0f);
      }
    }
  }

 private:
  // Before the copies, not after them: a copy holds its address until it is on its way, and an
  // addition to it would wait for that.
  __device__ __forceinline__ void advance() {
#pragma unroll
    for (int i = 0; i < kSources; ++i) source_[i] += kRows * stride_;
  }

  int row_, d_, columns_;
  int64_t stride_;
  const T* source_[kSources];  // in the tile before
};

// The rows of r, k, w and v of round after round, by the threads that fetch.
template <class Tiling>
class RoundLoader {
  using T = typename Tiling::T;
  static constexpr int kWarps = Tiling::kLoadWarps > 0 ? Tiling::kLoadWarps : Tiling::kPrepareWarps;
  static constexpr int kThreads = kWarps * kWarp;

 public:
  // `thread` counts those that fetch.
  __device__ __forceinline__ RoundLoader(const Block<Tiling>& block, int thread)
      : block_(block),
        r_(block.x.r, block.b, block.h, block.begin, 0, thread),
        k_(block.x.k, block.b, block.h, block.begin, 0, thread),
        w_(block.x.w, block.b, block.h, block.begin, 0, thread),
        v_(block.x.v, block.b, block.h, block.begin, block.m0, thread) {}

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
      const int rows = block_.end - block_.begin - round * Tiling::kRows;
      const int slot = round % Tiling::kSlots, v_slot = round % (Tiling::kSlots + 1);
      if (block_.aligned) {
        r_.load(smem.r[slot], rows);
        k_.load(smem.k[slot], rows);
        w_.load(smem.w[slot], rows);
        v_.load(smem.v[v_slot], rows);
      } else {
        r_.load_elements(smem.r[slot], rows);
        k_.load_elements(smem.k[slot], rows);
        w_.load_elements(smem.w[slot], rows);
        v_.load_elements(smem.v[v_slot], rows);
      }
    }
    cp_async_commit();
  }

 private:
  const Block<Tiling>& block_;
  RowLoader<T, Tiling::kRows, Tiling::kE, kThreads> r_, k_, w_;
  RowLoader<T, Tiling::kRows, Tiling::kM, kThreads> v_;
};

}  // namespace attn::rwkv6
