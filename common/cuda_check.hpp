// Every CUDA call goes through cuda_check: an error becomes an exception that names the caller.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace attn {

class CudaError : public std::runtime_error {
 public:
  CudaError(const std::string& what, const char* file, int line)
      : std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + what) {}
};

inline void cuda_check(cudaError_t error, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  if (error == cudaSuccess) return;
  throw CudaError(std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error), file,
                  line);
}

}  // namespace attn
