// The order in which a reader meets kernels: each is compared with the one before it.
#pragma once

#include <vector>

#include "common/driver/stage.hpp"

namespace attn::driver {

// The kernel of `kernels` that is taken at a shape; null where none is of the dtype. Throws
// std::logic_error if `pick` names none of them.
const Kernel* picked(const std::vector<Kernel>& kernels, const Pick& pick, const Shape& shape,
                     Dtype dtype);

// The rung before `kernel`, which is one of the stage's own; null before the first of all.
const Kernel* rung_before(const Kernel& kernel, const Stage& stage, const Previous& previous,
                          const Shape& shape);

}  // namespace attn::driver
