// CUDA's qualifiers, which mean nothing to a host compiler.
#pragma once

#define __global__
#ifdef SIMT_MICROSCOPE
#define __device__ __attribute__((always_inline))  // as nvcc does, so that accesses are the same
#else
#define __device__
#endif
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

// A host compiler cannot express one variable per block.
#define __shared__ \
  _Pragma("GCC error \"shared memory: use shared_storage<T>(), common/shared_storage.cuh\"")
