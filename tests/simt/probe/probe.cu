// What an access costs: one instruction per pattern of patterns.hpp, for Nsight Compute to count
// (scripts/gpu_session.sh patterns). Nothing here is checked; the counts are the result.
#include <cstdint>
#include <cstdio>

#include "common/device_buffer.hpp"
#include "common/launch.cuh"
#include "tests/simt/probe/patterns.hpp"

namespace attn {
namespace {

using patterns::element;
using patterns::kCount;
using patterns::kElements;

// PTX, so that each pattern is one instruction and they stay in order.
template <int Words>
__device__ __forceinline__ uint32_t load_shared(uint32_t address) {
  uint32_t x, y, z, w;
  if constexpr (Words == 1) {
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  } else if constexpr (Words == 2) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "r"(address) : "memory");
    x ^= y;
  } else {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
                 : "r"(address)
                 : "memory");
    x ^= y ^ z ^ w;
  }
  return x;
}

template <int Words>
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t x) {
  if constexpr (Words == 1) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
  } else if constexpr (Words == 2) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %1};" ::"r"(address), "r"(x) : "memory");
  } else {
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(x) : "memory");
  }
}

template <int Words>
__device__ __forceinline__ uint32_t load_global(const uint32_t* address) {
  uint32_t x, y, z, w;
  if constexpr (Words == 1) {
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(x) : "l"(address) : "memory");
  } else if constexpr (Words == 2) {
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "l"(address) : "memory");
    x ^= y;
  } else {
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
                 : "l"(address)
                 : "memory");
    x ^= y ^ z ^ w;
  }
  return x;
}

template <int Words>
__device__ __forceinline__ void store_global(uint32_t* address, uint32_t x) {
  if constexpr (Words == 1) {
    asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(x) : "memory");
  } else if constexpr (Words == 2) {
    asm volatile("st.global.v2.b32 [%0], {%1, %1};" ::"l"(address), "r"(x) : "memory");
  } else {
    asm volatile("st.global.v4.b32 [%0], {%1, %1, %1, %1};" ::"l"(address), "r"(x) : "memory");
  }
}

template <int Words>
__global__ void shared_load_kernel(uint32_t* out) {
  __shared__ __align__(16) uint32_t words[kElements * Words];
  const uint32_t base = uint32_t(__cvta_generic_to_shared(words));
  uint32_t sum = 0;
#pragma unroll
  for (int p = 0; p < kCount; ++p) {
    const int i = element(p, threadIdx.x);
    if (i >= 0) sum ^= load_shared<Words>(base + i * Words * 4);
  }
  out[threadIdx.x] = sum;
}

template <int Words>
__global__ void shared_store_kernel() {
  __shared__ __align__(16) uint32_t words[kElements * Words];
  const uint32_t base = uint32_t(__cvta_generic_to_shared(words));
#pragma unroll
  for (int p = 0; p < kCount; ++p) {
    const int i = element(p, threadIdx.x);
    if (i >= 0) store_shared<Words>(base + i * Words * 4, p);
  }
}

template <int Words>
__global__ void global_load_kernel(const uint32_t* in, uint32_t* out) {
  uint32_t sum = 0;
#pragma unroll
  for (int p = 0; p < kCount; ++p) {
    const int i = element(p, threadIdx.x);
    if (i >= 0) sum ^= load_global<Words>(in + i * Words);
  }
  out[threadIdx.x] = sum;
}

template <int Words>
__global__ void global_store_kernel(uint32_t* out) {
#pragma unroll
  for (int p = 0; p < kCount; ++p) {
    const int i = element(p, threadIdx.x);
    if (i >= 0) store_global<Words>(out + i * Words, p);
  }
}

__global__ void atomic_kernel(float* out) {
#pragma unroll
  for (int p = 0; p < kCount; ++p) {
    const int i = element(p, threadIdx.x);
    if (i >= 0) asm volatile("red.global.add.f32 [%0], %1;" ::"l"(out + i), "f"(1.0f) : "memory");
  }
}

__global__ void ldmatrix_kernel(uint32_t* out) {
  __shared__ __align__(16) uint32_t words[kElements * 4];
  const uint32_t base = uint32_t(__cvta_generic_to_shared(words));
  uint32_t sum = 0;
#pragma unroll
  for (int p = 0; p < kCount; ++p) {
    const int i = element(p, threadIdx.x);
    uint32_t a, b, c, d;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "r"(base + (i < 0 ? 0 : i) * 16)
                 : "memory");
    sum ^= a ^ b ^ c ^ d;
  }
  out[threadIdx.x] = sum;
}

template <int Words>
void probe(uint32_t* memory) {
  launch({1, 32}, shared_load_kernel<Words>, memory);
  launch({1, 32}, shared_store_kernel<Words>);
  launch({1, 32}, global_load_kernel<Words>, memory, memory + kElements * Words);
  launch({1, 32}, global_store_kernel<Words>, memory);
}

}  // namespace
}  // namespace attn

int main() {
  const attn::DeviceBuffer<uint32_t> memory(attn::kElements * 4 + 32);
  attn::probe<1>(memory.data());
  attn::probe<2>(memory.data());
  attn::probe<4>(memory.data());
  attn::launch({1, 32}, attn::atomic_kernel, reinterpret_cast<float*>(memory.data()));
  attn::launch({1, 32}, attn::ldmatrix_kernel, memory.data());
  attn::cuda_check(cudaDeviceSynchronize());
}
