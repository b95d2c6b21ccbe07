// ldmatrix: a warp loads N = 1, 2 or 4 matrices of 8 x 8 16-bit elements from shared memory, laid
// out as mma.sync wants its operands.
//
//   uint32_t a[4];
//   ldmatrix(a, &tile[row][column]);          // and ldmatrix_trans: each matrix transposed
//
// Every lane gives the address of one row of 8 elements (16 bytes, 16-byte aligned): lanes 0-7 the
// rows of matrix 0, lanes 8-15 those of matrix 1, and so on; with N < 4 the later lanes' addresses
// are not used. Lane l receives in registers[m] elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4
// of matrix m (transposed: of column l / 4), the first in the low half. PTX ISA, "Warp-level matrix
// load instruction: ldmatrix". Needs compute capability 7.5.
//
// In the emulation each lane reads its own row, where a sanitizer sees it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace attn {

#if defined(ATTN_SIMT)

template <int N>
void load_matrices(const char* name, simt::WarpRequest::Execute execute, uint32_t (&registers)[N],
                   const void* row, simt::Site site) {
  static_assert(N == 1 || N == 2 || N == 4);
  uint4 elements{};
  if (int(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32 < 8 * N) {
    simt::require_shared(name, row, 16, site);
    elements = *static_cast<const uint4*>(row);
  }
  simt::WarpRequest request{name, execute, 0xffffffffu, site, &elements, registers, N};
  simt::warp_collective(request);
}

template <int N>
void ldmatrix(uint32_t (&registers)[N], const void* row, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  load_matrices("ldmatrix", simt::execute_ldmatrix, registers, row, {file, line});
}

template <int N>
void ldmatrix_trans(uint32_t (&registers)[N], const void* row, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE()) {
  load_matrices("ldmatrix.trans", simt::execute_ldmatrix_trans, registers, row, {file, line});
}

#else

template <int N>
__device__ __forceinline__ void ldmatrix(uint32_t (&registers)[N], const void* row) {
  static_assert(N == 1 || N == 2 || N == 4);
  const uint32_t address = uint32_t(__cvta_generic_to_shared(row));
  if constexpr (N == 1) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(registers[0])
                 : "r"(address)
                 : "memory");
  } else if constexpr (N == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(registers[0]), "=r"(registers[1])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(address)
                 : "memory");
  }
}

template <int N>
__device__ __forceinline__ void ldmatrix_trans(uint32_t (&registers)[N], const void* row) {
  static_assert(N == 1 || N == 2 || N == 4);
  const uint32_t address = uint32_t(__cvta_generic_to_shared(row));
  if constexpr (N == 1) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(registers[0])
                 : "r"(address)
                 : "memory");
  } else if constexpr (N == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(registers[0]), "=r"(registers[1])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(address)
                 : "memory");
  }
}

#endif

}  // namespace attn
