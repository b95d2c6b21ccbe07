#include "common/driver/ladder.hpp"

#include <stdexcept>

namespace attn::driver {

const Kernel* picked(const std::vector<Kernel>& kernels, const Pick& pick, const Shape& shape,
                     Dtype dtype) {
  std::vector<const Kernel*> candidates;
  for (const Kernel& kernel : kernels)
    if (kernel.dtype == dtype) candidates.push_back(&kernel);
  if (candidates.empty()) return nullptr;
  if (!pick) return candidates.back();
  const std::string name = pick(shape, dtype);
  for (const Kernel* kernel : candidates)
    if (kernel->name == name) return kernel;
  throw std::logic_error("picked is " + name + ", of which there is no " + to_string(dtype) +
                         " kernel");
}

const Kernel* rung_before(const Kernel& kernel, const Stage& stage, const Previous& previous,
                          const Shape& shape) {
  const Kernel* before = picked(previous.kernels, previous.pick, shape, kernel.dtype);
  for (const Kernel& own : stage.kernels) {
    if (&own == &kernel) break;
    if (own.dtype == kernel.dtype) before = &own;
  }
  return before;
}

}  // namespace attn::driver
