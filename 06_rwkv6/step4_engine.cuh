// RWKV-6 by the engine (common/chunked), in one kernel on tensor cores.
//
// The idea: step 3's, sub-chunks of 16 rows and a state that never leaves the registers, for an
// exclusive decay and a bonus. With d_i the sum of a column's decays before row i, from the
// sub-chunk's first row on, and S the state before it,
//
//   o_i = (r_i exp d_i) . S  +  sum over j < i of A_ij v_j  +  r_i . (u k_i) v_i
//   A_ij = r_i exp(d_i - h) . k_j exp(h - d_{j+1})
//   S   <- diag(exp d_16) S  +  sum over j of exp(d_16 - d_{j+1}) k_j v_j^T
//
// for any h. Row i reads what has decayed i times; row j, once written, still has to go through the
// decays from j + 1 on. What stage 05 has at one place, the sum up to row i, is at two here, and the
// bonus is the diagonal of the scores. That is all of this stage's own (exclusive_decay.cuh); what the
// engine adds to step 3 is in stage 05's step 4.
//
// What memory moves: every operand once.
//
// What limits it: latency. A multiprocessor has two or three warps per scheduler, which wait for
// tensor cores, shared memory and each other.
//
// What the next step removes: the walk of one block along the whole sequence, where there are fewer
// heads than multiprocessors.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "06_rwkv6/exclusive_decay.cuh"
#include "06_rwkv6/operands.cuh"
#include "common/chunked/engine.cuh"

namespace attn::rwkv6 {

// [doc:tilings]
template <class T>
struct EngineTilings : chunked::UsualTilings<T> {
  using Decay = ExclusiveDecay;
};
// Here a preparing warp does better with all columns: of its three sums of decays and the bonus there
// is more to do at a time.
template <>
struct EngineTilings<__nv_bfloat16> : chunked::UsualTilings<__nv_bfloat16> {
  using Decay = ExclusiveDecay;
  // clang-format off
  struct UpTo64 { static constexpr chunked::TilingSizes kSizes = {
      .rows = 64, .warp_columns = 32, .column_warps = 2, .sub_chunks = 2, .slab = 64, .blocks = 2}; };
  // clang-format on
};
// [/doc:tilings]

// The operands by their roles.
template <class T>
chunked::Walk<T> walk_of(const Rwkv6Operands<T>& x) {
  return {.read = x.r,
          .write = x.k,
          .value = x.v,
          .decay = x.w,
          .output = x.o,
          .scale = x.scale,
          .initial_state = x.initial_state,
          .final_state = x.final_state,
          .bonus = x.u};
}

// RWKV-6; for floats with tf32 products. Throws std::invalid_argument for operands that do not fit
// together, CudaError when a launch fails.
template <class T>
void engine_rwkv6(const Rwkv6Operands<T>& x, cudaStream_t stream = 0) {
  const chunked::Walk<T> walk = walk_of(in_walking_order(x));
  chunked::walk_segments<EngineTilings<T>>(walk, chunked::one_segment(x.k.L), stream);
}

}  // namespace attn::rwkv6

// step4_engine_float.cu and step4_engine_bf16.cu hold them.
namespace attn::chunked {
extern template void walk_segments<rwkv6::EngineTilings<float>>(const Walk<float>&, const Segments&,
                                                                cudaStream_t);
extern template void walk_segments<rwkv6::EngineTilings<__nv_bfloat16>>(const Walk<__nv_bfloat16>&,
                                                                        const Segments&,
                                                                        cudaStream_t);
}  // namespace attn::chunked
