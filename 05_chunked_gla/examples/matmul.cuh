// C = A B for dense row-major matrices: by cuBLAS on a GPU, by a plain loop where kernels are
// emulated. Sums are in fp32 in both.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "common/element.hpp"

#ifndef ATTN_SIMT
#include <cublas_v2.h>

#include "common/cuda_check.hpp"
#endif

namespace attn::chunked_gla {

// A dense row-major matrix in device memory.
template <class T>
struct MatrixView {
  T* data;
  int64_t rows, cols;

  // A view that can be written is a view that can be read.
  template <class U>
  requires(std::is_same_v<U, const T> && !std::is_const_v<T>) operator MatrixView<U>() const {
    return {data, rows, cols};
  }
};

#ifdef ATTN_SIMT

class MatmulLibrary {
 public:
  template <class T>
  void multiply(MatrixView<const T> a, MatrixView<const T> b, MatrixView<T> c, cudaStream_t) const {
    for (int64_t i = 0; i < c.rows; ++i) {
      for (int64_t j = 0; j < c.cols; ++j) {
        float sum = 0;
        for (int64_t l = 0; l < a.cols; ++l)
          sum += to_float(a.data[i * a.cols + l]) * to_float(b.data[l * b.cols + j]);
        c.data[i * c.cols + j] = from_float<T>(sum);
      }
    }
  }
};

#else

class MatmulLibrary {
 public:
  MatmulLibrary() {
    check(cublasCreate(&handle_));
    // Without TF32, and no partial sums in bf16.
    check(cublasSetMathMode(handle_, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
  }
  MatmulLibrary(const MatmulLibrary&) = delete;
  ~MatmulLibrary() { cublasDestroy(handle_); }

  template <class T>
  void multiply(MatrixView<const T> a, MatrixView<const T> b, MatrixView<T> c,
                cudaStream_t stream) const {
    constexpr cudaDataType type = std::is_same_v<T, float> ? CUDA_R_32F : CUDA_R_16BF;
    const float one = 1, zero = 0;
    check(cublasSetStream(handle_, stream));
    // cuBLAS reads by columns what is stored by rows, so it is given C^T = B^T A^T.
    check(cublasGemmEx_64(handle_, CUBLAS_OP_N, CUBLAS_OP_N, c.cols, c.rows, a.cols, &one, b.data,
                          type, b.cols, a.data, type, a.cols, &zero, c.data, type, c.cols,
                          CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }

 private:
  static void check(cublasStatus_t status, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE()) {
    if (status != CUBLAS_STATUS_SUCCESS) throw CudaError(cublasGetStatusString(status), file, line);
  }

  cublasHandle_t handle_ = nullptr;
};

#endif

// Enqueues c = a b. T is float or __nv_bfloat16. Throws std::invalid_argument for matrices that do
// not fit together, CudaError when the library cannot run.
template <class T>
void matmul(const MatmulLibrary& library, MatrixView<const T> a, MatrixView<const T> b,
            MatrixView<T> c, cudaStream_t stream) {
  if (a.cols != b.rows || c.rows != a.rows || c.cols != b.cols)
    throw std::invalid_argument("matmul: the matrices do not fit together");
  library.multiply(a, b, c, stream);
}

}  // namespace attn::chunked_gla
