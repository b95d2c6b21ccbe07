#include "01_cpu_reference/operators.hpp"

#include "01_cpu_reference/causal_product.hpp"

namespace attn::reference {

driver::Operator causal_product_operator() {
  using driver::Axes;
  return {
      .name = "causal product",
      .inputs = {{"q", Axes::BHLE}, {"k", Axes::BHLE}, {"v", Axes::BHLM}},
      .outputs = {{"o", Axes::BHLM}},
      .reference =
          [](const Shape&, const std::vector<Matrix>& inputs) {
            return std::vector<Matrix>{causal_product(inputs[0], inputs[1], inputs[2])};
          },
      // The recurrence: one multiply-add per element of S to update it, one to read it.
      .flops = [](const Shape& s) { return 4.0 * s.B * s.H * s.L * s.E * s.M; },
  };
}

}  // namespace attn::reference
