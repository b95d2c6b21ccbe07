#include "01_cpu_reference/operators.hpp"
#include "02_naive_cuda/driver_kernel.cuh"
#include "03_shared_mem/driver_kernel.cuh"
#include "common/driver/driver.hpp"

int main(int argc, char** argv) {
  return attn::driver::run(
      {
          .name = "03_shared_mem",
          .idea =
              "the state in shared memory, its rows shared out over blocks, joined by atomicAdd",
          .op = attn::reference::causal_product_operator(),
          .kernels = {attn::shared_mem::driver_kernel()},
          .previous = {"02_naive_cuda", {attn::naive::driver_kernel()}},
      },
      argc, argv);
}
