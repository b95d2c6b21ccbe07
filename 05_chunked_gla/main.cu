#include <vector>

#include "01_cpu_reference/operators.hpp"
#include "04_double_buffer/driver_kernels.cuh"
#include "05_chunked_gla/driver_kernels.cuh"
#include "common/driver/driver.hpp"

namespace {

// The operator on every other kind of gate. Without gates and unscaled it is the causal product,
// and the kernel that stage 04 picks can be timed beside this stage's.
std::vector<attn::driver::Variant> variants() {
  using namespace attn;
  return {
      {reference::gla_operator(reference::kStrongGates)},
      {reference::gla_operator(reference::kExponentialGates)},
      {reference::gla_operator(reference::kResettingGates)},
      {reference::gla_operator(reference::kNoGates),
       {"04_double_buffer", double_buffer::driver_kernels(), double_buffer::picked_kernel}},
  };
}

}  // namespace

int main(int argc, char** argv) {
  return attn::driver::run(
      {
          .name = "05_chunked_gla",
          .idea = "gated linear attention: the recurrence, then chunks of matrix products",
          .op = attn::reference::gla_operator(attn::reference::kMildGates),
          .kernels = attn::chunked_gla::driver_kernels(),
          .variants = variants(),
          .pick = attn::chunked_gla::picked_kernel,
          .checks = attn::chunked_gla::checks(),
          .default_shape = {8, 32, 4096, 64, 64},
          .default_dtype = attn::Dtype::bf16,
      },
      argc, argv);
}
