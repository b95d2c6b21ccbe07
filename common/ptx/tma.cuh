// TMA, the tensor memory accelerator: one thread asks for a box of a tensor, and the copy engine
// brings it to shared memory, computing addresses, filling what lies outside of the tensor with
// zeros, and swizzling. Its end is announced to an mbarrier (mbarrier.cuh).
//
//   const CUtensorMap map = tensor_map(k, kRows);             // host
//   launch(..., kernel, map);
//
//   mbarrier_arrive_expect(&full, bytes);                     // one thread of the kernel
//   tma_load(smem.k, map, column, l, h, b, &full);
//
// The tensor map says where the tensor is and what a box is; a kernel takes it as
// `const __grid_constant__ CUtensorMap`. A box here is [rows, 64 columns] of bf16: 128 bytes to a
// row, as many as the widest swizzle covers, which is also what the tensor cores read (wgmma.cuh):
//
//   chunk c (16 bytes) of row r of the box is at 128 r + 16 (c xor (r mod 8))
//
// so that the same chunk of eight successive rows lies in eight different groups of banks. The
// box in shared memory begins on 1024 bytes, where the pattern starts. A box always delivers all of
// its bytes, zeros included.
//
// What the engine demands of a tensor: it begins on 16 bytes, all strides but the innermost (which
// is one element) are multiples of 16 bytes and positive, and no dimension is empty.
//
// CUDA driver API, "Tensor Map Object Management"; PTX ISA, "cp.async.bulk.tensor". Needs compute
// capability 9.0; there is no emulation.
#pragma once

#include <cuda_runtime.h>

#ifndef ATTN_SIMT

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "common/cuda_check.hpp"
#include "common/ptx/mbarrier.cuh"
#include "common/tensor_view.cuh"

namespace attn {

constexpr int kTmaColumns = 64;  // of a box: 128 bytes

// Whether the copy engine can read x.
inline bool tma_can_read(const TensorView<const __nv_bfloat16>& x) {
  return x.L > 0 && rows_are_16_bytes(x) && x.stride_l > 0 && (x.H == 1 || x.stride_h > 0) &&
         (x.B == 1 || x.stride_b > 0);
}

// The map of x [B, H, L, D] for boxes of `rows` (at most 256) rows and 64 columns.
inline CUtensorMap tensor_map(const TensorView<const __nv_bfloat16>& x, int rows) {
  // The driver's function is looked up at run time, so that nothing links with libcuda.
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess) {
      throw std::runtime_error("the driver has no cuTensorMapEncodeTiled");
    }
    return reinterpret_cast<Encode>(function);
  }();
  // A dimension of size 1 may have any stride; the engine wants a valid one.
  const auto stride_bytes = [](int64_t size, int64_t stride) {
    return uint64_t(size == 1 ? 16 : stride * 2);
  };
  const cuuint64_t sizes[] = {uint64_t(x.D), uint64_t(x.L), uint64_t(x.H), uint64_t(x.B)};
  const cuuint64_t strides[] = {stride_bytes(x.L, x.stride_l), stride_bytes(x.H, x.stride_h),
                                stride_bytes(x.B, x.stride_b)};
  const cuuint32_t box[] = {kTmaColumns, uint32_t(rows), 1, 1};
  const cuuint32_t element_strides[] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result = encode(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<__nv_bfloat16*>(x.data), sizes, strides,
      box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("cuTensorMapEncodeTiled: error " + std::to_string(int(result)));
  }
  return map;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Starts to copy the box that begins at (b, h, l, column), to `smem`; one thread.
__device__ __forceinline__ void tma_load(void* smem, const CUtensorMap& map, int column, int l,
                                         int h, int b, uint64_t* full) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(smem)),
      "l"(&map), "r"(column), "r"(l), "r"(h), "r"(b), "r"(shared_address(full))
      : "memory");
}

#endif

}  // namespace attn

#endif  // ATTN_SIMT
