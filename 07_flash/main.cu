#include "01_cpu_reference/operators.hpp"
#include "07_flash/driver_kernels.cuh"
#include "common/driver/driver.hpp"

int main(int argc, char** argv) {
  using namespace attn;
  return driver::run(
      {
          .name = "07_flash",
          .idea = "softmax attention: three passes, one pass, tensor cores, Hopper",
          .op = reference::softmax_attention_operator(reference::kFullAttention),
          .kernels = flash::driver_kernels(),
          .variants = {{reference::softmax_attention_operator(reference::kCausalAttention)},
                       {reference::softmax_attention_operator(reference::kLargeScores)}},
          .pick = flash::picked_kernel,
          .checks = flash::checks(),
          .default_shape = {4, 16, 4096, 128, 128},
          .default_dtype = Dtype::bf16,
          .max_head_size = flash::kMaxHeadSize,
      },
      argc, argv);
}
