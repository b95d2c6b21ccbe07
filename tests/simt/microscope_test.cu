// The microscope as a whole, on kernels whose counts can be told by hand.
#include <gtest/gtest.h>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <functional>
#include <string>
#include <vector>

#include "common/device_buffer.hpp"
#include "common/launch.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "common/ptx/named_barrier.cuh"
#include "common/shared_storage.cuh"
#include "common/simt/microscope/launches.hpp"
#include "common/simt/microscope/report.hpp"

namespace attn {
namespace {

using namespace simt::microscope;

LaunchReport counted(const std::function<void()>& run) {
  start_counting();
  run();
  const auto reports = report(stop_counting());
  EXPECT_EQ(reports.size(), 1u);
  return reports.at(0);
}

void expect_global(const Work::Global& found, uint64_t requests, uint64_t sectors, uint64_t asked) {
  EXPECT_EQ(found.requests, requests);
  EXPECT_EQ(found.sectors, sectors);
  EXPECT_EQ(found.asked, asked);
}

void expect_shared(const Work::Shared& found, uint64_t requests, uint64_t wavefronts,
                   uint64_t ideal) {
  EXPECT_EQ(found.requests, requests);
  EXPECT_EQ(found.wavefronts, wavefronts);
  EXPECT_EQ(found.ideal, ideal);
}

template <class T>
__global__ void copy_kernel(const T* in, T* out, int n, int stride) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i * stride];
}

TEST(Microscope, CoalescedCopy) {
  const DeviceBuffer<float> in(1000), out(1000);
  const auto found = counted([&] {
    launch({8, 128}, copy_kernel<float>, in.data(), out.data(), 1000, 1);
  });
  EXPECT_EQ(found.kernel, "copy_kernel");
  EXPECT_EQ(found.grid.x, 8u);
  expect_global(found.work.loads, 32, 125, 4000);  // the last warp has 8 lanes
  expect_global(found.work.stores, 32, 125, 4000);
  EXPECT_EQ(found.read_bytes, 4000u);
  EXPECT_EQ(found.written_bytes, 4000u);
  ASSERT_EQ(found.lines.size(), 2u);  // a load and a store, on one line
  EXPECT_NE(found.lines[0].file.find("tests/simt/microscope_test.cu"), std::string::npos);
  EXPECT_EQ(found.lines[0].line, found.lines[1].line);
}

TEST(Microscope, StridedCopy) {
  const DeviceBuffer<float> in(64 * 256), out(256);
  const auto found = counted([&] {
    launch({2, 128}, copy_kernel<float>, in.data(), out.data(), 256, 64);
  });
  expect_global(found.work.loads, 8, 256, 1024);
  expect_global(found.work.stores, 8, 32, 1024);
}

TEST(Microscope, WideAccessesAreOne) {
  const DeviceBuffer<float> in(1024), out(1024);
  const auto found = counted([&] {
    launch({1, 128}, copy_kernel<float4>, reinterpret_cast<const float4*>(in.data()),
           reinterpret_cast<float4*>(out.data()), 128, 1);
  });
  expect_global(found.work.loads, 4, 64, 2048);
  expect_global(found.work.stores, 4, 64, 2048);
  EXPECT_EQ(found.lines.at(0).count.bytes, 16);
}

TEST(Microscope, HalfPrecisionPairsAreOne) {
  const DeviceBuffer<__nv_bfloat16> in(256), out(256);
  const auto found = counted([&] {
    launch({1, 128}, copy_kernel<__nv_bfloat162>,
           reinterpret_cast<const __nv_bfloat162*>(in.data()),
           reinterpret_cast<__nv_bfloat162*>(out.data()), 128, 1);
  });
  expect_global(found.work.loads, 4, 16, 512);
}

__global__ void reread_kernel(const float* in, float* out) {
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += in[i];  // each lane the same
  out[threadIdx.x] = sum;
}

TEST(Microscope, RereadBytesCountOnce) {
  const DeviceBuffer<float> in(std::vector<float>(8, 1.0f)), out(64);
  const auto found = counted([&] { launch({1, 64}, reread_kernel, in.data(), out.data()); });
  expect_global(found.work.loads, 16, 16, 64);
  EXPECT_EQ(found.read_bytes, 32u);
}

struct Tile {
  float x[32][33];
  float y[32][32];
};

__global__ void transpose_kernel(float* out, bool padded) {
  auto& smem = shared_storage<Tile>();
  const int i = threadIdx.x % 32, j = threadIdx.x / 32;
  smem.x[j][i] = smem.y[j][i] = float(threadIdx.x);
  __syncthreads();  // the tile is written
  out[threadIdx.x] = padded ? smem.x[i][j] : smem.y[i][j];
}

TEST(Microscope, BankConflicts) {
  const DeviceBuffer<float> out(1024);
  const auto padded = counted([&] { launch({1, 1024}, transpose_kernel, out.data(), true); });
  expect_shared(padded.work.shared_stores, 64, 64, 64);
  expect_shared(padded.work.shared_loads, 32, 32, 32);
  EXPECT_EQ(padded.work.barriers, 32u);  // a warp each
  EXPECT_EQ(padded.shared_bytes, sizeof(Tile));
  const auto conflicts = counted([&] { launch({1, 1024}, transpose_kernel, out.data(), false); });
  expect_shared(conflicts.work.shared_loads, 32, 32 * 32, 32);
}

// A triangle: in turn t lanes up to t take part. Grouped by how often a lane has come, there would
// be no more than 32 instructions, too; but with the wrong lanes, of other rows.
__global__ void triangle_kernel(const float* in, float* out) {
  float sum = 0;
  for (int t = 0; t < 32; ++t) {
    if (t < int(threadIdx.x)) continue;
    sum += in[t * 32 + threadIdx.x];
  }
  out[threadIdx.x] = sum;
}

TEST(Microscope, LanesThatSkipTurns) {
  const DeviceBuffer<float> in(std::vector<float>(1024, 1.0f)), out(32);
  const auto found = counted([&] { launch({1, 32}, triangle_kernel, in.data(), out.data()); });
  // Turn t reads t + 1 floats from the beginning of a row of 4 sectors.
  uint64_t sectors = 0;
  for (int t = 0; t < 32; ++t) sectors += t / 8 + 1;
  expect_global(found.work.loads, 32, sectors, 4 * 32 * 33 / 2);
  expect_global(found.work.stores, 1, 4, 128);
}

// More events than a lane's record holds, so that lanes must give way to one another.
__global__ void long_kernel(const float* in, float* out, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += in[i * 32 + threadIdx.x % 32];
  out[threadIdx.x] = sum;
}

TEST(Microscope, LongRecords) {
  const int n = 5000;
  const DeviceBuffer<float> in(std::vector<float>(32 * n, 1.0f)), out(64);
  const auto found = counted([&] { launch({1, 64}, long_kernel, in.data(), out.data(), n); });
  expect_global(found.work.loads, 2 * n, 8 * n, 256 * uint64_t(n));
  EXPECT_EQ(out.to_host()[63], float(n));
}

__global__ void atomic_kernel(float* sums, int* counts) {
  atomicAdd(&sums[threadIdx.x / 4], 1.0f);
  if (threadIdx.x == 0) atomicAdd(counts, 1);
}

TEST(Microscope, Atomics) {
  const DeviceBuffer<float> sums(std::vector<float>(16, 0.0f));
  const DeviceBuffer<int> counts(std::vector<int>(1, 0));
  const auto found = counted([&] { launch({3, 64}, atomic_kernel, sums.data(), counts.data()); });
  EXPECT_EQ(found.work.atomics.requests, 3 * 2 + 3u);
  EXPECT_EQ(found.work.atomics.sectors, 3 * 2 * 4 + 3u);  // four lanes queue for each word
  EXPECT_EQ(found.work.atomic_lanes, 3 * 64 + 3u);
  EXPECT_EQ(found.work.contention, 4);
  EXPECT_EQ(found.most_atomics, 12u);
  EXPECT_EQ(found.work.loads.requests, 0u);
  EXPECT_EQ(sums.to_host()[0], 12.0f);
}

struct Buffer {
  alignas(16) float x[128];
};

__global__ void cp_async_kernel(const float* in, float* out, int n) {
  auto& smem = shared_storage<Buffer>();
  const int i = threadIdx.x * 4;
  cp_async<16>(&smem.x[i], in + i, i < n);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();  // the copies of all
  out[threadIdx.x] = smem.x[threadIdx.x * 4];
}

TEST(Microscope, AsynchronousCopies) {
  const DeviceBuffer<float> in(std::vector<float>(128, 1.0f)), out(32);
  const auto whole = counted([&] { launch({1, 32}, cp_async_kernel, in.data(), out.data(), 128); });
  expect_global(whole.work.loads, 1, 16, 512);
  expect_shared(whole.work.shared_copies, 1, 4, 4);
  expect_shared(whole.work.shared_stores, 0, 0, 0);
  const auto half = counted([&] { launch({1, 32}, cp_async_kernel, in.data(), out.data(), 64); });
  expect_global(half.work.loads, 1, 8, 256);
  expect_shared(half.work.shared_copies, 1, 2 + 4, 2 + 4);
  const auto none = counted([&] { launch({1, 32}, cp_async_kernel, in.data(), out.data(), 0); });
  expect_global(none.work.loads, 0, 0, 0);
}

struct Matrices {
  alignas(16) __nv_bfloat16 a[16][16], b[16][8];
};

__global__ void warp_kernel(float* out) {
  auto& smem = shared_storage<Matrices>();
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) smem.a[i / 16][i % 16] = 1.0f;
  for (int i = lane; i < 128; i += 32) smem.b[i / 8][i % 8] = 1.0f;
  __syncwarp();  // both are written
  uint32_t a[4], b[2];
  ldmatrix(a, &smem.a[lane % 16][lane / 16 * 8]);
  ldmatrix_trans(b, &smem.b[lane % 16][0]);
  float d[4] = {};
  mma_m16n8k16(d, a, b, d);
  const float sum = __shfl_xor_sync(0xffffffffu, d[0], 1);
  named_barrier_sync(1, 32);
  out[lane] = __any_sync(0xffffffffu, sum > 0) ? sum : 0;
}

TEST(Microscope, OperationsOfAWarp) {
  const DeviceBuffer<float> out(32);
  const auto found = counted([&] { launch({1, 32}, warp_kernel, out.data()); });
  EXPECT_EQ(out.to_host()[0], 16.0f);
  EXPECT_EQ(found.work.syncwarps, 1u);
  EXPECT_EQ(found.work.products, 1u);
  EXPECT_EQ(found.work.flops, 4096);
  EXPECT_EQ(found.work.shuffles, 1u);
  EXPECT_EQ(found.work.votes, 1u);
  EXPECT_EQ(found.work.barriers, 1u);
  // Eight rows of A lie 32 bytes apart: two of them meet in a bank.
  expect_shared(found.work.shared_loads, 2, 8 + 2, 4 + 2);
}

TEST(Microscope, CountsOnlyWhenAsked) {
  const DeviceBuffer<float> in(128), out(128);
  launch({1, 128}, copy_kernel<float>, in.data(), out.data(), 128, 1);
  start_counting();
  EXPECT_TRUE(stop_counting().empty());
}

}  // namespace
}  // namespace attn
