// Kernels that break a rule of CUDA: each must be caught, with its place in the source.
//
// What only a sanitizer sees is in broken_kernels.cpp.
#include "orders.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/device_buffer.hpp"
#include "common/launch.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/ptx/named_barrier.cuh"
#include "common/shared_storage.cuh"

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#endif
#endif

namespace attn {
namespace {

struct Storage {
  float values[128];
};

__global__ void healthy_kernel(float* out) {
  auto& smem = shared_storage<Storage>();
  const int i = threadIdx.x, n = blockDim.x;
  smem.values[i] = float(i);
  __syncthreads();
  out[blockIdx.x * n + i] = smem.values[n - 1 - i] + __shfl_xor_sync(0xffffffffu, float(i), 1);
}

// After an error the emulator must run the next kernel as if nothing had been.
void expect_healthy() {
  const DeviceBuffer<float> out(4 * 128);
  launch({4, 128}, healthy_kernel, out.data());
  const std::vector<float> got = out.to_host();
  for (int n = 0; n < 4 * 128; ++n) ASSERT_EQ(got[n], float(127 - n % 128 + (n % 128 ^ 1)));
}

// The error of launching `kernel` with one block; it must contain all of `parts`.
template <class... P, class... A>
void expect_error(const std::vector<std::string>& parts, LaunchConfig config, void (*kernel)(P...),
                  A... arguments) {
  std::string what = "no error";
  try {
    launch(config, kernel, arguments...);
  } catch (const simt::Error& error) {
    what = error.what();
  }
  for (const std::string& part : parts) {
    EXPECT_NE(what.find(part), std::string::npos) << "'" << part << "' is not in: " << what;
  }
  expect_healthy();
}

std::string at_line(int line) { return std::string(__FILE__) + ":" + std::to_string(line) + ":"; }

constexpr int kDivergentLine = __LINE__ + 3;
__global__ void divergent_kernel() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_P(InEveryOrder, DivergentBarrier) {
  const std::string file = __FILE__;
  const LaunchConfig config(1, 64);
  const int launch_line = __LINE__ - 1;
  expect_error(
      {"divergent barrier",
       "[block (0, 0, 0), launched at " + file + ":" + std::to_string(launch_line) + "]",
       "threads 0-31 wait in __syncthreads at " + file + ":" + std::to_string(kDivergentLine),
       "threads 32-63 wait in __syncthreads at " + file + ":" + std::to_string(kDivergentLine + 2)},
      config, divergent_kernel);
}

constexpr int kExitLine = __LINE__ + 3;
__global__ void exit_kernel(int stays) {
  if (int(threadIdx.x) >= stays || blockIdx.x != 2) return;
  __syncthreads();
}

TEST_P(InEveryOrder, BarrierThatExitedThreadsNeverReach) {
  expect_error(
      {at_line(kExitLine), "barrier that not all threads reach", "threads 40-63 have exited",
       "threads 0-39 wait in __syncthreads", "block (2, 0, 0)"},
      {3, 64}, exit_kernel, 40);
  expect_error({at_line(kExitLine), "threads 1-63 have exited", "thread 0 waits"}, {3, 64},
               exit_kernel, 1);
}

constexpr int kMissingLaneLine = __LINE__ + 3;
__global__ void missing_lane_kernel(float* out) {
  if (threadIdx.x == 37) return;
  out[threadIdx.x] = __shfl_down_sync(0xffffffffu, 1.0f, 1);
}

TEST_P(InEveryOrder, MissingLaneOfAShuffle) {
  const DeviceBuffer<float> out(64);
  expect_error({at_line(kMissingLaneLine), "__shfl_down_sync", "lane 5 of warp 1", "0xffffffff",
                "threads 0-31, 37 have exited"},
               {1, 64}, missing_lane_kernel, out.data());
}

constexpr int kOwnLaneLine = __LINE__ + 2;
__global__ void own_lane_kernel(int* out) {
  const int any = __any_sync(0xffff7fffu, 1);
  out[threadIdx.x] = any;
}

TEST_P(InEveryOrder, MaskWithoutTheCallingLane) {
  const DeviceBuffer<int> out(32);
  expect_error({at_line(kOwnLaneLine), "__any_sync", "lane 15 of warp 0", "is not in the mask"},
               {1, 32}, own_lane_kernel, out.data());
}

constexpr int kSourceLine = __LINE__ + 3;
__global__ void source_kernel(int* out) {
  if (threadIdx.x >= 8) return;
  out[threadIdx.x] = __shfl_sync(0xffu, int(threadIdx.x), 9);
}

TEST_P(InEveryOrder, ShuffleFromALaneOutsideOfTheMask) {
  const DeviceBuffer<int> out(32);
  expect_error({at_line(kSourceLine), "reads from lane 9, which is not in the mask"}, {1, 32},
               source_kernel, out.data());
}

__global__ void ragged_kernel(int* out) {
  out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, int(threadIdx.x), 8);
}

TEST_P(InEveryOrder, ShuffleFromALaneThatTheLastWarpLacks) {
  const DeviceBuffer<int> out(40);
  expect_error({"lane 0 reads from lane 8, which is not in the mask"}, {1, 40}, ragged_kernel,
               out.data());
}

constexpr int kTwoCollectivesLine = __LINE__ + 4;
__global__ void two_collectives_kernel(int* out) {
  int x;
  if (threadIdx.x < 16) {
    x = __shfl_xor_sync(0xffffffffu, 1, 1);
  } else {
    x = int(__ballot_sync(0xffffffffu, 1));
  }
  out[threadIdx.x] = x;
}

TEST_P(InEveryOrder, DifferentCollectivesForOneMask) {
  const DeviceBuffer<int> out(32);
  const std::string file = __FILE__;
  expect_error({"threads 0-15 wait in __shfl_xor_sync at " + file + ":" +
                    std::to_string(kTwoCollectivesLine),
                "threads 16-31 wait in __ballot_sync at " + file + ":" +
                    std::to_string(kTwoCollectivesLine + 2)},
               {1, 32}, two_collectives_kernel, out.data());
}

__global__ void width_kernel(int* out) { out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0, 12); }

TEST_P(InEveryOrder, ShuffleWidthThatIsNoPowerOfTwo) {
  const DeviceBuffer<int> out(32);
  expect_error({"width 12"}, {1, 32}, width_kernel, out.data());
}

// A warp waits for a lane that waits at the block's barrier.
__global__ void circle_kernel(int* out) {
  if (threadIdx.x == 3) __syncthreads();
  __syncwarp();
  if (threadIdx.x != 3) __syncthreads();
  out[threadIdx.x] = 1;
}

TEST_P(InEveryOrder, Deadlock) {
  const DeviceBuffer<int> out(64);
  expect_error({"__syncwarp waits for ever: lane 3 of warp 0", "thread 3 waits in __syncthreads"},
               {1, 64}, circle_kernel, out.data());
}

constexpr int kNamedLine = __LINE__ + 2;
__global__ void named_barrier_kernel(int barrier, int threads) {
  named_barrier_sync(barrier, threads);
}

TEST_P(InEveryOrder, NamedBarrierThatDoesNotExist) {
  for (int barrier : {-1, 0, 16}) {
    expect_error({at_line(kNamedLine), "named_barrier_sync: barrier " + std::to_string(barrier) +
                                           " for 64 threads; barriers are 1 to 15"},
                 {1, 64}, named_barrier_kernel, barrier, 64);
  }
}

TEST_P(InEveryOrder, NamedBarrierForANumberOfThreadsThatCannotArrive) {
  for (int threads : {-32, 0, 1, 48}) {
    expect_error({at_line(kNamedLine), "barrier 1 for " + std::to_string(threads) +
                                           " threads, which must be a multiple of 32"},
                 {1, 64}, named_barrier_kernel, 1, threads);
  }
  expect_error({"barrier 15 for 96 threads, the block has 64"}, {1, 64}, named_barrier_kernel, 15,
               96);
}

constexpr int kTwoCountsLine = __LINE__ + 3;
__global__ void two_counts_kernel() {
  if (threadIdx.x < 32) {
    named_barrier_sync(1, 64);
  } else {
    named_barrier_arrive(1, 96);
  }
}

TEST_P(InEveryOrder, NamedBarrierForDifferentNumbersOfThreads) {
  const std::string file = __FILE__;
  expect_error({"barrier 1 for ", ", but for ", file + ":" + std::to_string(kTwoCountsLine),
                file + ":" + std::to_string(kTwoCountsLine + 2)},
               {1, 96}, two_counts_kernel);
}

__global__ void two_names_kernel() { named_barrier_sync(1 + threadIdx.x % 2, 32); }

TEST_P(InEveryOrder, LanesOfAWarpAtDifferentNamedBarriers) {
  expect_error({"named_barrier_sync: barrier ", "other lanes of the warp disagree"}, {1, 32},
               two_names_kernel);
}

constexpr int kMissingAtNamedLine = __LINE__ + 3;
__global__ void missing_at_named_barrier_kernel() {
  if (threadIdx.x == 37) return;
  named_barrier_arrive(1, 64);
}

TEST_P(InEveryOrder, MissingLaneAtANamedBarrier) {
  expect_error({at_line(kMissingAtNamedLine), "named_barrier_arrive waits for ever",
                "lane 5 of warp 1", "threads 0-31, 37 have exited"},
               {1, 64}, missing_at_named_barrier_kernel);
}

constexpr int kStarvedLine = __LINE__ + 4;
__global__ void starved_kernel() {
  const int warp = threadIdx.x / 32;
  if (warp == 0 || warp == 2) {
    named_barrier_sync(7, 128);
  } else if (warp == 1) {
    named_barrier_arrive(7, 128);
  } else {
    __syncthreads();
  }
}

TEST_P(InEveryOrder, NamedBarrierThatTooFewReach) {
  const std::string file = __FILE__;
  expect_error(
      {at_line(kStarvedLine), "named_barrier_sync waits for ever",
       "threads 0-31, 64-95 wait in named_barrier_sync at " + file + ":" +
           std::to_string(kStarvedLine) + " for barrier 7, where 96 of 128 threads have arrived",
       "threads 32-63 have exited",
       "threads 96-127 wait in __syncthreads at " + file + ":" + std::to_string(kStarvedLine + 4)},
      {1, 128}, starved_kernel);
}

#ifndef WITH_ASAN  // which stops at the write itself: broken_kernels.cpp
struct SmallStorage {
  float values[64];
};
constexpr int kOverrunLine = __LINE__ + 5;
__global__ void overrun_kernel(float* out, int offset) {
  auto& smem = shared_storage<SmallStorage>();
  out[threadIdx.x] = float(threadIdx.x);
  if (threadIdx.x == 7) smem.values[offset] = 1.0f;
  __syncthreads();
  out[threadIdx.x] += 1.0f;
}

TEST_P(InEveryOrder, WriteBesideSharedMemory) {
  const DeviceBuffer<float> out(64);
  for (int offset : {64, 70, -1, -20}) {
    expect_error({at_line(kOverrunLine), "out of bounds", "256 bytes of static shared memory"},
                 {1, 64}, overrun_kernel, out.data(), offset);
  }
}

constexpr int kOverrunAtNamedLine = __LINE__ + 4;
__global__ void overrun_at_named_barrier_kernel(int offset) {
  auto& smem = shared_storage<SmallStorage>();
  if (threadIdx.x == 7) smem.values[offset] = 1.0f;
  named_barrier_sync(1, 64);
}

TEST_P(InEveryOrder, WriteBesideSharedMemoryBeforeANamedBarrier) {
  expect_error({at_line(kOverrunAtNamedLine), "out of bounds"}, {1, 64},
               overrun_at_named_barrier_kernel, 64);
}

// No barrier follows: found when the block ends.
__global__ void late_overrun_kernel() { dynamic_shared<char>()[1000] = 1; }

TEST_P(InEveryOrder, WriteBesideDynamicSharedMemory) {
  expect_error({"out of bounds", "1000 bytes of dynamic shared memory"}, {1, 1, 1000},
               late_overrun_kernel);
}
#endif

template <int Bytes>
struct Sized {
  char bytes[Bytes];
};
template <int Bytes>
__global__ void sized_kernel() {
  shared_storage<Sized<Bytes>>().bytes[0] = 1;
}

TEST_P(InEveryOrder, SharedMemoryThatTheLaunchDidNotAskFor) {
  expect_error({"uses 60000 bytes of dynamic shared memory, the launch asked for 0"}, {1, 1},
               sized_kernel<60000>);
  expect_error({"too much shared memory: 40000 bytes static and 200000 dynamic"}, {1, 1, 200000},
               sized_kernel<40000>);
}

__global__ void two_types_kernel() {
  shared_storage<Sized<16>>().bytes[0] = 1;
  shared_storage<Sized<32>>().bytes[0] = 1;
}

TEST_P(InEveryOrder, TwoStructsOfSharedMemory) {
  expect_error({"shared_storage of two types"}, {1, 1}, two_types_kernel);
}

__global__ void uninitialised_kernel(float* out) {
  auto& smem = shared_storage<Storage>();
  if (threadIdx.x != 9) smem.values[threadIdx.x] = 1.0f;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < 128; ++i) sum += smem.values[i];
  out[blockIdx.x * 128 + threadIdx.x] = sum;
}

TEST_P(InEveryOrder, UninitialisedSharedMemoryIsNaN) {
  const DeviceBuffer<float> out(3 * 128);
  // The healthy kernel leaves numbers behind; they must not be found.
  expect_healthy();
  launch({3, 128}, uninitialised_kernel, out.data());
  for (float x : out.to_host()) EXPECT_TRUE(std::isnan(x));
}

__global__ void misplaced_copy_kernel(const float* in, float* out, int shift) {
  auto& smem = shared_storage<Storage>();
  cp_async<16>(&smem.values[shift], in);
  out[0] = 0;
}
__global__ void copy_to_global_kernel(const float* in, float* out) { cp_async<16>(out, in); }
__global__ void misplaced_row_kernel(uint32_t* out) {
  auto& smem = shared_storage<Storage>();
  uint32_t registers[1];
  ldmatrix(registers, &smem.values[threadIdx.x * 4 + 1]);
  out[threadIdx.x] = registers[0];
}
__global__ void half_warp_mma_kernel(float* out) {
  float d[4] = {0, 0, 0, 0};
  uint32_t a[4] = {0, 0, 0, 0}, b[2] = {0, 0};
  mma_m16n8k16(d, a, b, d);
  out[threadIdx.x] = d[0];
}

TEST_P(InEveryOrder, AddressesAndLanesOfPtxInstructions) {
  const DeviceBuffer<float> in(std::vector<float>(128, 1.0f)), out(128);
  const DeviceBuffer<uint32_t> registers(32);
  expect_error({"cp.async: the address in shared memory is not aligned to 16 bytes"}, {1, 1},
               misplaced_copy_kernel, in.data(), out.data(), 1);
  expect_error({"cp.async: the address in global memory is not aligned to 16 bytes"}, {1, 1},
               misplaced_copy_kernel, in.data() + 1, out.data(), 0);
  expect_error({"cp.async: the address is not in the block's shared memory"}, {1, 1},
               copy_to_global_kernel, in.data(), out.data());
  expect_error({"ldmatrix: the address in shared memory is not aligned"}, {1, 32},
               misplaced_row_kernel, registers.data());
  expect_error({"mma.m16n8k16 needs all 32 lanes"}, {1, 16}, half_warp_mma_kernel, out.data());
}

#ifndef WITH_TSAN  // which reports the races themselves: broken_kernels.cpp

// Thread i reads what thread i + 1 wrote and then overwrites it: both barriers are needed.
__global__ void missing_barrier_kernel(float* out) {
  auto& smem = shared_storage<Storage>();
  const int i = threadIdx.x, n = blockDim.x;
  smem.values[i] = float(i);
  const float right = smem.values[(i + 1) % n];  // a __syncthreads is missing before this line
  const float left = smem.values[(i + n - 1) % n];
  out[i] = left + right;
}

TEST_P(InEveryOrder, MissingBarrierGivesAWrongResult) {
  const DeviceBuffer<float> out(128);
  launch({1, 128}, missing_barrier_kernel, out.data());
  const std::vector<float> got = out.to_host();
  bool right = true;
  for (int i = 0; i < 128; ++i) right &= got[i] == float((i + 1) % 128 + (i + 127) % 128);
  EXPECT_FALSE(right);
}

// Two roles exchange their values: whichever comes first must wait.
__global__ void exchange_kernel(float* out, bool wait) {
  auto& smem = shared_storage<Storage>();
  const int i = threadIdx.x;
  smem.values[i] = float(i);
  if (i < 64) {
    if (wait) named_barrier_sync(1, 128);
    out[i] = smem.values[i + 64];
  } else {
    if (wait) named_barrier_sync(1, 128);
    out[i] = smem.values[i - 64];
  }
}

TEST_P(InEveryOrder, MissingNamedBarrierGivesAWrongResult) {
  const DeviceBuffer<float> out(128);
  for (bool wait : {true, false}) {
    launch({1, 128}, exchange_kernel, out.data(), wait);
    const std::vector<float> got = out.to_host();
    bool right = true;
    for (int i = 0; i < 128; ++i) right &= got[i] == float((i + 64) % 128);
    EXPECT_EQ(right, wait);
  }
}

__global__ void missing_syncwarp_kernel(float* out) {
  auto& smem = shared_storage<Storage>();
  const int i = threadIdx.x;
  smem.values[i] = float(i);
  out[i] = smem.values[i ^ 1];  // a __syncwarp is missing before this line
}

TEST_P(InEveryOrder, MissingSyncwarpGivesAWrongResult) {
  const DeviceBuffer<float> out(32);
  launch({1, 32}, missing_syncwarp_kernel, out.data());
  const std::vector<float> got = out.to_host();
  bool right = true;
  for (int i = 0; i < 32; ++i) right &= got[i] == float(i ^ 1);
  EXPECT_FALSE(right);
}

__global__ void copy_without_wait_kernel(const float* in, float* out, bool wait) {
  auto& smem = shared_storage<Storage>();
  cp_async<4>(&smem.values[threadIdx.x], in + threadIdx.x);
  cp_async_commit();
  if (wait) cp_async_wait<0>();
  __syncthreads();
  out[threadIdx.x] = smem.values[127 - threadIdx.x];
}

TEST_P(InEveryOrder, CopyWithoutWaitIsSeenWhenCopiesAreLate) {
  const DeviceBuffer<float> in(std::vector<float>(128, 1.0f)), out(128);
  launch({1, 128}, copy_without_wait_kernel, in.data(), out.data(), true);
  for (float x : out.to_host()) EXPECT_EQ(x, 1.0f);
  launch({1, 128}, copy_without_wait_kernel, in.data(), out.data(), false);
  for (float x : out.to_host()) EXPECT_TRUE(std::isnan(x));
  setenv("SIMT_CP_ASYNC", "early", 1);
  launch({1, 128}, copy_without_wait_kernel, in.data(), out.data(), false);
  for (float x : out.to_host()) EXPECT_EQ(x, 1.0f);
  unsetenv("SIMT_CP_ASYNC");
}
#endif

}  // namespace
}  // namespace attn
