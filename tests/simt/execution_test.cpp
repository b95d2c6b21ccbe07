// Launches: indices, limits, huge grids, environment variables, the runtime API's memory.
#include "orders.hpp"

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/device_buffer.hpp"
#include "common/launch.cuh"
#include "common/ptx/named_barrier.cuh"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#endif
#endif

namespace attn {
namespace {

template <class Error, class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Every thread writes its coordinates at its place in the grid.
__global__ void index_kernel(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  __syncthreads();  // the indices must survive a switch
  out[block * threads + thread] =
      int(blockIdx.x + 10 * blockIdx.y + 100 * blockIdx.z + 1000 * threadIdx.x +
          10000 * threadIdx.y + 100000 * threadIdx.z);
}

TEST_P(InEveryOrder, IndicesInThreeDimensions) {
  const DeviceBuffer<int> out(4 * 3 * 2 * 7 * 5 * 3);
  launch({{4, 3, 2}, {7, 5, 3}}, index_kernel, out.data());
  const std::vector<int> got = out.to_host();
  size_t n = 0;
  for (int bz = 0; bz < 2; ++bz)
    for (int by = 0; by < 3; ++by)
      for (int bx = 0; bx < 4; ++bx)
        for (int tz = 0; tz < 3; ++tz)
          for (int ty = 0; ty < 5; ++ty)
            for (int tx = 0; tx < 7; ++tx)
              ASSERT_EQ(got[n++], bx + 10 * by + 100 * bz + 1000 * tx + 10000 * ty + 100000 * tz);
}

__global__ void many_barriers_kernel(int* out, int rounds) {
  int* smem = dynamic_shared<int>();
  const int i = threadIdx.x, n = blockDim.x;
  smem[i] = i;
  for (int round = 0; round < rounds; ++round) {
    __syncthreads();  // the last round's values are there
    const int next = smem[(i + 1) % n];
    __syncthreads();  // all have read them
    smem[i] = next;
  }
  out[blockIdx.x * n + i] = smem[i];
}

TEST_P(InEveryOrder, ManyBarriersInManyBlocks) {
  for (int threads : {1, 2, 31, 32, 33, 128, 1024}) {
    constexpr int blocks = 5, rounds = 20;
    const DeviceBuffer<int> out(blocks * threads);
    launch({blocks, threads, threads * sizeof(int)}, many_barriers_kernel, out.data(), rounds);
    const std::vector<int> got = out.to_host();
    for (int i = 0; i < blocks * threads; ++i) {
      ASSERT_EQ(got[i], (i % threads + rounds) % threads) << threads << " threads";
    }
  }
}

// Warp 0 hands a number to warp 1 through one barrier and leaves an arrival at another, which the
// next block uses.
__global__ void left_over_kernel(int* out) {
  int* smem = dynamic_shared<int>();
  const int used = 1 + blockIdx.x % 2, left_over = 2 - blockIdx.x % 2;
  if (threadIdx.x < 32) {
    smem[threadIdx.x] = int(threadIdx.x);
    named_barrier_arrive(used, 64);
    named_barrier_arrive(left_over, 64);
  } else {
    named_barrier_sync(used, 64);
    out[blockIdx.x * 32 + threadIdx.x - 32] = smem[63 - threadIdx.x];
  }
}

TEST_P(InEveryOrder, ArrivalsThatAreLeftOverEndWithTheirBlock) {
  constexpr int blocks = 4;
  setenv("SIMT_THREADS", "1", 1);  // one worker's blocks follow each other
  const DeviceBuffer<int> out(blocks * 32);
  launch({blocks, 64, 32 * sizeof(int)}, left_over_kernel, out.data());
  unsetenv("SIMT_THREADS");
  const std::vector<int> got = out.to_host();
  for (int n = 0; n < blocks * 32; ++n) EXPECT_EQ(got[n], 31 - n % 32);
}

__global__ void count_kernel(unsigned long long* blocks, int* last_x, bool with_barrier) {
  if (with_barrier) __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(blocks, 1ull);
    if (blockIdx.x + 1 == gridDim.x) atomicAdd(last_x, int(blockIdx.x));
  }
}

TEST_P(InEveryOrder, MoreThan65535Blocks) {
#ifdef WITH_TSAN
  if (std::string(GetParam()) != "forward") GTEST_SKIP() << "slow under ThreadSanitizer";
  const int threads = 1;  // each costs a TSan fiber and a fresh stack
#else
  const int threads = 64;
#endif
  for (bool with_barrier : {false, true}) {
    const DeviceBuffer<unsigned long long> blocks(std::vector<unsigned long long>{0});
    const DeviceBuffer<int> last_x(std::vector<int>{0});
    launch({65537, threads}, count_kernel, blocks.data(), last_x.data(), with_barrier);
    EXPECT_EQ(blocks.to_host()[0], 65537u);
    EXPECT_EQ(last_x.to_host()[0], 65536);
  }
}

__global__ void empty_kernel() {}

TEST(Launch, LimitsAreCheckedAndNameTheLaunch) {
  const int64_t past_int32 = int64_t(1) << 31;
  const std::string file = __FILE__;
  auto error = [&](LaunchConfig config) {
    return message_of<CudaError>([&] { launch(config, empty_kernel); });
  };
  const LaunchConfig config(past_int32, 32);
  const int line = __LINE__ - 1;
  EXPECT_EQ(error(config), file + ":" + std::to_string(line) +
                               ": launch: gridDim.x is 2147483648, must be 1 to 2147483647");
  EXPECT_NE(error({(int64_t(1) << 40) + 1, 32}).find("gridDim.x is 1099511627777"),
            std::string::npos);
  EXPECT_NE(error({{1, 65536}, 32}).find("gridDim.y is 65536, must be 1 to 65535"),
            std::string::npos);
  EXPECT_NE(error({{1, 1, 65536}, 32}).find("gridDim.z"), std::string::npos);
  EXPECT_NE(error({0, 32}).find("gridDim.x is 0"), std::string::npos);
  EXPECT_NE(error({1, 1025}).find("blockDim.x is 1025"), std::string::npos);
  EXPECT_NE(error({1, {32, 33}}).find("threads of a block is 1056, must be 1 to 1024"),
            std::string::npos);
  EXPECT_NE(error({1, {1, 1, 65}}).find("blockDim.z is 65"), std::string::npos);
  EXPECT_NE(error({1, {32, 0}}).find("blockDim.y is 0"), std::string::npos);
  EXPECT_NE(error({1, 32, 227 * 1024 + 1}).find("232449 bytes of shared memory"),
            std::string::npos);
  EXPECT_EQ(error({1, 32, 227 * 1024}), "no error");
  EXPECT_EQ(error({{1, 65535}, 1}), "no error");
}

__global__ void throwing_kernel(int thread) {
  if (int(threadIdx.x) == thread) throw std::runtime_error("thrown in a kernel");
  __syncthreads();
}

TEST_P(InEveryOrder, AnExceptionInAKernelReachesTheCaller) {
  const std::string what = message_of<simt::Error>([] { launch({3, 64}, throwing_kernel, 17); });
  EXPECT_NE(what.find("thread 17: thrown in a kernel"), std::string::npos) << what;
  // The pool is in order afterwards.
  const DeviceBuffer<int> out(5 * 64);
  launch({5, 64, 64 * sizeof(int)}, many_barriers_kernel, out.data(), 3);
  EXPECT_EQ(out.to_host()[0], 3);
}

TEST(Launch, UnknownEnvironmentValuesAreErrors) {
  for (const char* name : {"SIMT_ORDER", "SIMT_SEED", "SIMT_THREADS", "SIMT_CP_ASYNC"}) {
    for (const char* value : {"", "sideways", "-1", "1x"}) {
      setenv(name, value, 1);
      const std::string what = message_of<simt::Error>([] { launch({1, 1}, empty_kernel); });
      EXPECT_NE(what.find(std::string(name) + "="), std::string::npos) << name << " " << what;
    }
    unsetenv(name);
  }
  EXPECT_EQ(message_of<simt::Error>([] { launch({1, 1}, empty_kernel); }), "no error");
}

// Which thread came first after the barrier, a proof that orders are what they claim to be.
__global__ void first_kernel(int* first) {
  __syncthreads();
  atomicCAS(first, -1, int(threadIdx.x));
}

int first_thread() {
  const DeviceBuffer<int> first(std::vector<int>{-1});
  launch({1, 64}, first_kernel, first.data());
  return first.to_host()[0];
}

TEST(Launch, OrdersDiffer) {
  setenv("SIMT_ORDER", "forward", 1);
  EXPECT_EQ(first_thread(), 0);
  setenv("SIMT_ORDER", "reverse", 1);
  EXPECT_EQ(first_thread(), 63);
  setenv("SIMT_ORDER", "random", 1);
  std::vector<int> by_seed;
  for (const char* seed : {"1", "2", "3", "4"}) {
    setenv("SIMT_SEED", seed, 1);
    by_seed.push_back(first_thread());
    EXPECT_EQ(first_thread(), by_seed.back()) << "a seed must give the same order again";
  }
  EXPECT_FALSE(by_seed[0] == by_seed[1] && by_seed[1] == by_seed[2] && by_seed[2] == by_seed[3]);
  unsetenv("SIMT_SEED");
  unsetenv("SIMT_ORDER");
}

TEST(RuntimeApi, MemoryThatIsNotThere) {
  void* pointer = &pointer;
  EXPECT_EQ(cudaMalloc(&pointer, size_t(1) << 60), cudaErrorMemoryAllocation);
  EXPECT_EQ(pointer, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&pointer, 0), cudaSuccess);
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
}

TEST(RuntimeApi, DeviceMemoryIsAligned) {
  for (size_t bytes : {1, 3, 1000}) {
    void* pointer;
    ASSERT_EQ(cudaMalloc(&pointer, bytes), cudaSuccess);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pointer) % 256, 0u);
    EXPECT_EQ(cudaMemset(pointer, 0xab, bytes), cudaSuccess);
    unsigned char last;
    EXPECT_EQ(cudaMemcpy(&last, static_cast<char*>(pointer) + bytes - 1, 1, cudaMemcpyDefault),
              cudaSuccess);
    EXPECT_EQ(last, 0xab);
    EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  }
}

TEST(RuntimeApi, OnlyTheDefaultStream) {
  const auto other = reinterpret_cast<cudaStream_t>(std::uintptr_t(8));
  EXPECT_EQ(cudaStreamSynchronize(other), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  EXPECT_NE(message_of<CudaError>([&] {
              launch({1, 1, 0, other}, empty_kernel);
            }).find("invalid resource handle"),
            std::string::npos);
}

TEST(RuntimeApi, DeviceProperties) {
  cudaDeviceProp properties;
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  EXPECT_STREQ(properties.name, "CPU, emulated");
  EXPECT_GT(properties.totalGlobalMem, 0u);
  int optin;
  ASSERT_EQ(cudaDeviceGetAttribute(&optin, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
            cudaSuccess);
  EXPECT_EQ(optin, 227 * 1024);
  EXPECT_EQ(cudaGetDeviceProperties(&properties, 1), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
}

TEST(RuntimeApi, Events) {
  cudaEvent_t start, stop;
  ASSERT_EQ(cudaEventCreate(&start), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&stop), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(start), cudaSuccess);
  launch({100, 100}, empty_kernel);
  ASSERT_EQ(cudaEventRecord(stop), cudaSuccess);
  float ms = -1;
  ASSERT_EQ(cudaEventElapsedTime(&ms, start, stop), cudaSuccess);
  EXPECT_GT(ms, 0);
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
}

}  // namespace
}  // namespace attn
