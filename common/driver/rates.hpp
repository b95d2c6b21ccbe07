// What this machine can do, measured just now: the yardsticks of the table.
#pragma once

namespace attn::driver {

struct Rates {
  double copy_bytes_per_s;  // reads and writes together
  double fma_flops_per_s;   // fp32, a fused multiply-add counts as two; 0: not measured
  double mma_flops_per_s;   // bf16 by mma.sync on tensor cores; 0: none, or not measured
};

Rates measure_device_rates();
Rates measure_host_rates();  // copies only, on all cores

}  // namespace attn::driver
