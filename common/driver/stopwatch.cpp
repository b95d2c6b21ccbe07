#include "common/driver/stopwatch.hpp"

#include <chrono>

namespace attn::driver {

Stopwatch::Stopwatch(bool on_host) : on_host_(on_host) {
  if (on_host) return;
  int device = 0, l2_bytes = 0;
  cuda_check(cudaGetDevice(&device));
  cuda_check(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device));
  flush_ = DeviceBuffer<std::byte>(2 * size_t(l2_bytes));
  cuda_check(cudaEventCreate(&start_));
  cuda_check(cudaEventCreate(&stop_));
}

Stopwatch::~Stopwatch() {
  if (start_) cudaEventDestroy(start_);
  if (stop_) cudaEventDestroy(stop_);
}

double Stopwatch::ms(const std::function<void()>& work) {
  if (on_host_) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  }
  // Inputs that a run before has left in the cache would make this one look faster than it is.
  if (flush_.size() > 0) cuda_check(cudaMemsetAsync(flush_.data(), 0, flush_.size()));
  cuda_check(cudaEventRecord(start_));
  work();
  cuda_check(cudaEventRecord(stop_));
  cuda_check(cudaEventSynchronize(stop_));
  float elapsed = 0;
  cuda_check(cudaEventElapsedTime(&elapsed, start_, stop_));
  return elapsed;
}

}  // namespace attn::driver
