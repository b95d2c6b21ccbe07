#include "01_cpu_reference/operators.hpp"
#include "05_chunked_gla/driver_kernels.cuh"
#include "common/driver/driver.hpp"

int main(int argc, char** argv) {
  return attn::driver::run(
      {
          .name = "05_chunked_gla",
          .idea = "gated linear attention: the recurrence, then chunks of matrix products",
          .op = attn::reference::gla_operator(),
          .kernels = attn::chunked_gla::driver_kernels(),
          .checks = attn::chunked_gla::checks(),
          .default_shape = {8, 32, 4096, 64, 64},
      },
      argc, argv);
}
