// all_warps_sync(): all warps of a block wait for each other, as in __syncthreads(), but come from
// where they like: from the different loops of warps with different jobs, say.
//
// PTX's bar.sync, which __syncthreads() is, wants all threads of a block at one place; barrier.sync
// wants all lanes of a warp there. Nothing more is needed for the hardware. But compute-sanitizer's
// racecheck takes two places for two barriers, so there is one: the function is never inlined.
// some_warps_sync() is the same for the warps that name one of the barriers 1 to 15, `threads` in all.
//
// PTX ISA, "Parallel Synchronization and Communication Instructions: bar, barrier".
#pragma once

#include <cuda_runtime.h>

#include "common/ptx/named_barrier.cuh"

namespace attn {

inline __device__ __attribute__((noinline)) void all_warps_sync() {
#if defined(ATTN_SIMT)
  __syncthreads();
#else
  asm volatile("barrier.sync 0;" ::: "memory");
#endif
}

inline __device__ __attribute__((noinline)) void some_warps_sync(int barrier, int threads) {
#if defined(ATTN_SIMT)
  named_barrier_sync(barrier, threads);
#else
  asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
#endif
}

}  // namespace attn
