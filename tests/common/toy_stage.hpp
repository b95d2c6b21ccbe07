// A small host stage to try the driver on: the causal product, right or wrong in one chosen way.
#pragma once

#include "common/driver/stage.hpp"

namespace attn::driver {

enum class Fault { none, wrong_element, unwritten_element, nan, throws };

Stage toy_stage(Fault fault = Fault::none);

// The same in bf16, summed in float; the result times `factor`.
Kernel toy_bf16_kernel(float factor = 1);

// The toy stage with inputs "normal", which it had, and "ones": v is 1 throughout.
Stage toy_stage_with_variants();

}  // namespace attn::driver
