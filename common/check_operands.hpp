// The argument checks of the kernels' launch functions.
#pragma once

#include <stdexcept>
#include <string>

#include "common/tensor_view.cuh"

namespace attn {

constexpr int64_t kMaxHeadSize = 512;             // of q and k: what the kernels' tiles go up to
constexpr int64_t kMaxLength = int64_t{1} << 30;  // kernels count time steps in 32 bits

// Throws std::invalid_argument, in one line, unless q [B, H, L, E], k [B, H, Lk, E], v [B, H, Lk, M]
// and o [B, H, L, M] fit together, E is at most 512 and no length over 2^30.
template <class T>
void check_causal_product(const TensorView<const T>& q, const TensorView<const T>& k,
                          const TensorView<const T>& v, const TensorView<T>& o) {
  auto require = [](bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(std::string("causal product: ") + what);
  };
  require(q.B == k.B && q.B == v.B && q.B == o.B, "q, k, v and o differ in B");
  require(q.H == k.H && q.H == v.H && q.H == o.H, "q, k, v and o differ in H");
  require(q.L == o.L, "q and o differ in L");
  require(k.L == v.L, "k and v differ in L");
  require(q.D == k.D, "q and k differ in head size");
  require(v.D == o.D, "v and o differ in head size");
  require(q.L <= kMaxLength && k.L <= kMaxLength, "a length is over 2^30");
  require(q.D <= kMaxHeadSize, "the head size of q and k is over 512");
}

// The same for kernels that walk q and k side by side.
inline void check_equal_lengths(const TensorView<const float>& q,
                                const TensorView<const float>& k) {
  if (q.L != k.L) throw std::invalid_argument("causal product: q and k differ in L");
}

}  // namespace attn
