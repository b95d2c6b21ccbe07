// RWKV-6 with every sequence cut into segments that are walked at the same time: stage 05's step 5,
// which knows of no decay but how much there is of it.
//
// What memory moves: r and o once; k, v and w nearly twice, or where decays are strong once and the
// last rows of each segment again; 4 bytes of state per element and segment written, and read once
// for each later segment that it reaches.
//
// What limits it: the same as step 4, in a shorter walk, and the beginning and end of two launches.
#pragma once

#include <cuda_runtime.h>

#include "06_rwkv6/operands.cuh"
#include "06_rwkv6/step4_engine.cuh"
#include "common/chunked/cut.cuh"

namespace attn::rwkv6 {

// [doc:segments_rwkv6]
// As engine_rwkv6. Throws CudaError also when there is no memory for the states of the segments.
template <class T>
void segments_rwkv6(const Rwkv6Operands<T>& x, cudaStream_t stream = 0) {
  chunked::walk_in_segments<EngineTilings<T>>(walk_of(in_walking_order(x)), stream);
}
// [/doc:segments_rwkv6]

}  // namespace attn::rwkv6
