// Times one run of something: on a GPU by CUDA events, after the L2 cache was overwritten; on the
// host by the wall clock.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>

#include "common/device_buffer.hpp"

namespace attn::driver {

class Stopwatch {
 public:
  explicit Stopwatch(bool on_host);
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // `work` enqueues on the default stream (on the host: does it all). Returns milliseconds.
  double ms(const std::function<void()>& work);

 private:
  bool on_host_;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
  DeviceBuffer<std::byte> flush_;  // twice the L2 cache
};

}  // namespace attn::driver
