// mma.sync: D = A B + C by a warp on the tensor cores, accumulated in float. d and c may be the
// same.
//
//   mma_m16n8k16(d, a, b, c);        // bf16: A [16, 16], B [16, 8]
//   mma_m16n8k16_fp16(d, a, b, c);   // fp16: the same
//   mma_m16n8k8_tf32(d, a, b, c);    // tf32: A [16, 8],  B [8, 8]
//
// Who holds what, with g = lane / 4 and t = lane % 4 (two bf16 or fp16 to a register, the first low):
//
//   A, 16 bits:  a[0] (g, 2t..2t+1)    a[1] (g+8, 2t..)    a[2] (g, 2t+8..)    a[3] (g+8, 2t+8..)
//   B, 16 bits:  b[0] (2t..2t+1, g)    b[1] (2t+8.., g)
//   A, tf32:     a[0] (g, t)           a[1] (g+8, t)       a[2] (g, t+4)       a[3] (g+8, t+4)
//   B, tf32:     b[0] (t, g)           b[1] (t+4, g)
//   C and D:     c[0] (g, 2t)          c[1] (g, 2t+1)      c[2] (g+8, 2t)      c[3] (g+8, 2t+1)
//
// So ldmatrix x4 of A's row-major tile gives a[], and ldmatrix_trans of B's row-major tile gives
// b[]. PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" and the same for
// m16n8k8. Needs compute capability 8.0; compiled for less, it traps.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace attn {

#if defined(ATTN_SIMT)

inline void emulated_mma(const char* name, simt::WarpRequest::Execute execute, float (&d)[4],
                         const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4],
                         simt::Site site) {
  const simt::MmaOperands operands{
      {a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {c[0], c[1], c[2], c[3]}};
  simt::WarpRequest request{name, execute, 0xffffffffu, site, &operands, d};
  simt::warp_collective(request);
}

inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                         const float (&c)[4], const char* file = __builtin_FILE(),
                         int line = __builtin_LINE()) {
  emulated_mma("mma.m16n8k16", simt::execute_mma_m16n8k16_bf16, d, a, b, c, {file, line});
}

inline void mma_m16n8k16_fp16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                              const float (&c)[4], const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  emulated_mma("mma.m16n8k16", simt::execute_mma_m16n8k16_fp16, d, a, b, c, {file, line});
}

inline void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                             const float (&c)[4], const char* file = __builtin_FILE(),
                             int line = __builtin_LINE()) {
  emulated_mma("mma.m16n8k8", simt::execute_mma_m16n8k8_tf32, d, a, b, c, {file, line});
}

#else

__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2], const float (&c)[4]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
#else
  __trap();
#endif
}

__device__ __forceinline__ void mma_m16n8k16_fp16(float (&d)[4], const uint32_t (&a)[4],
                                                  const uint32_t (&b)[2], const float (&c)[4]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
#else
  __trap();
#endif
}

__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4],
                                                 const uint32_t (&b)[2], const float (&c)[4]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
#else
  __trap();
#endif
}

#endif

// x rounded to the 10 bits of mantissa that the tensor core reads of a float (to nearest, ties away
// from zero); unrounded operands are truncated.
__device__ __forceinline__ uint32_t to_tf32(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
#elif defined(ATTN_SIMT)
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
#else
  return 0;  // below 8.0, where mma_m16n8k8_tf32 traps
#endif
}

}  // namespace attn
