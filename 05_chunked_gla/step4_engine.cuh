// Gated linear attention by the engine (common/chunked): step 3, and what makes the rest of the speed.
//
// The idea: step 3's, sub-chunks of 16 rows that preparing warps make into packets and state warps
// take. The engine adds what a reader need not hold in the head:
//
// - rows that change places in shared memory, so that neither copies nor tensor cores wait for banks
//   (common/swizzled_rows.cuh);
// - the scaled k as one fp16, with v, where both are of a size that suits it, which the preparing
//   warps see to; otherwise as two bf16, which is slower (common/chunked/fp16_range.cuh);
// - slabs: several preparing warps share a sub-chunk's columns, and add up their scores;
// - warps that only fetch rows, and a state in two parts of rows, where heads are few;
// - float tensors, by tf32 and by sums of two bf16.
//
// What is this stage's own: how gates become packets (inclusive_decay.cuh), and the tilings below.
//
// What memory moves: every operand once.
//
// What limits it: the state warps, which go from product to product. A multiprocessor has two or
// three warps per scheduler. Tensor cores are a third busy, memory three quarters. At E = 128 it is
// both kinds of warps, which together take three quarters of the sum of what they take alone; with
// few heads the preparing warps, one per scheduler, and what all do in shared memory.
//
// What the next step removes: the walk of one block along the whole sequence, where there are fewer
// heads than multiprocessors.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "05_chunked_gla/inclusive_decay.cuh"
#include "05_chunked_gla/operands.cuh"
#include "common/chunked/engine.cuh"

namespace attn::chunked_gla {

// [doc:tilings]
// The usual ones were the fastest of those tried on an H200.
template <class T>
struct EngineTilings : chunked::UsualTilings<T> {
  using Decay = InclusiveDecay;
};
// [/doc:tilings]

// The operands by their roles.
template <class T>
chunked::Walk<T> walk_of(const GlaOperands<T>& x) {
  return {.read = x.q,
          .write = x.k,
          .value = x.v,
          .decay = x.g,
          .output = x.o,
          .scale = x.scale,
          .initial_state = x.initial_state,
          .final_state = x.final_state};
}

// Gated linear attention; for floats with tf32 products. Throws std::invalid_argument for operands
// that do not fit together, CudaError when a launch fails.
template <class T>
void engine_gla(const GlaOperands<T>& x, cudaStream_t stream = 0) {
  check_gla(x);
  chunked::walk_segments<EngineTilings<T>>(walk_of(x), chunked::one_segment(x.k.L), stream);
}

}  // namespace attn::chunked_gla

// step4_engine_float.cu and step4_engine_bf16.cu hold them.
namespace attn::chunked {
extern template void walk_segments<chunked_gla::EngineTilings<float>>(const Walk<float>&,
                                                                      const Segments&,
                                                                      cudaStream_t);
extern template void walk_segments<chunked_gla::EngineTilings<__nv_bfloat16>>(
    const Walk<__nv_bfloat16>&, const Segments&, cudaStream_t);
}  // namespace attn::chunked
