// What a stage tells the driver about itself. The driver (driver.hpp) does the rest: it parses the
// command line, verifies, times, reports and records.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/compare.hpp"
#include "common/driver/operator.hpp"
#include "common/driver/tensors.hpp"
#include "common/shape.hpp"

namespace attn::driver {

// One thing a stage can run. Its speedup is over the rung before, which is the kernel of its dtype
// before it in the stage's list; the rung before the first is what the stage before picks.
struct Kernel {
  std::string name;  // "double_buffer": as printed and as --kernel takes it
  Dtype dtype;
  std::function<void(const Tensors&)> run;  // enqueues on the default stream
  std::function<Cost(const Shape&)> cost;   // what this kernel asks of memory and arithmetic
  // The bound on its relative error; empty: that of its dtype.
  std::optional<double> tolerance = {};
  // As cost, where the operator is causal; empty: cost.
  std::function<Cost(const Shape&)> causal_cost = {};
  // Why it cannot run on the current device ("needs compute capability 9.0"), or empty: it can.
  std::function<std::string()> why_not = {};
};

inline double error_bound(const Kernel& kernel) {
  return kernel.tolerance.value_or(tolerance(kernel.dtype));
}

// What a check found, and in which output.
struct Finding {
  Finding(const Comparison& comparison, OutputSpec output = {"o", Axes::BHLM})
      : comparison(comparison), output(std::move(output)) {}
  Comparison comparison;
  OutputSpec output;
};

inline Finding worse(const Finding& a, const Finding& b) {
  return b.comparison.rel() > a.comparison.rel() ? b : a;
}

// A check of something that is no Kernel: a layer, an identity between operators.
struct Check {
  std::string name;
  double tolerance;              // on the relative error
  std::function<Finding()> run;  // on the device
  // Of one kernel and dtype only, and left out where others are asked for; empty: of the stage.
  std::string kernel = {};
  std::optional<Dtype> dtype = {};
};

// The kernel that a stage takes at a shape, by name; empty: the last of the dtype.
using Pick = std::function<std::string(const Shape&, Dtype)>;

// The stage before, where it computes the same: what it picks is timed beside the stage's own
// kernels.
struct Previous {
  std::string stage = {};  // "04_double_buffer"; empty: there is none
  std::vector<Kernel> kernels = {};
  Pick pick = {};
};

// Kernels of another operator, to be timed beside the stage's own at equal shapes, on operands of
// their own. How they compare is printed and recorded as such, never as a like-for-like speedup.
struct OtherOperator {
  Operator op = {};
  std::vector<Kernel> kernels = {};  // one per dtype at most, named with their stage
};

// A stage's operator on inputs of one distribution.
struct Variant {
  Operator op;
  Previous previous = {};
  // What stages before pick, where they compute something else.
  std::vector<OtherOperator> others = {};
};

struct Stage {
  std::string name;  // "03_shared_mem"
  std::string idea;  // one line
  Operator op;
  std::vector<Kernel> kernels;             // this stage's own, in the order of its steps
  Previous previous = {};                  // as Variant::previous, for `op`
  std::vector<OtherOperator> others = {};  // as Variant::others, beside `op`
  std::vector<Variant> variants = {};  // `op` on further inputs; all are called by a distribution
  Pick pick = {};                      // as its dispatcher does
  std::vector<Check> checks = {};
  Shape default_shape = {16, 8, 4096, 64, 64};
  Dtype default_dtype = Dtype::f32;  // a kernel of it must be there
  bool on_host = false;              // stage 01: host memory, timed on every machine
  int64_t max_head_size = 512;       // the largest E and M that its kernels take
};

}  // namespace attn::driver
