#include <utility>
#include <vector>

#include "01_cpu_reference/operators.hpp"
#include "04_double_buffer/driver_kernels.cuh"
#include "05_chunked_gla/gla.cuh"
#include "06_rwkv6/driver_kernels.cuh"
#include "common/driver/driver.hpp"

namespace {

using namespace attn;

// The kernel that stage 05 picks, to be timed beside this stage's.
template <class T>
driver::Kernel gla_kernel(const driver::Operator& gla) {
  return {
      .name = "05_chunked_gla",
      .dtype = dtype_of<T>,
      .run =
          [](const driver::Tensors& t) {
            chunked_gla::gated_linear_attention<T>({t.view<const T>("q"), t.view<const T>("k"),
                                                    t.view<const T>("v"), t.view<const T>("g"),
                                                    t.view<T>("o"), t.scale()});
          },
      .cost = [gla](const Shape& s) { return driver::least_cost(gla, s, dtype_of<T>); },
      .tolerance = tensor_core_tolerance(dtype_of<T>),
  };
}

// RWKV-6 on decays of one kind, and beside it gated linear attention on gates of the same kind.
driver::Variant on(const reference::Gates& gates) {
  const driver::Operator gla = reference::gla_operator(gates);
  return {.op = reference::rwkv6_operator(gates),
          .others = {{gla, {gla_kernel<float>(gla), gla_kernel<__nv_bfloat16>(gla)}}}};
}

// Without decays it is the causal product, and the kernel that stage 04 picks can be timed beside
// this stage's.
driver::Variant without_decays() {
  driver::Variant variant = on(reference::kNoGates);
  variant.previous = {"04_double_buffer", double_buffer::driver_kernels("r"),
                      double_buffer::picked_kernel};
  return variant;
}

}  // namespace

int main(int argc, char** argv) {
  const driver::Variant by_default = on(reference::kExponentialGates);
  return driver::run(
      {
          .name = "06_rwkv6",
          .idea = "RWKV-6: a bonus and an exclusive decay, recurrent, then in chunks",
          .op = by_default.op,
          .kernels = rwkv6::driver_kernels(),
          .others = by_default.others,
          .variants = {on(reference::kMildGates), on(reference::kStrongGates),
                       on(reference::kResettingGates), without_decays()},
          .pick = rwkv6::picked_kernel,
          .checks = rwkv6::checks(),
          .default_shape = {8, 32, 4096, 64, 64},
          .default_dtype = Dtype::bf16,
      },
      argc, argv);
}
