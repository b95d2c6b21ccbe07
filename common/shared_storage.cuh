// The one spelling of shared memory that nvcc and a host compiler both take:
//
//   struct SharedStorage { float k[2][16][64]; float v[2][16][64]; };
//   auto& smem = shared_storage<SharedStorage>();      // in the kernel
//
// nvcc makes it an ordinary __shared__ variable, or, above the 48 KiB that static shared memory is
// limited to, dynamic shared memory, whose size the launch must name:
//
//   launch({grid, block, dynamic_shared_bytes<SharedStorage>()}, kernel, ...);
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace attn {

constexpr size_t kStaticSharedLimit = 48 * 1024;
constexpr size_t kSharedAlignment = 1024;  // what the strictest user, a swizzled TMA tile, needs

template <class Storage>
__host__ __device__ constexpr size_t dynamic_shared_bytes() {
  return sizeof(Storage) > kStaticSharedLimit ? sizeof(Storage) : 0;
}

#ifdef ATTN_SIMT

// Shared memory of a size known only at run time: LaunchConfig::shared_bytes.
template <class T>
T* dynamic_shared() {
  static_assert(alignof(T) <= kSharedAlignment);
  return static_cast<T*>(simt::dynamic_shared(0));
}

// One address per type tells the emulator which struct a kernel uses.
template <class Storage>
inline constexpr char storage_type = 0;

template <class Storage>
Storage& shared_storage() {
  static_assert(alignof(Storage) <= kSharedAlignment);
  void* memory = dynamic_shared_bytes<Storage>() > 0
                     ? simt::dynamic_shared(sizeof(Storage))
                     : simt::static_shared(sizeof(Storage), &storage_type<Storage>);
  return *static_cast<Storage*>(memory);
}

#else

template <class T>
__device__ T* dynamic_shared() {
  // One name and type for all kernels, since extern arrays of one name must agree.
  extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
  return reinterpret_cast<T*>(dynamic_shared_memory);
}

template <class Storage>
__device__ Storage& shared_storage() {
  static_assert(alignof(Storage) <= kSharedAlignment);
  if constexpr (dynamic_shared_bytes<Storage>() > 0) {
    return *dynamic_shared<Storage>();
  } else {
    // Bytes, so that a member with a constructor is no "initialised" shared variable.
    __shared__ alignas(alignof(Storage)) unsigned char memory[sizeof(Storage)];
    return reinterpret_cast<Storage&>(memory);
  }
}

#endif

}  // namespace attn
