// The operands that the Hopper kernel itself does not take: tensors that the copy engine cannot
// read, and sequences without keys.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "07_flash/operands.cuh"
#include "common/element.hpp"
#include "common/launch.cuh"
#include "common/ptx/tma.cuh"
#include "common/stream_buffer.hpp"

namespace attn::flash {

constexpr int kCopyThreads = 256;

// Blocks of kCopyThreads for a loop over `count` elements.
inline int64_t copy_blocks(int64_t count) {
  return std::clamp<int64_t>((count + kCopyThreads - 1) / kCopyThreads, 1, 1 << 16);
}

// A dense copy, its rows padded with zeros to whole 16 bytes. A thread owns an element of it.
template <class T>
__global__ void pad_rows_kernel(TensorView<const T> from,  // [B, H, L, D]
                                TensorView<T> to) {        // [B, H, L, D rounded up], BHLD
  const int64_t count = to.B * to.H * to.L * to.D;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t d = i % to.D, row = i / to.D;
    const int64_t l = row % to.L, h = row / to.L % to.H, b = row / to.L / to.H;
    to.data[i] = d < from.D ? from.row(b, h, l)[d] : from_float<T>(0);
  }
}

// x itself where the copy engine can read it, else a copy in memory of its own.
class Readable {
 public:
  using T = __nv_bfloat16;

  Readable(const TensorView<const T>& x, cudaStream_t stream)
      : copy_(tma_can_read(x) ? 0 : x.B * x.H * x.L * padded(x.D), stream), view_(x) {
    if (tma_can_read(x)) return;
    const auto to = dense_view(copy_.data(), x.B, x.H, x.L, padded(x.D), Layout::BHLD);
    launch({copy_blocks(to.B * to.H * to.L * to.D), kCopyThreads, 0, stream}, pad_rows_kernel<T>, x,
           to);
    view_ = to;
  }

  const TensorView<const T>& view() const { return view_; }

 private:
  static int64_t padded(int64_t D) {
    constexpr int kVector = kElementsPer16Bytes<T>;
    return (D + kVector - 1) / kVector * kVector;
  }

  StreamBuffer<T> copy_;
  TensorView<const T> view_;
};

// What attention over no keys gives: o = 0, lse = -inf. A thread owns an element of o.
template <class T>
__global__ void no_keys_kernel(TensorView<T> o,          // [B, H, Lq, M]
                               TensorView<float> lse) {  // [B, H, 1, Lq], or null
  const int64_t count = o.B * o.H * o.L * o.D;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t d = i % o.D, row = i / o.D;
    const int64_t l = row % o.L, h = row / o.L % o.H, b = row / o.L / o.H;
    o.row(b, h, l)[d] = from_float<T>(0);
    if (d == 0 && lse.data != nullptr) lse.row(b, h, 0)[l] = -INFINITY;
  }
}

}  // namespace attn::flash
