// A small host stage to try the driver on: the causal product, right or wrong in one chosen way.
#pragma once

#include "common/driver/stage.hpp"

namespace attn::driver {

enum class Fault { none, wrong_element, unwritten_element, nan, throws };

Stage toy_stage(Fault fault = Fault::none);

}  // namespace attn::driver
