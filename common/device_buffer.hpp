// Device memory that frees itself. Of exactly the size asked for, so that memcheck (or, in the CPU
// build, AddressSanitizer) sees an access one element past the end.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/cuda_check.hpp"

namespace attn {

template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(size_t size) : size_(size) {
    void* data = nullptr;
    if (size > 0) cuda_check(cudaMalloc(&data, size * sizeof(T)));
    data_ = static_cast<T*>(data);
  }
  explicit DeviceBuffer(const std::vector<T>& host) : DeviceBuffer(host.size()) { copy_from(host); }

  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceBuffer() { cudaFree(data_); }

  T* data() const { return data_; }
  size_t size() const { return size_; }  // in elements

  // The buffer's whole content, from host memory.
  void copy_from(const T* host) {
    if (size_ > 0) cuda_check(cudaMemcpy(data_, host, size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  void copy_from(const std::vector<T>& host) {
    if (host.size() != size_) throw std::logic_error("DeviceBuffer::copy_from: sizes differ");
    copy_from(host.data());
  }

  // To host memory; waits for the kernels before it.
  void copy_to(T* host) const {
    if (size_ > 0) cuda_check(cudaMemcpy(host, data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
  }
  std::vector<T> to_host() const {
    std::vector<T> host(size_);
    copy_to(host.data());
    return host;
  }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace attn
