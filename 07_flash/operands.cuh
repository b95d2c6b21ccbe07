// The operands of softmax attention, as every kernel of this stage takes them.
//
//   o_i   = sum_j p_ij v_j,   p_ij = exp(scale * q_i . k_j - lse_i)
//   lse_i = log sum_j exp(scale * q_i . k_j)          (Vaswani et al. 2017, equation 1)
//
// j runs over all keys or, with the causal mask, over those up to the query's own position, counted
// from the end: the last query stands at the last key. A query that sees no key gives o = 0 and
// lse = -inf.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "common/check_operands.hpp"
#include "common/tensor_view.cuh"

namespace attn::flash {

constexpr int64_t kMaxHeadSize = 256;  // what the registers of a block hold an output tile of

// T is float or __nv_bfloat16. Grouped heads: query head h reads key head h / (H / Hkv).
template <class T>
struct AttentionOperands {
  TensorView<const T> q;  // [B, H, Lq, E]
  TensorView<const T> k;  // [B, Hkv, Lk, E]
  TensorView<const T> v;  // [B, Hkv, Lk, M]
  TensorView<T> o;        // [B, H, Lq, M]
  float scale;            // positive, usually E^-1/2
  bool causal;
  TensorView<float> lse = {};  // [B, H, 1, Lq], natural logarithm; data null: not wanted
};

// Throws std::invalid_argument, in one line, unless all operands fit together, head sizes are 1 to
// 256 and lengths at most 2^30. There may be no keys; there must be a query.
template <class T>
void check_attention(const AttentionOperands<T>& x) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(std::string("softmax attention: ") + what);
  };
  require(x.k.B == x.q.B && x.v.B == x.q.B && x.o.B == x.q.B, "q, k, v and o differ in B");
  require(x.o.H == x.q.H, "q and o differ in H");
  require(x.v.H == x.k.H, "k and v differ in H");
  require(x.k.H >= 1 && x.q.H % x.k.H == 0, "the heads of q are no multiple of those of k and v");
  require(x.o.L == x.q.L, "q and o differ in L");
  require(x.v.L == x.k.L, "k and v differ in L");
  require(x.k.D == x.q.D, "q and k differ in head size");
  require(x.o.D == x.v.D, "v and o differ in head size");
  require(x.q.D >= 1 && x.q.D <= kMaxHeadSize, "the head size of q and k is not 1 to 256");
  require(x.v.D >= 1 && x.v.D <= kMaxHeadSize, "the head size of v is not 1 to 256");
  require(x.q.L >= 1 && x.q.L <= kMaxLength && x.k.L <= kMaxLength, "a length is over 2^30");
  require(x.lse.data == nullptr ||
              (x.lse.B == x.q.B && x.lse.H == x.q.H && x.lse.L == 1 && x.lse.D == x.q.L),
          "the log-sum-exp is not [B, H, 1, Lq]");
  require(x.scale > 0, "the scale is not positive");
}

// The number of keys that query i sees.
// [doc:visible]
__host__ __device__ inline int visible_keys(int i, int Lq, int Lk, bool causal) {
  if (!causal) return Lk;
  const int keys = Lk - (Lq - 1 - i);  // the last query stands at the last key
  return keys < 0 ? 0 : keys < Lk ? keys : Lk;
}
// [/doc:visible]

}  // namespace attn::flash
