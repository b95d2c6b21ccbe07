// The operands of gated linear attention, as every kernel of this stage takes them.
//
//   S_t = diag(exp g_t) S_{t-1} + k_t v_t^T        [E, M]
//   o_t = scale * q_t^T S_t                        (Yang et al. 2023, arXiv:2312.06635, section 4.1)
//
// The gate is inclusive: o_t sees the past decayed by g_t, and row t whole.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "common/check_operands.hpp"
#include "common/tensor_view.cuh"

namespace attn::chunked_gla {

// T is float or __nv_bfloat16. States are float in either case.
template <class T>
struct GlaOperands {
  TensorView<const T> q, k;  // [B, H, L, E]
  TensorView<const T> v;     // [B, H, L, M]
  TensorView<const T> g;     // [B, H, L, E], <= 0: the natural logarithm of the decay; -inf resets
  TensorView<T> o;           // [B, H, L, M]
  float scale;
  TensorView<const float> initial_state = {};  // [B, H, E, M]; data null: zeros
  TensorView<float> final_state = {};          // [B, H, E, M]; data null: not wanted
};

// Throws std::invalid_argument, in one line, unless all operands fit together, E is at most 512 and
// L at most 2^30.
template <class T>
void check_gla(const GlaOperands<T>& x) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(std::string("gated linear attention: ") + what);
  };
  const auto all_equal = [](int64_t q, int64_t k, int64_t v, int64_t g, int64_t o) {
    return k == q && v == q && g == q && o == q;
  };
  const auto is_state = [&](const auto& state) {
    return state.data == nullptr ||
           (state.B == x.q.B && state.H == x.q.H && state.L == x.q.D && state.D == x.v.D);
  };
  require(all_equal(x.q.B, x.k.B, x.v.B, x.g.B, x.o.B), "q, k, v, g and o differ in B");
  require(all_equal(x.q.H, x.k.H, x.v.H, x.g.H, x.o.H), "q, k, v, g and o differ in H");
  require(all_equal(x.q.L, x.k.L, x.v.L, x.g.L, x.o.L), "q, k, v, g and o differ in L");
  require(x.k.D == x.q.D && x.g.D == x.q.D, "q, k and g differ in head size");
  require(x.v.D == x.o.D, "v and o differ in head size");
  require(is_state(x.initial_state), "the initial state is not [B, H, E, M]");
  require(is_state(x.final_state), "the final state is not [B, H, E, M]");
  require(x.q.L <= kMaxLength, "the length is over 2^30");
  require(x.q.D <= kMaxHeadSize, "the head size of q and k is over 512");
}

}  // namespace attn::chunked_gla
