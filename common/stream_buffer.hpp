// Scratch device memory in the order of a stream: it is there for what is enqueued after its
// construction and gone for what is enqueued after its destruction. Neither waits for the device.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "common/cuda_check.hpp"

namespace attn {

// Tells the current device's pool, once, to keep what is freed. By default it gives all of it back at
// every synchronisation, and the next buffer waits for the operating system: 2 us on an H200, more
// than some kernels' difference.
inline void keep_freed_memory() {
  [[maybe_unused]] static const bool told = [] {
    int device = 0;
    cudaMemPool_t pool = nullptr;
    uint64_t everything = UINT64_MAX;
    cuda_check(cudaGetDevice(&device));
    cuda_check(cudaDeviceGetDefaultMemPool(&pool, device));
    cuda_check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &everything));
    return true;
  }();
}

template <class T>
class StreamBuffer {
 public:
  StreamBuffer(size_t size, cudaStream_t stream) : stream_(stream) {
    keep_freed_memory();
    void* data = nullptr;
    if (size > 0) cuda_check(cudaMallocAsync(&data, size * sizeof(T), stream));
    data_ = static_cast<T*>(data);
  }
  StreamBuffer(const StreamBuffer&) = delete;
  ~StreamBuffer() {
    if (data_ != nullptr) cudaFreeAsync(data_, stream_);
  }

  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
  cudaStream_t stream_;
};

}  // namespace attn
