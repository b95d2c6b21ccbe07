// Shared memory of every kind, vector types and bf16, as kernels use them.
#include "orders.hpp"

#include <cuda_bf16.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/device_buffer.hpp"
#include "common/launch.cuh"
#include "common/shared_storage.cuh"

namespace attn {
namespace {

template <int Size>
struct ReverseStorage {
  float values[Size];
};

// Every block reverses its Size values; a thread handles several.
template <int Size>
__global__ void reverse_kernel(const float* in, float* out) {
  auto& smem = shared_storage<ReverseStorage<Size>>();
  in += int64_t(blockIdx.x) * Size;
  out += int64_t(blockIdx.x) * Size;
  for (int i = threadIdx.x; i < Size; i += blockDim.x) smem.values[i] = in[i];
  __syncthreads();  // all values are there
  for (int i = threadIdx.x; i < Size; i += blockDim.x) out[i] = smem.values[Size - 1 - i];
}

template <int Size>
void check_reverse() {
  constexpr int blocks = 3;
  std::vector<float> in(blocks * Size);
  for (size_t i = 0; i < in.size(); ++i) in[i] = float(i);
  const DeviceBuffer<float> input(in), out(in.size());
  launch({blocks, 100, dynamic_shared_bytes<ReverseStorage<Size>>()}, reverse_kernel<Size>,
         input.data(), out.data());
  const std::vector<float> got = out.to_host();
  for (int b = 0; b < blocks; ++b) {
    for (int i = 0; i < Size; ++i) ASSERT_EQ(got[b * Size + i], in[b * Size + Size - 1 - i]);
  }
}

TEST_P(InEveryOrder, StaticSharedMemory) {
  static_assert(dynamic_shared_bytes<ReverseStorage<12288>>() == 0);
  check_reverse<1>();
  check_reverse<333>();
  check_reverse<12288>();  // 48 KiB, the most that is static
}

TEST_P(InEveryOrder, DynamicSharedMemoryAbove48KiB) {
  static_assert(dynamic_shared_bytes<ReverseStorage<12289>>() == 12289 * sizeof(float));
  check_reverse<12289>();
  check_reverse<24000>();  // 94 KiB: every GPU since 8.0 has 99
}

__global__ void run_time_size_kernel(int* out) {
  int* smem = dynamic_shared<int>();
  smem[threadIdx.x] = threadIdx.x;
  __syncthreads();  // all values are there
  out[threadIdx.x] = smem[blockDim.x - 1 - threadIdx.x];
}

TEST_P(InEveryOrder, SizeKnownAtRunTime) {
  for (int threads : {1, 33, 500}) {
    const DeviceBuffer<int> out(threads);
    launch({1, threads, threads * sizeof(int)}, run_time_size_kernel, out.data());
    const std::vector<int> got = out.to_host();
    for (int i = 0; i < threads; ++i) EXPECT_EQ(got[i], threads - 1 - i);
  }
}

// Rows of bf16, moved as uint4 and summed in float.
__global__ void bf16_kernel(const __nv_bfloat16* in, float* sums, __nv_bfloat16* halves) {
  const int i = threadIdx.x;
  __nv_bfloat16 row[8];
  *reinterpret_cast<uint4*>(row) = reinterpret_cast<const uint4*>(in)[i];
  float sum = 0;
  for (int j = 0; j < 8; ++j) sum += __bfloat162float(row[j]);
  sums[i] = sum;
  const float2 pair = __bfloat1622float2(__floats2bfloat162_rn(sum / 2, -sum / 2));
  halves[2 * i] = __float2bfloat16(pair.x);
  halves[2 * i + 1] = __float2bfloat16(pair.y);
}

TEST_P(InEveryOrder, Bf16RowsAsVectors) {
  std::vector<__nv_bfloat16> in;
  for (int i = 0; i < 64 * 8; ++i) in.push_back(__float2bfloat16(float(i % 37) - 18));
  const DeviceBuffer<__nv_bfloat16> input(in), halves(128);
  const DeviceBuffer<float> sums(64);
  launch({1, 64}, bf16_kernel, input.data(), sums.data(), halves.data());
  const std::vector<float> got = sums.to_host();
  const std::vector<__nv_bfloat16> got_halves = halves.to_host();
  for (int i = 0; i < 64; ++i) {
    float expected = 0;
    for (int j = 0; j < 8; ++j) expected += float((i * 8 + j) % 37) - 18;
    EXPECT_EQ(got[i], expected);
    EXPECT_EQ(__bfloat162float(got_halves[2 * i]), expected / 2);
    EXPECT_EQ(__bfloat162float(got_halves[2 * i + 1]), -expected / 2);
  }
}

__global__ void round_kernel(const float* in, __nv_bfloat16* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __float2bfloat16(in[i]);
}

// The nearest bf16 by trying both neighbours; of two equally near, the one with an even last bit.
unsigned short nearest_bf16(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (std::isnan(x)) return 0x7fff;
  const unsigned lower = bits >> 16;  // towards zero
  if ((bits & 0xffff) == 0) return (unsigned short)lower;
  const unsigned dropped = bits & 0xffff;
  const bool up = dropped > 0x8000 || (dropped == 0x8000 && (lower & 1));
  return (unsigned short)(lower + up);
}

TEST_P(InEveryOrder, Bf16RoundsToNearestEven) {
  std::vector<float> in = {0.0f,
                           -0.0f,
                           1.0f,
                           std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN(),
                           std::numeric_limits<float>::max(),  // becomes infinite
                           std::numeric_limits<float>::denorm_min()};
  for (unsigned high : {0x3f80u, 0x3f81u, 0xbf80u, 0xc2ffu, 0x0001u, 0x7f7eu}) {
    for (unsigned low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const unsigned bits = high << 16 | low;
      float x;
      std::memcpy(&x, &bits, sizeof x);
      in.push_back(x);
    }
  }
  const int n = int(in.size());
  const DeviceBuffer<float> input(in);
  const DeviceBuffer<__nv_bfloat16> out(n);
  launch({1, 64}, round_kernel, input.data(), out.data(), n);
  const std::vector<__nv_bfloat16> got = out.to_host();
  for (int i = 0; i < n; ++i) {
    EXPECT_EQ(__bfloat16_as_ushort(got[i]), nearest_bf16(in[i])) << in[i];
    EXPECT_EQ(__bfloat16_as_ushort(__float2bfloat16(in[i])), nearest_bf16(in[i])) << in[i];
  }
}

__global__ void float4_kernel(const float* in, float* out, float scale) {
  const int i = threadIdx.x;
  float4 v = reinterpret_cast<const float4*>(in)[i];
  v = make_float4(v.w * scale, v.z * scale, v.y * scale, v.x * scale);
  reinterpret_cast<float4*>(out)[i] = v;
}

TEST_P(InEveryOrder, Float4) {
  std::vector<float> in(4 * 32);
  for (size_t i = 0; i < in.size(); ++i) in[i] = float(i);
  const DeviceBuffer<float> input(in), out(in.size());
  launch({1, 32}, float4_kernel, input.data(), out.data(), 2.0f);
  const std::vector<float> got = out.to_host();
  for (int i = 0; i < 128; ++i) EXPECT_EQ(got[i], 2 * in[i / 4 * 4 + 3 - i % 4]);
}

}  // namespace
}  // namespace attn
