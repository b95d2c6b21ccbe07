// Comparison of a result with the float64 truth. A NaN must never pass for a small error: every
// decision here is of the form `if (!(error <= bound)) fail`, which a NaN fails.
#pragma once

#include <cstdint>
#include <optional>

#include "common/matrix.hpp"
#include "common/shape.hpp"
#include "common/tensor_view.cuh"

namespace attn {

// The bound on the relative error, by the type of inputs and outputs. Rounding the output alone
// costs 1.7e-3 in bf16.
inline double tolerance(Dtype dtype) { return dtype == Dtype::f32 ? 1e-5 : 3e-3; }

// The bound for a kernel that takes float but multiplies on tensor cores, which read 10 bits of
// mantissa: rounding one operand alone costs up to 4.9e-4.
inline constexpr double kTf32Tolerance = 1e-3;

// The bound for kernels that multiply on tensor cores, by the type of inputs and outputs.
inline double tensor_core_tolerance(Dtype dtype) {
  return dtype == Dtype::f32 ? kTf32Tolerance : tolerance(dtype);
}

struct WrongElement {
  int64_t b, h, row, col;  // (b, h, l, m) in an output [B, H, L, M]
  double got, expected;
  bool never_written;  // it still holds the poison that outputs are filled with before a run
};

struct Comparison {
  double error_square = 0;      // ||out - reference||^2
  double reference_square = 0;  // ||reference||^2
  double max_abs = 0;           // the largest |out - reference|
  int64_t elements = 0;         // compared
  int64_t unwritten = 0;        // NaN where the reference is not NaN
  std::optional<WrongElement> first_wrong;

  double rel() const;                   // ||out - reference|| / ||reference||
  bool passes(double tolerance) const;  // false too if nothing was compared
  void merge(const Comparison& other);  // as if both had been compared in one go
};

// Compares slice (b, h) of `out`, in host memory, with its truth. A NaN or an infinity in the truth
// must be the same in `out`; such elements are left out of the norms.
// An element is wrong if its error is above tolerance * (the mean of its own square and of the
// slice's mean square)^1/2: by that measure a slice that does not pass has a wrong element.
template <class T>
Comparison compare(TensorView<const T> out, int64_t b, int64_t h, const Matrix& reference,
                   double tolerance);

// The first element of a tensor in host memory that is NaN, if any (`expected` is NaN there).
template <class T>
std::optional<WrongElement> first_nan(TensorView<const T> tensor);

}  // namespace attn
