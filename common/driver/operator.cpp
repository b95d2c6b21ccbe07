#include "common/driver/operator.hpp"

#include "common/element.hpp"
#include "common/inputs.hpp"

namespace attn::driver {

Extents extents(Axes axes, const Shape& s) {
  switch (axes) {
    case Axes::BHLE:
      return {s.B, s.H, s.L, s.E};
    case Axes::BHLM:
      return {s.B, s.H, s.L, s.M};
    case Axes::BHEM:
      return {s.B, s.H, s.E, s.M};
    case Axes::HE:
      break;
  }
  return {1, s.H, 1, s.E};
}

std::string to_string(const Operator& op) {
  return op.name + (op.distribution.empty() ? "" : ", inputs " + op.distribution);
}

double operand_bytes(const Operator& op, const Shape& shape, Dtype dtype) {
  double elements = 0;
  for (const auto& input : op.inputs) elements += extents(input.axes, shape).elements();
  for (const auto& output : op.outputs) elements += extents(output.axes, shape).elements();
  return elements * bytes_of(dtype);
}

Cost least_cost(const Operator& op, const Shape& shape, Dtype dtype) {
  return {operand_bytes(op, shape, dtype), op.flops(shape)};
}

Matrix input_slice(const InputSpec& spec, const Shape& shape, Dtype dtype, uint64_t seed, int64_t b,
                   int64_t h) {
  const Extents size = extents(spec.axes, shape);
  Matrix matrix(size.L, size.D);
  std::vector<float> draws(size.D);
  for (int64_t l = 0; l < size.L; ++l) {
    normal_row(seed, spec.name, size.B == 1 ? 0 : b, h, l, draws.data(), size.D);
    with_element_type(dtype, [&]<class T>() {
      for (int64_t d = 0; d < size.D; ++d) {
        const float element = spec.from_normal ? spec.from_normal(draws[d]) : draws[d];
        matrix(l, d) = to_float(from_float<T>(element));
      }
    });
  }
  return matrix;
}

}  // namespace attn::driver
