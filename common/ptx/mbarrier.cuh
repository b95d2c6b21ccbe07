// mbarrier: a barrier in shared memory that counts arrivals and bytes, so that a thread can wait
// for copies as well as for threads. Needs compute capability 9.0 as used here; there is no
// emulation.
//
//   // one thread, once                // a producer                      // consumers
//   mbarrier_init(&full, 1);           mbarrier_wait(&empty, p ^ 1);     mbarrier_wait(&full, p);
//   mbarrier_init(&empty, kReaders);   mbarrier_arrive_expect(           ... read ...
//   mbarrier_init_fence();                 &full, bytes);                mbarrier_arrive(&empty);
//   __syncthreads();                   tma_load(..., &full);
//
// A phase is complete once `count` arrivals have come and as many bytes as were expected; then the
// next begins by itself. A waiter names the phase by its parity: 0 for the first, 1 for the second,
// 0 again. It waits while the phase of that parity is the current one, so that a wait for parity 1
// returns at once on a new barrier: the phase "before the first" counts as complete. So nobody has
// to hand out buffers that were never used. A waiter must not be two phases late.
//
// An arrival releases the thread's earlier accesses, a wait acquires them (.release and .acquire at
// the scope of the block are the defaults). PTX ISA, "Parallel Synchronization and Communication
// Instructions: mbarrier".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace attn {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ __forceinline__ uint32_t shared_address(const void* smem) {
  return uint32_t(__cvta_generic_to_shared(smem));
}

// Of a barrier in fresh shared memory; one thread.
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
               : "memory");
}

// After the inits, by the thread that did them, before the block's __syncthreads(): the copy engine
// reaches shared memory by another path (the async proxy) and must find the barriers there.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Arrives, and makes the phase wait for `bytes` more bytes of copies that name this barrier.
__device__ __forceinline__ void mbarrier_arrive_expect(uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

// Waits until the phase of this parity is complete. try_wait sleeps for a time that the hardware
// chooses, hence the loop.
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, int parity) {
  const uint32_t address = shared_address(barrier);
  uint32_t complete = 0;
  while (!complete) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(complete)
        : "r"(address), "r"(parity)
        : "memory");
  }
#ifdef ATTN_MBARRIER_JITTER
  // For a build that looks for missing waits: whoever has waited goes on late, by up to 2 us. What
  // others do without waiting for it is then seen to be wrong.
  __nanosleep(uint32_t(clock()) * 2654435761u >> 21);
#endif
}

#endif

}  // namespace attn
