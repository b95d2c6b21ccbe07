// Scratch device memory in the order of a stream: it is there for what is enqueued after its
// construction and gone for what is enqueued after its destruction. Neither waits for the device.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "common/cuda_check.hpp"

namespace attn {

template <class T>
class StreamBuffer {
 public:
  StreamBuffer(size_t size, cudaStream_t stream) : stream_(stream) {
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
