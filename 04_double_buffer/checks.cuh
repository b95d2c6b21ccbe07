// What stage 04 offers beside the plain causal product, verified: the product reversed, and the
// causal linear attention layer with key lengths and unequal lengths.
#pragma once

#include <string>
#include <vector>

#include "01_cpu_reference/causal_product.hpp"
#include "01_cpu_reference/linear_attention.hpp"
#include "04_double_buffer/causal_product.cuh"
#include "04_double_buffer/layer.cuh"
#include "04_double_buffer/step3_chunks.cuh"
#include "common/compare.hpp"
#include "common/device_buffer.hpp"
#include "common/driver/check_operand.hpp"
#include "common/driver/stage.hpp"

namespace attn::double_buffer {

using Operand = driver::CheckOperand<float>;

inline Comparison check_reversed(int64_t heads, int64_t L, int64_t E, int64_t M, Layout layout) {
  const Operand q("q", 1, heads, L, E, layout), k("k", 1, heads, L, E, layout);
  const Operand v("v", 1, heads, L, M, layout);
  Operand o("o", 1, heads, L, M, layout);
  o.poison();
  reversed_causal_product(q.device(), k.device(), v.device(), o.device());
  return o.compare_with(tolerance(Dtype::f32), [&](int64_t b, int64_t h) {
    return reference::reversed_causal_product(q.slice(b, h), k.slice(b, h), v.slice(b, h));
  });
}

inline Comparison check_layer(int64_t Lq, int64_t Lk, int64_t E, int64_t M,
                              const std::vector<int>& key_lengths, Layout layout) {
  const int64_t B = key_lengths.size(), H = 2;
  const Operand q("q", B, H, Lq, E, layout), k("k", B, H, Lk, E, layout);
  const Operand v("v", B, H, Lk, M, layout);
  Operand o("o", B, H, Lq, M, layout);
  o.poison();
  causal_linear_attention(q.device(), k.device(), v.device(), DeviceBuffer<int>(key_lengths).data(),
                          o.device());
  return o.compare_with(tolerance(Dtype::f32), [&](int64_t b, int64_t h) {
    return reference::causal_linear_attention(q.slice(b, h), k.slice(b, h), v.slice(b, h),
                                              key_lengths[b]);
  });
}

// The product in chunks, with more or fewer rows of k and v than of q.
inline Comparison check_chunks(int64_t L, int64_t Lk, int64_t E, int64_t M, Layout layout) {
  using Operand = driver::CheckOperand<__nv_bfloat16>;
  const Operand q("q", 2, 2, L, E, layout), k("k", 2, 2, Lk, E, layout);
  const Operand v("v", 2, 2, Lk, M, layout);
  Operand o("o", 2, 2, L, M, layout);
  o.poison();
  chunks_causal_product(q.device(), k.device(), v.device(), o.device());
  return o.compare_with(tolerance(Dtype::bf16), [&](int64_t b, int64_t h) {
    Matrix k_rows = k.slice(b, h), v_rows = v.slice(b, h);
    k_rows.data.resize(L * E);  // zeros past the last row
    v_rows.data.resize(L * M);
    return reference::causal_product(q.slice(b, h), k_rows, v_rows);
  });
}

inline std::vector<driver::Check> checks() {
  const double bound = tolerance(Dtype::f32);
  return {
      {"reversed, few heads", bound, [] { return check_reversed(2, 997, 64, 64, Layout::BHLD); }},
      {"reversed, many heads", bound, [] { return check_reversed(48, 65, 60, 10, Layout::BLHD); }},
      {"chunks, more queries than keys", tolerance(Dtype::bf16),
       [] { return check_chunks(200, 130, 64, 64, Layout::BHLD); }, "chunks", Dtype::bf16},
      {"chunks, fewer queries than keys", tolerance(Dtype::bf16),
       [] { return check_chunks(70, 130, 100, 36, Layout::BLHD); }, "chunks", Dtype::bf16},
      {"layer, key lengths", bound,
       [] {
         return check_layer(130, 130, 64, 64, {130, 100, 1, 0}, Layout::BHLD);
       }},
      {"layer, more queries than keys", bound,
       [] {
         return check_layer(200, 130, 48, 100, {130, 77}, Layout::BLHD);
       }},
      {"layer, fewer queries than keys", bound,
       [] {
         return check_layer(64, 130, 128, 32, {130, 20}, Layout::BHLD);
       }},
  };
}

}  // namespace attn::double_buffer
