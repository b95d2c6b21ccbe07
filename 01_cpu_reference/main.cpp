// Stage 01: the causal product on the CPU, in three steps.
#include "01_cpu_reference/causal_product_runner.hpp"
#include "01_cpu_reference/operators.hpp"
#include "01_cpu_reference/step1_scalar.hpp"
#include "01_cpu_reference/step2_openmp.hpp"
#include "01_cpu_reference/step3_chunked.hpp"
#include "01_cpu_reference/step3_walk.hpp"
#include "common/driver/driver.hpp"

namespace {

using namespace attn;
using driver::Cost;
using driver::Kernel;

using CausalProduct = void(TensorView<const float> q, TensorView<const float> k,
                           TensorView<const float> v, TensorView<float> o);

Kernel kernel(std::string name, CausalProduct* function, std::function<Cost(const Shape&)> cost) {
  return {std::move(name), Dtype::f32, reference::causal_product_runner(function), std::move(cost)};
}

void chunked(TensorView<const float> q, TensorView<const float> k, TensorView<const float> v,
             TensorView<float> o) {
  cpu::causal_product_chunked(q, k, v, o);
}

}  // namespace

int main(int argc, char** argv) {
  const driver::Operator op = reference::causal_product_operator();
  const auto recurrence_cost = [op](const Shape& shape) {
    return driver::least_cost(op, shape, Dtype::f32);
  };
  // One sequence in one piece: the scores inside the chunks come on top.
  const auto chunked_cost = [op](const Shape& shape) {
    const auto& [B, H, L, E, M] = shape;
    Cost cost = driver::least_cost(op, shape, Dtype::f32);
    cost.flops += 1.0 * B * H * L * cpu::kChunk * (E + M);
    return cost;
  };
  driver::Stage stage;
  stage.name = "01_cpu_reference";
  stage.idea = "the recurrence on a CPU: one core, all cores, then chunks of small matrix products";
  stage.op = op;
  stage.kernels = {
      kernel("scalar", cpu::causal_product_scalar, recurrence_cost),
      kernel("openmp", cpu::causal_product_openmp, recurrence_cost),
      kernel("chunked", chunked, chunked_cost),
  };
  stage.default_shape = {4, 4, 1024, 64, 64};
  stage.on_host = true;
  return driver::run(stage, argc, argv);
}
