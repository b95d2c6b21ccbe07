// launch(): what <<<...>>> does, spelled so that a host compiler takes it too, with the limits
// checked first. An error names the line of the launch.
//
//   launch({grid, block}, kernel<64>, q, k, v, o);
//   launch({grid, block, shared_bytes, stream}, kernel, ...);
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "common/cuda_check.hpp"
#include "common/device.hpp"
#include "common/shared_storage.cuh"

namespace attn {

// A grid or block size. 64-bit, so that a product that no dim3 can hold is reported, not truncated.
struct LaunchSize {
  int64_t x, y, z;
  LaunchSize(int64_t x, int64_t y = 1, int64_t z = 1) : x(x), y(y), z(z) {}
  LaunchSize(dim3 size) : x(size.x), y(size.y), z(size.z) {}

  dim3 dims() const { return dim3(unsigned(x), unsigned(y), unsigned(z)); }
};

struct LaunchConfig {
  LaunchSize grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
  const char* file;
  int line;
  // May begin before the launch before it in the stream has ended (common/ptx/grid_dependency.cuh).
  bool overlapping = false;

  LaunchConfig(LaunchSize grid, LaunchSize block, size_t shared_bytes = 0, cudaStream_t stream = 0,
               const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : grid(grid),
        block(block),
        shared_bytes(shared_bytes),
        stream(stream),
        file(file),
        line(line) {}
};

inline void check_launch(const LaunchConfig& config) {
  auto require_within = [&](const char* what, int64_t value, int64_t limit) {
    if (value >= 1 && value <= limit) return;
    throw CudaError(std::string("launch: ") + what + " is " + std::to_string(value) +
                        ", must be 1 to " + std::to_string(limit),
                    config.file, config.line);
  };
  require_within("gridDim.x", config.grid.x, 0x7fffffff);
  require_within("gridDim.y", config.grid.y, 65535);
  require_within("gridDim.z", config.grid.z, 65535);
  require_within("blockDim.x", config.block.x, 1024);
  require_within("blockDim.y", config.block.y, 1024);
  require_within("blockDim.z", config.block.z, 64);
  require_within("the number of threads of a block",
                 config.block.x * config.block.y * config.block.z, 1024);
  if (config.shared_bytes <= kStaticSharedLimit) return;
  int device, limit;
  cuda_check(cudaGetDevice(&device), config.file, config.line);
  cuda_check(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             config.file, config.line);
  if (config.shared_bytes > size_t(limit)) {
    throw CudaError("launch: " + std::to_string(config.shared_bytes) +
                        " bytes of shared memory, this device has " + std::to_string(limit),
                    config.file, config.line);
  }
}

template <class... P, class... A>
void launch(LaunchConfig config, void (*kernel)(P...), A&&... arguments) {
  static_assert((std::is_convertible_v<A, P> && ...), "an argument does not fit its parameter");
  check_launch(config);
#ifdef ATTN_SIMT
  cuda_check(config.stream == 0 ? cudaSuccess : cudaErrorInvalidResourceHandle, config.file,
             config.line);
  // Every thread gets its own copy of the arguments, converted once.
  const auto call = [kernel, ... converted = static_cast<P>(std::forward<A>(arguments))] {
    kernel(converted...);
  };
  simt::launch(
      config.grid.dims(), config.block.dims(), config.shared_bytes, {config.file, config.line},
      reinterpret_cast<const void*>(kernel),
      [](const void* context) { (*static_cast<decltype(&call)>(context))(); }, &call);
#else
  if (config.shared_bytes > kStaticSharedLimit) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    int(config.shared_bytes)),
               config.file, config.line);
  }
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch_config = {};
  launch_config.gridDim = config.grid.dims();
  launch_config.blockDim = config.block.dims();
  launch_config.dynamicSmemBytes = config.shared_bytes;
  launch_config.stream = config.stream;
  launch_config.attrs = &overlap;
  launch_config.numAttrs = config.overlapping && compute_capability_major() >= 9 ? 1 : 0;
  cuda_check(cudaLaunchKernelEx(&launch_config, kernel, static_cast<P>(arguments)...), config.file,
             config.line);
#endif
}

}  // namespace attn
