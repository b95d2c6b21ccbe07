// Rows from global to shared memory, for the chunked kernel.
#pragma once

#include <cuda_runtime.h>

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

}  // namespace attn::rwkv6
