// Two launches that overlap: the second may begin while the first one's blocks are still running, and
// waits only where it needs their results (programmatic dependent launch).
//
//   // kernel 1                              // kernel 2, with LaunchConfig::overlapping
//   grid_dependency_launch();                ... what does not need kernel 1 ...
//   ... writes results ...                   grid_dependency_wait();
//                                            ... reads them ...
//
// grid_dependency_launch: once all blocks have called it, or ended, blocks of the next launch may
// begin. grid_dependency_wait: the launch before has ended, and its writes are seen.
//
// PTX ISA, "Parallel Synchronization and Communication Instructions: griddepcontrol". Needs compute
// capability 9.0; below that, and in the emulation, launches do not overlap.
#pragma once

#include <cuda_runtime.h>

namespace attn {

__device__ __forceinline__ void grid_dependency_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void grid_dependency_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace attn
