#include <vector>

#include "01_cpu_reference/operators.hpp"
#include "05_chunked_gla/gla.cuh"
#include "06_rwkv6/rwkv6.cuh"
#include "07_flash/driver_kernels.cuh"
#include "common/driver/driver.hpp"

namespace {

using namespace attn;

// Stage 05's operator and the kernel it picks, to be timed beside this stage's.
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

// The same of stage 06.
template <class T>
driver::Kernel rwkv6_kernel(const driver::Operator& rwkv6) {
  return {
      .name = "06_rwkv6",
      .dtype = dtype_of<T>,
      .run =
          [](const driver::Tensors& t) {
            rwkv6::rwkv6_attention<T>({t.view<const T>("r"), t.view<const T>("k"),
                                       t.view<const T>("v"), t.view<const T>("w"),
                                       t.view<const T>("u"), t.view<T>("o"), t.scale()});
          },
      .cost = [rwkv6](const Shape& s) { return driver::least_cost(rwkv6, s, dtype_of<T>); },
      .tolerance = tensor_core_tolerance(dtype_of<T>),
  };
}

std::vector<driver::OtherOperator> others() {
  const driver::Operator gla = reference::gla_operator();
  const driver::Operator rwkv6 = reference::rwkv6_operator();
  return {{gla, {gla_kernel<float>(gla), gla_kernel<__nv_bfloat16>(gla)}},
          {rwkv6, {rwkv6_kernel<float>(rwkv6), rwkv6_kernel<__nv_bfloat16>(rwkv6)}}};
}

driver::Variant on(const reference::Attention& attention) {
  return {.op = reference::softmax_attention_operator(attention), .others = others()};
}

}  // namespace

int main(int argc, char** argv) {
  const driver::Variant by_default = on(reference::kFullAttention);
  return driver::run(
      {
          .name = "07_flash",
          .idea = "softmax attention: three passes, one pass, tensor cores, Hopper",
          .op = by_default.op,
          .kernels = flash::driver_kernels(),
          .others = by_default.others,
          .variants = {on(reference::kCausalAttention), on(reference::kLargeScores)},
          .pick = flash::picked_kernel,
          .checks = flash::checks(),
          .default_shape = {4, 16, 4096, 128, 128},
          .default_dtype = Dtype::bf16,
          .max_head_size = flash::kMaxHeadSize,
      },
      argc, argv);
}
