// Gated linear attention with every sequence cut into segments that are walked at the same time.
//
// The idea: with few heads, the engine leaves multiprocessors idle. What segments need of each other
// is the state they begin with, and the state after a segment is
//
//   (what the segment adds, begun at zero) + (what it decays by) * (the state it began with).
//
// What a segment adds takes no recurrence, and no outputs: common/chunked/segment_states.cuh has a
// kernel for it, which takes half to two thirds of the time of the walk, and much less where gates
// let it end early. Then the engine walks all segments, each from the state that it puts together
// from the segments before.
//
// Who computes what: two launches, which overlap (common/chunked/cut.cuh).
//
// What memory moves: q and o once, k, g and v twice at the most, 4 bytes per element of the state and
// segment, and as much for each later segment that remembers it. This is the literature's way to
// recompute: keeping the state of every 64 rows instead would write and read 2 E M / 64 floats per
// row, for E = M = 128 in bf16 2.7 times as much as reading k, v and g again.
//
// What limits it: the same as step 4, over a shorter walk; and with few segments that the later ones
// wait for what the first ones add.
#pragma once

#include <cuda_runtime.h>

#include "05_chunked_gla/operands.cuh"
#include "05_chunked_gla/step4_engine.cuh"
#include "common/chunked/cut.cuh"

namespace attn::chunked_gla {

// [doc:segments_gla]
// As engine_gla. Throws CudaError also when there is no memory for the states of the segments.
template <class T>
void segments_gla(const GlaOperands<T>& x, cudaStream_t stream = 0) {
  check_gla(x);
  chunked::walk_in_segments<EngineTilings<T>>(walk_of(x), stream);
}
// [/doc:segments_gla]

}  // namespace attn::chunked_gla
