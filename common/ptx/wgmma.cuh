// wgmma: D += A B by a warpgroup (four warps, the first of them a multiple of four) on the tensor
// cores, asynchronously. A [64, 16] and B [16, N] in bf16, D [64, N] in float, N a multiple of 8 to
// 256. Needs sm_90a; there is no emulation.
//
//   wgmma_fence();                                   // registers written before are in place
//   for (k ...) wgmma<N>(d, a[k], b_descriptor);     // started; d and a must not be touched
//   wgmma_commit();                                  // all since the last commit: one group
//   wgmma_wait<0>();                                 // all groups but the latest 0 are done
//   wgmma_own(d);                                    // ... and the compiler knows it, too
//
// Who holds what of D: warp w of the warpgroup rows 16 w to 16 w + 15, in them as mma.sync does.
// With g = lane / 4 and t = lane % 4:
//
//   d[4 j]      (g, 8 j + 2 t)        d[4 j + 1]  (g, 8 j + 2 t + 1)
//   d[4 j + 2]  (g + 8, 8 j + 2 t)    d[4 j + 3]  (g + 8, 8 j + 2 t + 1)
//
// and of A in registers as the A of mma_m16n8k16 (mma.cuh). So the 16 columns 8 j to 8 j + 15 of D,
// rounded to bf16, are an A: nothing moves between threads.
//
// B lies in shared memory, and so does A unless it is in registers. A descriptor says where: the
// first address, two offsets and the swizzle. Here the swizzle is always that of 128 bytes, as TMA
// writes it (tma.cuh), in panels [rows, 64] of 128-byte rows that begin on 1024 bytes:
//
//   k runs along the row ("K-major": Q and K)      k counts rows ("MN-major": V)
//   stride: from 8 rows to the next 8, 1024        stride: from 8 rows to the next 8, 1024
//   leading: not used                              leading: from one panel to the next 64 columns
//   16 further in k: 32 bytes on in the row        16 further in k: 16 rows on, 2048 bytes
//
// The hardware applies the swizzle to the address it computes, which is why a step inside the
// 128-byte row is a plain addition. Only 16-bit types may be MN-major.
//
// Memory ordering: wgmma reads shared memory through the async proxy. What TMA wrote is visible
// once its mbarrier has been waited for; what threads wrote would need fence.proxy.async.
// wgmma_fence is needed before the first wgmma, and whenever the threads have written d or a since;
// successive wgmma on the same d need none. Between start and wait the compiler must not move
// accesses of d: it knows the instruction but not the wait, hence wgmma_own.
//
// PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": register fragments, shared memory
// matrix layout, matrix descriptor format.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace attn {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;

// A panel [rows, 64] whose rows run along k; add bytes / 16 to move on in k or in rows.
__device__ __forceinline__ uint64_t wgmma_k_major(uint32_t shared_address) {
  return kSwizzle128 | uint64_t{1024 / 16} << 32 | uint64_t{1} << 16 |
         (shared_address & 0x3ffff) / 16;
}

// Panels [rows, 64] whose rows count k, `panel_bytes` from one to the next.
__device__ __forceinline__ uint64_t wgmma_mn_major(uint32_t shared_address, int panel_bytes) {
  return kSwizzle128 | uint64_t{1024 / 16} << 32 | uint64_t(panel_bytes / 16) << 16 |
         (shared_address & 0x3ffff) / 16;
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// An access of x after this line stays after this line.
template <int kCount>
__device__ __forceinline__ void wgmma_own(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

template <int N>
struct Wgmma;

// The text of the instruction names each register of D, and takes no loop: lists by N, each with
// the one before in it.
// clang-format off
#define ATTN_WGMMA_D64                                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, " "%8, %9, %10, %11, %12, %13, %14, %15, "                      \
  "%16, %17, %18, %19, %20, %21, %22, %23, " "%24, %25, %26, %27, %28, %29, %30, %31"
#define ATTN_WGMMA_D80 ATTN_WGMMA_D64 ", "                                                         \
  "%32, %33, %34, %35, %36, %37, %38, %39"
#define ATTN_WGMMA_D128 ATTN_WGMMA_D80 ", "                                                        \
  "%40, %41, %42, %43, %44, %45, %46, %47, " "%48, %49, %50, %51, %52, %53, %54, %55, "            \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define ATTN_WGMMA_D256 ATTN_WGMMA_D128 ", "                                                       \
  "%64, %65, %66, %67, %68, %69, %70, %71, " "%72, %73, %74, %75, %76, %77, %78, %79, "            \
  "%80, %81, %82, %83, %84, %85, %86, %87, " "%88, %89, %90, %91, %92, %93, %94, %95, "            \
  "%96, %97, %98, %99, %100, %101, %102, %103, "                                                   \
  "%104, %105, %106, %107, %108, %109, %110, %111, "                                               \
  "%112, %113, %114, %115, %116, %117, %118, %119, "                                               \
  "%120, %121, %122, %123, %124, %125, %126, %127"

#define ATTN_WGMMA_F64                                                                             \
  ATTN_WGMMA_F8(0), ATTN_WGMMA_F8(8), ATTN_WGMMA_F8(16), ATTN_WGMMA_F8(24)
#define ATTN_WGMMA_F80 ATTN_WGMMA_F64,                                                             \
  ATTN_WGMMA_F8(32)
#define ATTN_WGMMA_F128 ATTN_WGMMA_F80,                                                            \
  ATTN_WGMMA_F8(40), ATTN_WGMMA_F8(48), ATTN_WGMMA_F8(56)
#define ATTN_WGMMA_F256 ATTN_WGMMA_F128,                                                           \
  ATTN_WGMMA_F8(64), ATTN_WGMMA_F8(72), ATTN_WGMMA_F8(80), ATTN_WGMMA_F8(88),                      \
  ATTN_WGMMA_F8(96), ATTN_WGMMA_F8(104), ATTN_WGMMA_F8(112), ATTN_WGMMA_F8(120)
// clang-format on

#define ATTN_WGMMA_F8(i)                                                                      \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])

// i0 to i5: the numbers that follow those of D. After the operands: whether D is added to, the
// signs of A and B (+1), and for operands in shared memory whether they are MN-major.
#define ATTN_WGMMA(N, i0, i1, i2, i3, i4, i5)                                                   \
  template <>                                                                                   \
  struct Wgmma<N> {                                                                             \
    template <bool kAdd>                                                                        \
    static __device__ __forceinline__ void shared(float (&d)[N / 2], uint64_t a, uint64_t b) {  \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #i2                                 \
                   ", 0;\n"                                                                     \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" ATTN_WGMMA_D##N \
                   "}, %" #i0 ", %" #i1 ", add, 1, 1, 0, 0;\n}"                                 \
                   : ATTN_WGMMA_F##N                                                            \
                   : "l"(a), "l"(b), "n"(int(kAdd))                                             \
                   : "memory");                                                                 \
    }                                                                                           \
    static __device__ __forceinline__ void registers(float (&d)[N / 2], const uint32_t (&a)[4], \
                                                     uint64_t b) {                              \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" ATTN_WGMMA_D##N \
                   "}, {%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4 ", 1, 1, 1, 1;"         \
                   : ATTN_WGMMA_F##N                                                            \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                         \
                   : "memory");                                                                 \
    }                                                                                           \
  };

ATTN_WGMMA(64, 32, 33, 34, 35, 36, 37)
ATTN_WGMMA(80, 40, 41, 42, 43, 44, 45)
ATTN_WGMMA(128, 64, 65, 66, 67, 68, 69)
ATTN_WGMMA(256, 128, 129, 130, 131, 132, 133)

#undef ATTN_WGMMA
#undef ATTN_WGMMA_F8
#undef ATTN_WGMMA_D64
#undef ATTN_WGMMA_D80
#undef ATTN_WGMMA_D128
#undef ATTN_WGMMA_D256
#undef ATTN_WGMMA_F64
#undef ATTN_WGMMA_F80
#undef ATTN_WGMMA_F128
#undef ATTN_WGMMA_F256

// D = A B, or D += A B; both operands K-major in shared memory.
template <int N, bool kAdd>
__device__ __forceinline__ void wgmma_shared(float (&d)[N / 2], uint64_t a, uint64_t b) {
  Wgmma<N>::template shared<kAdd>(d, a, b);
}

// D += A B; A in registers, B MN-major in shared memory.
template <int N>
__device__ __forceinline__ void wgmma_registers(float (&d)[N / 2], const uint32_t (&a)[4],
                                                uint64_t b) {
  Wgmma<N>::registers(d, a, b);
}

#endif

}  // namespace attn
