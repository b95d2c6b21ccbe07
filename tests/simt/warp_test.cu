// Shuffles, votes and masks against their definitions; barriers and atomics in block-wide sums.
#include "orders.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "common/device_buffer.hpp"
#include "common/launch.cuh"
#include "common/shared_storage.cuh"

namespace attn {
namespace {

constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kWidths[] = {32, 16, 8, 4, 2, 1};
constexpr int kArguments = 40;  // source lanes, deltas and lane masks 0 to 39

// out: [4 kinds, 6 widths, kArguments, 32 lanes]
template <class T>
__global__ void shuffle_kernel(T* out) {
  const int lane = threadIdx.x;
  const T value = T(lane * 1000003 + 17);
  for (int w = 0; w < 6; ++w) {
    const int width = 32 >> w;
    for (int i = 0; i < kArguments; ++i) {
      const T results[4] = {__shfl_sync(kFullWarp, value, i, width),
                            __shfl_up_sync(kFullWarp, value, i, width),
                            __shfl_down_sync(kFullWarp, value, i, width),
                            __shfl_xor_sync(kFullWarp, value, i, width)};
      for (int kind = 0; kind < 4; ++kind) {
        out[((kind * 6 + w) * kArguments + i) * 32 + lane] = results[kind];
      }
    }
  }
}

// The lane that is read, by PTX's definition of shfl, which takes 5 bits of the argument.
int shuffle_source(int kind, int width, int argument, int lane) {
  argument %= 32;
  const int first = lane / width * width;
  switch (kind) {
    case 0:
      return first + argument % width;
    case 1:
      return lane - argument < first ? lane : lane - argument;
    case 2:
      return lane + argument >= first + width ? lane : lane + argument;
  }
  // Lanes of an earlier segment can be read, lanes of a later one cannot.
  const int source = lane ^ argument;
  return source >= first + width ? lane : source;
}

template <class T>
void check_shuffles() {
  DeviceBuffer<T> out(4 * 6 * kArguments * 32);
  launch({1, 32}, shuffle_kernel<T>, out.data());
  const std::vector<T> got = out.to_host();
  for (int kind = 0, n = 0; kind < 4; ++kind) {
    for (int width : kWidths) {
      for (int i = 0; i < kArguments; ++i) {
        for (int lane = 0; lane < 32; ++lane, ++n) {
          ASSERT_EQ(got[n], T(shuffle_source(kind, width, i, lane) * 1000003 + 17))
              << "kind " << kind << " width " << width << " argument " << i << " lane " << lane;
        }
      }
    }
  }
}

TEST_P(InEveryOrder, ShufflesInt) { check_shuffles<int>(); }
TEST_P(InEveryOrder, ShufflesUnsigned) { check_shuffles<unsigned>(); }
TEST_P(InEveryOrder, ShufflesFloat) { check_shuffles<float>(); }
TEST_P(InEveryOrder, ShufflesDouble) { check_shuffles<double>(); }
TEST_P(InEveryOrder, ShufflesLongLong) { check_shuffles<long long>(); }

// in, out: [blocks, 32]
__global__ void vote_kernel(const int* in, unsigned* ballot, int* any, int* all) {
  const int i = blockIdx.x * 32 + threadIdx.x;
  ballot[i] = __ballot_sync(kFullWarp, in[i]);
  any[i] = __any_sync(kFullWarp, in[i]);
  all[i] = __all_sync(kFullWarp, in[i]);
}

TEST_P(InEveryOrder, Votes) {
  const std::vector<unsigned> patterns = {0, 1, 0x80000000u, 0xffffffffu, 0xfffffffeu, 0xa5c31f07u};
  std::vector<int> in;
  for (unsigned pattern : patterns) {
    for (int lane = 0; lane < 32; ++lane) in.push_back((pattern >> lane & 1) ? -lane - 7 : 0);
  }
  const DeviceBuffer<int> predicate(in), any(in.size()), all(in.size());
  const DeviceBuffer<unsigned> ballot(in.size());
  launch({int64_t(patterns.size()), 32}, vote_kernel, predicate.data(), ballot.data(), any.data(),
         all.data());
  const auto got_ballot = ballot.to_host();
  const auto got_any = any.to_host(), got_all = all.to_host();
  for (size_t i = 0; i < in.size(); ++i) {
    const unsigned pattern = patterns[i / 32];
    EXPECT_EQ(got_ballot[i], pattern);
    EXPECT_EQ(got_any[i] != 0, pattern != 0);
    EXPECT_EQ(got_all[i] != 0, pattern == kFullWarp);
  }
}

// The warp splits into lanes 0-11, which sum up, and lanes 12-31, which vote and then rotate.
__global__ void divergent_kernel(int* out) {
  const int lane = threadIdx.x;
  if (lane < 12) {
    int sum = lane;
    for (int delta = 1; delta < 12; delta *= 2) {
      const int below = __shfl_up_sync(0xfffu, sum, delta);
      if (lane >= delta) sum += below;
    }
    out[lane] = sum;
  } else {
    const unsigned odd = __ballot_sync(0xfffff000u, lane & 1);
    const int next = __shfl_sync(0xfffff000u, lane, lane == 31 ? 12 : lane + 1);
    out[lane] = next + (odd == 0xaaaaa000u ? 1000 : 0);
  }
}

TEST_P(InEveryOrder, PartialMasks) {
  DeviceBuffer<int> out(32);
  launch({1, 32}, divergent_kernel, out.data());
  const std::vector<int> got = out.to_host();
  for (int lane = 0; lane < 12; ++lane) EXPECT_EQ(got[lane], lane * (lane + 1) / 2);
  for (int lane = 12; lane < 32; ++lane) EXPECT_EQ(got[lane], 1000 + (lane == 31 ? 12 : lane + 1));
}

// Neighbours exchange through shared memory within the warp; the last warp has 8 lanes.
struct ExchangeStorage {
  int values[72];
};
__global__ void exchange_kernel(int* out) {
  auto& smem = shared_storage<ExchangeStorage>();
  const int i = threadIdx.x;
  for (int step = 0; step < 5; ++step) {
    smem.values[i] = i * 10 + step;
    __syncwarp();  // the neighbour's value is written
    out[step * 72 + i] = smem.values[i ^ 1];
    __syncwarp();  // the neighbour has read mine before I overwrite it
  }
}

TEST_P(InEveryOrder, SyncwarpOrdersSharedMemory) {
  DeviceBuffer<int> out(5 * 72);
  launch({1, 72}, exchange_kernel, out.data());
  const std::vector<int> got = out.to_host();
  for (int n = 0; n < 5 * 72; ++n) EXPECT_EQ(got[n], (n % 72 ^ 1) * 10 + n / 72);
}

// Inclusive prefix sum over a block: shuffles within warps, shared memory and barriers between.
struct ScanStorage {
  int warp_sums[32];
};
__global__ void scan_kernel(const int* in, int* out) {
  auto& smem = shared_storage<ScanStorage>();
  const int i = threadIdx.x, lane = i % 32, warp = i / 32;
  int sum = in[i];
  for (int delta = 1; delta < 32; delta *= 2) {
    const int below = __shfl_up_sync(kFullWarp, sum, delta);
    if (lane >= delta) sum += below;
  }
  if (lane == 31) smem.warp_sums[warp] = sum;
  __syncthreads();  // every warp's sum is there
  for (int w = 0; w < warp; ++w) sum += smem.warp_sums[w];
  out[i] = sum;
}

TEST_P(InEveryOrder, BlockScan) {
  for (int threads : {32, 64, 96, 128, 1024}) {
    std::vector<int> in(threads);
    for (int i = 0; i < threads; ++i) in[i] = (i * 7919) % 101 - 50;
    const DeviceBuffer<int> input(in), out(threads);
    launch({1, threads}, scan_kernel, input.data(), out.data());
    std::vector<int> expected(threads);
    std::partial_sum(in.begin(), in.end(), expected.begin());
    EXPECT_EQ(out.to_host(), expected) << threads << " threads";
  }
}

__global__ void atomics_kernel(int* count, unsigned* histogram, float* sum, double* sum64,
                               unsigned long long* total, int* largest) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(count, 1);
  atomicAdd(&histogram[i % 7], 1u);
  atomicAdd(sum, 0.5f);
  atomicAdd(sum64, 0.25);
  atomicAdd(total, (unsigned long long)i);
  atomicMax(largest, (i * 7919) % 10007);
}

TEST_P(InEveryOrder, AtomicsAcrossBlocks) {
  constexpr int blocks = 50, threads = 100, n = blocks * threads;
  DeviceBuffer<int> count(std::vector<int>{0}), largest(std::vector<int>{-1});
  DeviceBuffer<unsigned> histogram(std::vector<unsigned>(7, 0));
  DeviceBuffer<float> sum(std::vector<float>{0});
  DeviceBuffer<double> sum64(std::vector<double>{0});
  DeviceBuffer<unsigned long long> total(std::vector<unsigned long long>{0});
  launch({blocks, threads}, atomics_kernel, count.data(), histogram.data(), sum.data(),
         sum64.data(), total.data(), largest.data());
  EXPECT_EQ(count.to_host()[0], n);
  EXPECT_EQ(sum.to_host()[0], 0.5f * n);
  EXPECT_EQ(sum64.to_host()[0], 0.25 * n);
  EXPECT_EQ(total.to_host()[0], (unsigned long long)n * (n - 1) / 2);
  int expected = -1;
  for (int i = 0; i < n; ++i) expected = std::max(expected, (i * 7919) % 10007);
  EXPECT_EQ(largest.to_host()[0], expected);
  const auto bins = histogram.to_host();
  for (int bin = 0; bin < 7; ++bin) EXPECT_EQ(bins[bin], unsigned((n - bin + 6) / 7));
}

// Exactly one thread of the grid takes each ticket and each lock.
__global__ void exchange_atomics_kernel(int* ticket, unsigned* locks, int* winners,
                                        float* exchanged) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int mine = atomicAdd(ticket, 1);
  if (atomicCAS(&locks[mine % 16], 0u, 1u + i) == 0u) atomicAdd(winners, 1);
  atomicExch(&exchanged[mine], float(i));
}

TEST_P(InEveryOrder, CompareAndSwapHasOneWinner) {
  constexpr int n = 20 * 64;
  DeviceBuffer<int> ticket(std::vector<int>{0}), winners(std::vector<int>{0});
  DeviceBuffer<unsigned> locks(std::vector<unsigned>(16, 0));
  DeviceBuffer<float> exchanged(n);
  launch({20, 64}, exchange_atomics_kernel, ticket.data(), locks.data(), winners.data(),
         exchanged.data());
  EXPECT_EQ(winners.to_host()[0], 16);
  std::vector<float> got = exchanged.to_host();
  std::sort(got.begin(), got.end());
  for (int i = 0; i < n; ++i) EXPECT_EQ(got[i], float(i));
}

}  // namespace
}  // namespace attn
