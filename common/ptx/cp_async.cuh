// cp.async: copies from global to shared memory that go on while the thread computes.
//
//   cp_async<16>(&smem.k[stage][i], &k[i], i < L);   // zeros where not valid; nothing is read
//   there cp_async_commit();                               // all since the last commit: one group
//   cp_async_wait<1>();                              // all groups but the latest 1 have arrived
//   __syncthreads();                                 // ... of the other threads too
//
// PTX ISA, "Data Movement and Conversion Instructions: Non-bulk copy". Needs compute
// capability 8.0; below that the copy is made at once. The emulation makes it at the wait, in the
// issuing thread: a kernel that reads too early computes with what was there before
// (SIMT_CP_ASYNC=early: at once).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace attn {

// The type that moves Bytes in one access.
template <int Bytes>
struct CopyUnit;
template <>
struct CopyUnit<4> {
  struct __attribute__((may_alias)) type {
    unsigned x;
  };
};
template <>
struct CopyUnit<8> {
  using type = uint2;
};
template <>
struct CopyUnit<16> {
  using type = uint4;
};

template <int Bytes>
__device__ __forceinline__ void copy_or_zero(void* smem, const void* gmem, bool valid) {
  using Unit = typename CopyUnit<Bytes>::type;
  *static_cast<Unit*>(smem) = valid ? *static_cast<const Unit*>(gmem) : Unit{};
}

#if defined(ATTN_SIMT)

// Copies Bytes (4, 8 or 16; both addresses aligned to as many), or stores zeros.
template <int Bytes>
void cp_async(void* smem, const void* gmem, bool valid = true, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  if (!simt::queue_copy({smem, gmem, Bytes, valid}, {file, line})) {
    copy_or_zero<Bytes>(smem, gmem, valid);
  }
}

inline void cp_async_commit() { simt::commit_copies(); }

template <int N>
void cp_async_wait() {
  simt::AsyncCopy copy;
  while (simt::next_copy(N, &copy)) {
    switch (copy.bytes) {
      case 4:
        copy_or_zero<4>(copy.destination, copy.source, copy.valid);
        break;
      case 8:
        copy_or_zero<8>(copy.destination, copy.source, copy.valid);
        break;
      case 16:
        copy_or_zero<16>(copy.destination, copy.source, copy.valid);
        break;
    }
  }
}

#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

template <int Bytes>
__device__ __forceinline__ void cp_async(void* smem, const void* gmem, bool valid = true) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16);
  const uint32_t destination = uint32_t(__cvta_generic_to_shared(smem));
  // The last operand is how much to read; the rest up to Bytes is filled with zeros.
  const int read = valid ? Bytes : 0;
  if constexpr (Bytes == 16) {
    // .cg: past L1, where a row that is read once would only displace others. 16 bytes only.
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(gmem),
                 "r"(read)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(destination), "l"(gmem),
                 "n"(Bytes), "r"(read)
                 : "memory");
  }
}

__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#else

template <int Bytes>
__device__ __forceinline__ void cp_async(void* smem, const void* gmem, bool valid = true) {
  copy_or_zero<Bytes>(smem, gmem, valid);
}
__device__ __forceinline__ void cp_async_commit() {}
template <int N>
__device__ __forceinline__ void cp_async_wait() {}

#endif

}  // namespace attn
