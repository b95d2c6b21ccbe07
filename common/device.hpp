// What the current device has of what a launch is sized by.
#pragma once

#include <cuda_runtime.h>

#include "common/cuda_check.hpp"

namespace attn {

// Multiprocessors of the current device.
inline int multiprocessors() {
  int device = 0, count = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

// 8 for compute capability 8.0 to 8.9.
inline int compute_capability_major() {
  int device = 0, major = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major;
}

// Bytes of shared memory a block may have on the current device.
inline int shared_memory_per_block() {
  int device = 0, bytes = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return bytes;
}

}  // namespace attn
