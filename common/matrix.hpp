// A dense row-major matrix in host memory: what the float64 references compute on.
#pragma once

#include <cstdint>
#include <vector>

namespace attn {

struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<double> data;  // [rows, cols]

  Matrix() = default;
  Matrix(int64_t rows, int64_t cols, double value = 0)
      : rows(rows), cols(cols), data(rows * cols, value) {}

  double& operator()(int64_t i, int64_t j) { return data[i * cols + j]; }
  double operator()(int64_t i, int64_t j) const { return data[i * cols + j]; }
};

}  // namespace attn
