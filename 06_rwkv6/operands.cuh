// The operands of RWKV-6's time mixing, as every kernel of this stage takes them.
//
//   o_t = scale * r_t^T (S_{t-1} + diag(u) k_t v_t^T)        [M]
//   S_t = diag(exp w_t) S_{t-1} + k_t v_t^T                  [E, M]
//                                          (Peng et al. 2024, arXiv:2404.05892, section 4.2)
//
// The decay is exclusive: o_t sees the state before w_t acts on it, and row t through u alone.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "common/check_operands.hpp"
#include "common/tensor_view.cuh"

namespace attn::rwkv6 {

// T is float or __nv_bfloat16. States are float in either case.
template <class T>
struct Rwkv6Operands {
  TensorView<const T> r, k;  // [B, H, L, E]
  TensorView<const T> v;     // [B, H, L, M]
  TensorView<const T> w;     // [B, H, L, E], <= 0: the natural logarithm of the decay; -inf resets
  TensorView<const T> u;     // [1, H, 1, E]: the bonus of the row itself
  TensorView<T> o;           // [B, H, L, M]
  float scale = 1;
  TensorView<const float> initial_state = {};  // [B, H, E, M]; data null: zeros
  TensorView<float> final_state = {};          // [B, H, E, M]; data null: not wanted
  bool reverse = false;  // from row L-1 to row 0: S_{t-1} is then the state that row t+1 left
};

// [doc:walking_order]
// What every launch function begins with: the operands with rows in the order in which they are
// walked, by strides, so that no kernel knows of `reverse`. Throws std::invalid_argument, in one
// line, unless all operands fit together, E is at most 512 and L at most 2^30.
template <class T>
Rwkv6Operands<T> in_walking_order(const Rwkv6Operands<T>& x) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(std::string("RWKV-6: ") + what);
  };
  const auto all_equal = [](int64_t r, int64_t k, int64_t v, int64_t w, int64_t o) {
    return k == r && v == r && w == r && o == r;
  };
  const auto is_state = [&](const auto& state) {
    return state.data == nullptr ||
           (state.B == x.r.B && state.H == x.r.H && state.L == x.r.D && state.D == x.v.D);
  };
  require(all_equal(x.r.B, x.k.B, x.v.B, x.w.B, x.o.B), "r, k, v, w and o differ in B");
  require(all_equal(x.r.H, x.k.H, x.v.H, x.w.H, x.o.H), "r, k, v, w and o differ in H");
  require(all_equal(x.r.L, x.k.L, x.v.L, x.w.L, x.o.L), "r, k, v, w and o differ in L");
  require(x.k.D == x.r.D && x.w.D == x.r.D, "r, k and w differ in head size");
  require(x.v.D == x.o.D, "v and o differ in head size");
  require(x.u.B == 1 && x.u.H == x.r.H && x.u.L == 1 && x.u.D == x.r.D, "u is not [H, E]");
  require(is_state(x.initial_state), "the initial state is not [B, H, E, M]");
  require(is_state(x.final_state), "the final state is not [B, H, E, M]");
  require(x.r.L <= kMaxLength, "the length is over 2^30");
  require(x.r.D <= kMaxHeadSize, "the head size of r and k is over 512");
  // [doc:flip]
  if (!x.reverse) return x;
  Rwkv6Operands<T> walked = x;
  walked.r = flip(x.r);
  walked.k = flip(x.k);
  walked.v = flip(x.v);
  walked.w = flip(x.w);
  walked.o = flip(x.o);
  walked.reverse = false;
  return walked;
  // [/doc:flip]
}
// [/doc:walking_order]

}  // namespace attn::rwkv6
