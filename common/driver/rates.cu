#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/device.hpp"
#include "common/device_buffer.hpp"
#include "common/driver/rates.hpp"
#include "common/driver/stopwatch.hpp"
#include "common/launch.cuh"
#include "common/ptx/mma.cuh"

namespace attn::driver {
namespace {

// One float4 per thread: on an H200 faster than several, and as fast as cudaMemcpy.
constexpr int kCopyThreads = 512;

__global__ void copy_kernel(const float4* from, float4* to, int64_t count) {
  const int64_t i = int64_t(blockIdx.x) * kCopyThreads + threadIdx.x;
  if (i < count) to[i] = from[i];
}

constexpr int kFmaThreads = 256;
constexpr int kChains = 8;  // independent sums per thread: hides the latency of one
constexpr int kSteps = 8192;

__global__ void fma_kernel(float* sink, float a, float b) {
  float sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = threadIdx.x + i;
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kChains; ++i) sums[i] = sums[i] * a + b;
  }
  float total = 0;
  for (int i = 0; i < kChains; ++i) total += sums[i];
  if (total == -1) *sink = total;  // never, but the compiler cannot know
}

constexpr int kMmaWarps = 8;
constexpr int kMmaTiles = 8;  // independent products per warp
constexpr int kMmaSteps = 1024;
constexpr double kMmaFlops = 2. * 16 * 8 * 16;  // of one m16n8k16

__global__ void mma_kernel(float* sink, uint32_t operand) {
  // Both halves small numbers, other ones in each lane: zeros would draw less power than real work.
  const uint32_t bits = operand + threadIdx.x;
  const uint32_t a[4] = {bits, bits ^ 1, bits ^ 2, bits ^ 3}, b[2] = {bits ^ 4, bits ^ 5};
  float sums[kMmaTiles][4];
  for (int i = 0; i < kMmaTiles; ++i)
    for (float& sum : sums[i]) sum = i;  // no two alike: the compiler must not merge them
  for (int step = 0; step < kMmaSteps; ++step) {
    for (int i = 0; i < kMmaTiles; ++i) mma_m16n8k16(sums[i], a, b, sums[i]);
  }
  float total = 0;
  for (int i = 0; i < kMmaTiles; ++i)
    for (float sum : sums[i]) total += sum;
  if (total == -1) *sink = total;  // never, as above
}

// The median of a few runs, in seconds, after some that do not count: first touches are slower.
template <class Work>
double seconds_of(Stopwatch& stopwatch, const Work& work) {
  for (int i = 0; i < 3; ++i) stopwatch.ms(work);
  std::vector<double> samples;
  for (int i = 0; i < 9; ++i) samples.push_back(stopwatch.ms(work) / 1e3);
  std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
  return samples[samples.size() / 2];
}

double copy_rate(Stopwatch& stopwatch) {
  size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total));
  constexpr size_t kMost = size_t(4) << 30;
  const size_t count = std::min(kMost, free / 4) / sizeof(float4);
  const DeviceBuffer<float4> from(count), to(count);
  cuda_check(cudaMemset(from.data(), 0, count * sizeof(float4)));
  const int64_t blocks = (int64_t(count) + kCopyThreads - 1) / kCopyThreads;
  const double seconds = seconds_of(stopwatch, [&] {
    launch({blocks, kCopyThreads}, copy_kernel, from.data(), to.data(), int64_t(count));
  });
  return 2.0 * count * sizeof(float4) / seconds;
}

double fma_rate(Stopwatch& stopwatch) {
  const int64_t blocks = 32 * int64_t(multiprocessors());
  const DeviceBuffer<float> sink(1);
  const double seconds = seconds_of(stopwatch, [&] {
    launch({blocks, kFmaThreads}, fma_kernel, sink.data(), 0.5f, 1.0f);
  });
  return 2.0 * kChains * kSteps * kFmaThreads * blocks / seconds;
}

double mma_rate(Stopwatch& stopwatch) {
  if (compute_capability_major() < 8) return 0;
  const int64_t blocks = 32 * int64_t(multiprocessors());
  const DeviceBuffer<float> sink(1);
  const double seconds = seconds_of(stopwatch, [&] {
    launch({blocks, 32 * kMmaWarps}, mma_kernel, sink.data(), 0x3c003d00u);
  });
  return kMmaFlops * kMmaTiles * kMmaSteps * kMmaWarps * blocks / seconds;
}

}  // namespace

Rates measure_device_rates() {
  Stopwatch stopwatch(/*on_host=*/false);
  const double fma = fma_rate(stopwatch);  // first: it also wakes the clocks
  const double copy = copy_rate(stopwatch);
  return {copy, fma, mma_rate(stopwatch)};
}

}  // namespace attn::driver
