// Named barriers: some warps of a block wait for each other while the rest go on. The parties may
// come from different source lines, as __syncthreads() forbids: warps of different roles meet here.
//
//   // in the loop of the warps that write        // in the loop of those that read
//   named_barrier_sync(kEmpty, kThreads);         named_barrier_sync(kFull, kThreads);
//   ... write the buffer ...                      ... read the buffer ...
//   named_barrier_arrive(kFull, kThreads);        named_barrier_arrive(kEmpty, kThreads);
//
// A block has barriers 0 to 15; 0 is that of __syncthreads(), so `barrier` is 1 to 15. `threads`, a
// multiple of 32, is how many must arrive, by sync and by arrive together, and all arrivals name
// the same number. Then those in sync continue, after all memory accesses that came before the
// arrivals, and the barrier counts from zero again. Warps arrive, not threads: all 32 lanes must
// execute the call together.
//
// PTX ISA, "Parallel Synchronization and Communication Instructions: bar, barrier".
#pragma once

#include <cuda_runtime.h>

namespace attn {

#if defined(ATTN_SIMT)

// Arrives and waits until the barrier is complete.
inline void named_barrier_sync(int barrier, int threads, const char* file = __builtin_FILE(),
                               int line = __builtin_LINE()) {
  simt::named_barrier("named_barrier_sync", {barrier, threads, true}, {file, line});
}

// Arrives and goes on: what the thread does next is ordered after nobody else's accesses.
inline void named_barrier_arrive(int barrier, int threads, const char* file = __builtin_FILE(),
                                 int line = __builtin_LINE()) {
  simt::named_barrier("named_barrier_arrive", {barrier, threads, false}, {file, line});
}

#else

__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

#endif

}  // namespace attn
