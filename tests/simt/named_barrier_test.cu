// Named barriers: warps of two roles that meet from different source lines.
#include "orders.hpp"

#include <vector>

#include "common/device_buffer.hpp"
#include "common/launch.cuh"
#include "common/ptx/named_barrier.cuh"
#include "common/shared_storage.cuh"

namespace attn {
namespace {

constexpr int kRole = 64;  // threads of a role: two warps
constexpr int kBuffers = 2;
constexpr int kFull = 1, kEmpty = kFull + kBuffers;  // the barriers, one per buffer

struct RingStorage {
  int values[kBuffers][kRole];
};

// One role fills buffers, the other reads each backwards, so that a value crosses warps, and hands
// it back. Thread i of the block's row of `out` [steps, kRole] gets step * kRole + (its mirror).
__global__ void ring_kernel(int* out, int steps) {
  auto& smem = shared_storage<RingStorage>();
  const int i = threadIdx.x % kRole;
  out += int64_t(blockIdx.x) * steps * kRole;
  if (threadIdx.x < kRole) {
    for (int step = 0; step < steps; ++step) {
      const int buffer = step % kBuffers;
      // Step - kBuffers must have been read before it is overwritten.
      if (step >= kBuffers) named_barrier_sync(kEmpty + buffer, 2 * kRole);
      smem.values[buffer][i] = step * kRole + i;
      named_barrier_arrive(kFull + buffer, 2 * kRole);
    }
  } else {
    for (int step = 0; step < steps; ++step) {
      const int buffer = step % kBuffers;
      named_barrier_sync(kFull + buffer, 2 * kRole);  // the step has been written
      out[step * kRole + i] = smem.values[buffer][kRole - 1 - i];
      if (step + kBuffers < steps) named_barrier_arrive(kEmpty + buffer, 2 * kRole);
    }
  }
}

TEST_P(InEveryOrder, DoubleBuffering) {
  constexpr int blocks = 3;
  for (int steps : {1, 2, 3, 50}) {
    const DeviceBuffer<int> out(blocks * steps * kRole);
    launch({blocks, 2 * kRole}, ring_kernel, out.data(), steps);
    const std::vector<int> got = out.to_host();
    for (int n = 0; n < blocks * steps * kRole; ++n) {
      const int step = n / kRole % steps, i = n % kRole;
      ASSERT_EQ(got[n], step * kRole + kRole - 1 - i) << "step " << step << " of " << steps;
    }
  }
}

// Warps 0 and 1 rotate values around their ring of 64, with a barrier of their own, while warp 2
// waits at the block's.
__global__ void subset_kernel(int* out, int rounds) {
  auto& smem = shared_storage<RingStorage>();
  const int i = threadIdx.x;
  if (i < kRole) {
    int value = i;
    for (int round = 0; round < rounds; ++round) {
      smem.values[round % 2][i] = value;
      named_barrier_sync(1, kRole);  // all have written; the other buffer has been read
      value = smem.values[round % 2][(i + 1) % kRole];
    }
    smem.values[rounds % 2][i] = value;
  }
  __syncthreads();  // the values are there
  out[i] = smem.values[rounds % 2][i % kRole];
}

TEST_P(InEveryOrder, SomeWarpsMeetWhileOthersWaitForTheBlock) {
  constexpr int rounds = 21;
  const DeviceBuffer<int> out(96);
  launch({1, 96}, subset_kernel, out.data(), rounds);
  const std::vector<int> got = out.to_host();
  for (int i = 0; i < 96; ++i) EXPECT_EQ(got[i], (i % kRole + rounds) % kRole);
}

}  // namespace
}  // namespace attn
