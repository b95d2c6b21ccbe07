// The barriers of a block whose warps have different jobs, and come to them from different loops.
//
//   meet_all(threads);                 // all warps of the block, of `threads` in all
//   meet_some(barrier, threads);       // the warps that name one of the barriers 2 to 15
//   arrive(barrier, threads);          // the same, but goes on at once: for ...
//   wait_for_arrivals(barrier, threads);
//   while_others_arrive();             // what all other warps of the block call meanwhile
//
// PTX's bar.sync, which __syncthreads() is, wants all threads of a block at one place; here each warp
// comes from where it likes, and nothing more is needed for the hardware. But compute-sanitizer's
// racecheck takes bar.sync at two places for two barriers, and does not follow warps that arrive
// and go on. In the build for it (ATTN_FOR_COMPUTE_SANITIZER) a barrier is one function, never
// inlined, and arrivals are waited for by the whole block. Elsewhere that costs a quarter of the
// speed: the compiler finds fewer registers around a call.
//
// PTX ISA, "Parallel Synchronization and Communication Instructions: bar, barrier".
#pragma once

#include <cuda_runtime.h>

#include "common/ptx/named_barrier.cuh"

namespace attn {

#ifdef ATTN_FOR_COMPUTE_SANITIZER

inline __device__ __attribute__((noinline)) void meet_at_one_place(int barrier, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
inline __device__ __attribute__((noinline)) void all_meet_at_one_place() {
  asm volatile("barrier.sync 0;" ::: "memory");
}

__device__ __forceinline__ void meet_all(int) { all_meet_at_one_place(); }
__device__ __forceinline__ void meet_some(int barrier, int threads) {
  meet_at_one_place(barrier, threads);
}
__device__ __forceinline__ void arrive(int, int) { all_meet_at_one_place(); }
__device__ __forceinline__ void wait_for_arrivals(int, int) { all_meet_at_one_place(); }
__device__ __forceinline__ void while_others_arrive() { all_meet_at_one_place(); }

#else

__device__ __forceinline__ void meet_all(int threads) { named_barrier_sync(1, threads); }
__device__ __forceinline__ void meet_some(int barrier, int threads) {
  named_barrier_sync(barrier, threads);
}
__device__ __forceinline__ void arrive(int barrier, int threads) {
  named_barrier_arrive(barrier, threads);
}
__device__ __forceinline__ void wait_for_arrivals(int barrier, int threads) {
  named_barrier_sync(barrier, threads);
}
__device__ __forceinline__ void while_others_arrive() {}

#endif

}  // namespace attn
