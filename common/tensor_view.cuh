// A strided view of a four-dimensional tensor, in host or device memory.
//
// Kernels and references take their tensors as views, so that [B, H, L, D] and [B, L, H, D]
// tensors work without a copy. Offsets are 64-bit: a tensor may hold more than 2^31 elements.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace attn {

// How a dense tensor lies in memory; the head dimension D is contiguous in both.
enum class Layout { BHLD, BLHD };

template <class T>
struct TensorView {
  T* data;
  int64_t B, H, L, D;
  int64_t stride_b, stride_h, stride_l;  // in elements; D has stride 1

  // The D contiguous elements at (b, h, l).
  __host__ __device__ T* row(int64_t b, int64_t h, int64_t l) const {
    return data + b * stride_b + h * stride_h + l * stride_l;
  }

  // A view that can be written is a view that can be read.
  template <class U>
  requires(std::is_same_v<U, const T> && !std::is_const_v<T>) __host__ __device__
  operator TensorView<U>() const {
    return {data, B, H, L, D, stride_b, stride_h, stride_l};
  }
};

// The view of a dense tensor that begins at `data`.
template <class T>
TensorView<T> dense_view(T* data, int64_t B, int64_t H, int64_t L, int64_t D, Layout layout) {
  if (layout == Layout::BHLD) return {data, B, H, L, D, H * L * D, L * D, D};
  return {data, B, H, L, D, L * H * D, D, H * D};
}

// The same tensor with time running backwards: its first row is the last one of x.
template <class T>
TensorView<T> flip(const TensorView<T>& x) {
  TensorView<T> flipped = x;
  flipped.data = x.data + (x.L - 1) * x.stride_l;
  flipped.stride_l = -x.stride_l;
  return flipped;
}

// Rows [first, last) of every (b, h).
template <class T>
TensorView<T> rows(TensorView<T> x, int64_t first, int64_t last) {
  x.data += first * x.stride_l;
  x.L = last - first;
  return x;
}

// Columns [first, first + size) of a view, or as many of them as there are.
template <class T>
TensorView<T> columns(TensorView<T> x, int64_t first, int64_t size) {
  if (x.data != nullptr) x.data += first;
  x.D = x.D - first < size ? x.D - first : size;
  return x;
}

// The same of the rows of a state.
template <class T>
TensorView<T> state_rows(TensorView<T> S, int64_t first, int64_t size) {
  if (S.data != nullptr) S.data = S.row(0, 0, first);
  S.L = S.L - first < size ? S.L - first : size;
  return S;
}

// How many elements 16 bytes hold, the most that a thread reads at once.
template <class T>
inline constexpr int kElementsPer16Bytes = 16 / sizeof(T);

// Whether rows can be read 16 bytes at a time: every row begins on 16 bytes and holds a whole
// number of them.
template <class T>
bool rows_are_16_bytes(const TensorView<T>& x) {
  constexpr int kVector = kElementsPer16Bytes<T>;
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.D % kVector == 0 &&
         x.stride_b % kVector == 0 && x.stride_h % kVector == 0 && x.stride_l % kVector == 0;
}

}  // namespace attn
