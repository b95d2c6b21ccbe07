#include "common/compare.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "common/element.hpp"
#include "common/parallel.hpp"

namespace attn {
namespace {

template <class T>
bool is_poison(const T& element) {
  unsigned char bytes[sizeof(T)];
  std::memcpy(bytes, &element, sizeof(T));
  return std::all_of(bytes, bytes + sizeof(T), [](unsigned char byte) { return byte == 0xff; });
}

double square(double x) { return x * x; }

}  // namespace

double Comparison::rel() const {
  if (error_square == 0) return 0;
  return std::sqrt(error_square / reference_square);  // infinite if the truth is all zeros
}

bool Comparison::passes(double tolerance) const {
  return elements > 0 && unwritten == 0 && rel() <= tolerance;
}

void Comparison::merge(const Comparison& other) {
  error_square += other.error_square;
  reference_square += other.reference_square;
  max_abs = std::max(max_abs, other.max_abs);
  elements += other.elements;
  unwritten += other.unwritten;
  if (!first_wrong) first_wrong = other.first_wrong;
}

template <class T>
Comparison compare(TensorView<const T> out, int64_t b, int64_t h, const Matrix& reference,
                   double tolerance) {
  if (out.L != reference.rows || out.D != reference.cols)
    throw std::logic_error("compare: the output is " + std::to_string(out.L) + " x " +
                           std::to_string(out.D) + ", its reference " +
                           std::to_string(reference.rows) + " x " + std::to_string(reference.cols));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Comparison result;
  int64_t finite = 0;
  for (double expected : reference.data) {
    if (!std::isfinite(expected)) continue;
    result.reference_square += square(expected);
    ++finite;
  }
  const double mean_square = finite ? result.reference_square / finite : 0;

  for (int64_t i = 0; i < reference.rows; ++i) {
    const T* const row = out.row(b, h, i);
    for (int64_t j = 0; j < reference.cols; ++j) {
      const double expected = reference(i, j);
      const double got = to_float(row[j]);
      double error, bound = 0;
      if (std::isfinite(expected)) {
        error = std::isnan(got) ? kInfinity : std::abs(got - expected);
        bound = tolerance * std::sqrt((square(expected) + mean_square) / 2);
      } else {
        const bool same = std::isnan(expected) ? std::isnan(got) : got == expected;
        error = same ? 0 : kInfinity;
      }
      if (std::isnan(got) && !std::isnan(expected)) ++result.unwritten;
      const bool right = error <= bound && error != kInfinity;
      if (!right && !result.first_wrong)
        result.first_wrong = {b, h, i, j, got, expected, is_poison(row[j])};
      result.max_abs = std::max(result.max_abs, error);
      result.error_square += square(error);
      ++result.elements;
    }
  }
  return result;
}

template <class T>
std::optional<WrongElement> first_nan(TensorView<const T> tensor) {
  std::vector<int64_t> first(tensor.B * tensor.H, -1);  // l * D + d in each (b, h), or -1
  // Slices can be tiny and many: a block of them at a time.
  constexpr int64_t kBlock = 256;
  parallel_for((tensor.B * tensor.H + kBlock - 1) / kBlock, [&](int64_t block) {
    const int64_t end = std::min(tensor.B * tensor.H, (block + 1) * kBlock);
    for (int64_t bh = block * kBlock; bh < end; ++bh) {
      for (int64_t l = 0; l < tensor.L && first[bh] < 0; ++l) {
        const T* const row = tensor.row(bh / tensor.H, bh % tensor.H, l);
        for (int64_t d = 0; d < tensor.D && first[bh] < 0; ++d)
          if (std::isnan(to_float(row[d]))) first[bh] = l * tensor.D + d;
      }
    }
  });
  for (int64_t bh = 0; bh < tensor.B * tensor.H; ++bh) {
    if (first[bh] < 0) continue;
    const int64_t b = bh / tensor.H, h = bh % tensor.H;
    const int64_t l = first[bh] / tensor.D, d = first[bh] % tensor.D;
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    return WrongElement{b, h, l, d, kNaN, kNaN, is_poison(tensor.row(b, h, l)[d])};
  }
  return std::nullopt;
}

template Comparison compare(TensorView<const float>, int64_t, int64_t, const Matrix&, double);
template Comparison compare(TensorView<const __nv_bfloat16>, int64_t, int64_t, const Matrix&,
                            double);
template std::optional<WrongElement> first_nan(TensorView<const float>);
template std::optional<WrongElement> first_nan(TensorView<const __nv_bfloat16>);

}  // namespace attn
