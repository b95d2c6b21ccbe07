// Kernels whose fault only a sanitizer can name: `broken_kernels NAME` runs one of them, and
// expect_report.cmake checks that the report names the line marked FAULT(NAME).
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/device_buffer.hpp"
#include "common/launch.cuh"
#include "common/ptx/named_barrier.cuh"
#include "common/shared_storage.cuh"

namespace attn {
namespace {

struct Storage {
  float values[128];
};

// --- AddressSanitizer and UBSan ---

__global__ void shared_write_kernel(float* out) {
  auto& smem = shared_storage<Storage>();
  const int i = threadIdx.x;
  *(&smem.values[0] + i + 1) = float(i);  // FAULT(shared_write): thread 127 writes behind the end
  __syncthreads();
  out[i] = smem.values[i];
}

__global__ void shared_read_kernel(float* out) {
  auto& smem = shared_storage<Storage>();
  const int i = threadIdx.x;
  smem.values[i] = float(i);
  __syncthreads();
  out[i] = *(&smem.values[0] + i - 1);  // FAULT(shared_read): thread 0 reads before the start
}

__global__ void global_write_kernel(float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) out[i] = float(i);  // FAULT(global_write): the bound is one too high
}

__global__ void misaligned_kernel(const float* in, float* out) {
  const float4 v = *reinterpret_cast<const float4*>(in + threadIdx.x);  // FAULT(misaligned)
  out[threadIdx.x] = v.x + v.y + v.z + v.w;
}

// --- ThreadSanitizer ---

__global__ void missing_barrier_kernel(float* out) {
  auto& smem = shared_storage<Storage>();
  const int i = threadIdx.x;
  smem.values[i] = float(i);
  out[i] = smem.values[127 - i];  // FAULT(missing_barrier)
}

__global__ void missing_named_barrier_kernel(float* out) {
  auto& smem = shared_storage<Storage>();
  const int i = threadIdx.x;
  if (i < 64) {
    smem.values[i] = float(i);
    named_barrier_arrive(1, 128);
  } else {
    named_barrier_arrive(1, 128);  // named_barrier_sync is meant
    out[i] = smem.values[i - 64];  // FAULT(missing_named_barrier)
  }
}

__global__ void early_refill_kernel(float* out) {
  auto& smem = shared_storage<Storage>();
  const int i = threadIdx.x;
  if (i < 64) {
    smem.values[i] = float(i);
    named_barrier_arrive(1, 128);
    smem.values[i] = 0.0f;  // FAULT(early_refill): the readers have not handed it back
  } else {
    named_barrier_sync(1, 128);
    out[i] = smem.values[i - 64];
  }
}

__global__ void missing_syncwarp_kernel(float* out) {
  auto& smem = shared_storage<Storage>();
  const int i = threadIdx.x;
  smem.values[i] = float(i);
  const float sum = __shfl_xor_sync(0xffffffffu, float(i), 1);  // orders no memory
  out[i] = sum + smem.values[i ^ 1];                            // FAULT(missing_syncwarp)
}

__global__ void lost_atomic_kernel(float* sum) {
  *sum += 1.0f;  // FAULT(lost_atomic): atomicAdd is meant
}

// --- MemorySanitizer ---

__global__ void unwritten_shared_kernel(float* out) {
  auto& smem = shared_storage<Storage>();
  const int i = threadIdx.x;
  if (i < 127) smem.values[i] = float(i);  // the bound is one too low
  __syncthreads();
  out[i] = smem.values[i];  // FAULT(unwritten_shared)
}

__global__ void unwritten_global_kernel(const float* in, float* out) {
  const float x = in[threadIdx.x];  // of which nothing was written
  if (x > 0) out[threadIdx.x] = x;  // FAULT(unwritten_global)
}

__global__ void unwritten_shuffled_kernel(float* out) {
  auto& smem = shared_storage<Storage>();
  const int i = threadIdx.x;
  if (i != 5) smem.values[i] = float(i);
  __syncwarp();
  const float other = __shfl_xor_sync(0xffffffffu, smem.values[i], 1);
  if (other > 3) out[i] = other;  // FAULT(unwritten_shuffled): lane 4 decides by what lane 5 read
}

// --- ThreadSanitizer, again: between blocks ---

__global__ void cross_block_kernel(float* out) {
  // Every block writes a row of 128, of which the last element belongs to the next block.
  for (int i = 0; i <= 128; ++i) {
    out[blockIdx.x * 128 + i] = float(i);  // FAULT(cross_block)
  }
}

int run(const std::string& name) {
  const DeviceBuffer<float> in(std::vector<float>(256, 1.0f)), out(std::vector<float>(1024, 0.0f));
  const DeviceBuffer<float> unwritten(128);
  const std::map<std::string, std::function<void()>> kernels = {
      {"shared_write",
       [&] {
         launch({1, 128}, shared_write_kernel, out.data());
       }},
      {"shared_read",
       [&] {
         launch({1, 128}, shared_read_kernel, out.data());
       }},
      {"global_write",
       [&] {
         launch({9, 128}, global_write_kernel, out.data(), 1024);
       }},
      {"misaligned",
       [&] {
         launch({1, 32}, misaligned_kernel, in.data(), out.data());
       }},
      {"missing_barrier",
       [&] {
         launch({1, 128}, missing_barrier_kernel, out.data());
       }},
      {"missing_named_barrier",
       [&] {
         launch({1, 128}, missing_named_barrier_kernel, out.data());
       }},
      {"early_refill",
       [&] {
         launch({1, 128}, early_refill_kernel, out.data());
       }},
      {"missing_syncwarp",
       [&] {
         launch({1, 128}, missing_syncwarp_kernel, out.data());
       }},
      // Blocks of one thread: no two threads of a block can be at fault.
      {"lost_atomic",
       [&] {
         launch({64, 1}, lost_atomic_kernel, out.data());
       }},
      {"unwritten_shared",
       [&] {
         launch({1, 128}, unwritten_shared_kernel, out.data());
         out.to_host();  // the host looks at the result
       }},
      {"unwritten_global",
       [&] {
         launch({1, 128}, unwritten_global_kernel, unwritten.data(), out.data());
       }},
      {"unwritten_shuffled",
       [&] {
         launch({1, 32}, unwritten_shuffled_kernel, out.data());
       }},
      {"cross_block",
       [&] {
         launch({7, 1}, cross_block_kernel, out.data());
       }},
  };
  const auto kernel = kernels.find(name);
  if (kernel == kernels.end()) {
    std::fprintf(stderr, "broken_kernels: no kernel '%s'\n", name.c_str());
    return 2;
  }
  kernel->second();
  std::printf("%s: nothing was reported\n", name.c_str());
  return 0;
}

}  // namespace
}  // namespace attn

int main(int argc, char** argv) { return attn::run(argc > 1 ? argv[1] : ""); }
