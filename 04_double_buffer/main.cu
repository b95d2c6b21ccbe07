#include "01_cpu_reference/operators.hpp"
#include "03_shared_mem/driver_kernel.cuh"
#include "04_double_buffer/checks.cuh"
#include "04_double_buffer/driver_kernels.cuh"
#include "common/driver/driver.hpp"

int main(int argc, char** argv) {
  return attn::driver::run(
      {
          .name = "04_double_buffer",
          .idea = "the state in registers, the inputs double-buffered; few heads: a prefix sum",
          .op = attn::reference::causal_product_operator(),
          .kernels = attn::double_buffer::driver_kernels(),
          .previous = {"03_shared_mem", {attn::shared_mem::driver_kernel()}},
          .pick = attn::double_buffer::picked_kernel,
          .checks = attn::double_buffer::checks(),
      },
      argc, argv);
}
