#include "01_cpu_reference/operators.hpp"
#include "02_naive_cuda/driver_kernel.cuh"
#include "common/driver/driver.hpp"

int main(int argc, char** argv) {
  return attn::driver::run(
      {
          .name = "02_naive_cuda",
          .idea = "the recurrence word for word: one block per (b, h), one thread per value column",
          .op = attn::reference::causal_product_operator(),
          .kernels = {attn::naive::driver_kernel()},
      },
      argc, argv);
}
