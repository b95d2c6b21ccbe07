// Work in place of time: what each kernel asks of memory, counted (docs/microscope.md). Only in the
// build with the microscope, kMicroscope.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/driver/environment.hpp"
#include "common/driver/stage.hpp"

namespace attn::driver {

struct WorkPlan {
  std::vector<const Kernel*> kernels;
  std::vector<Shape> shapes;
  Dtype dtype;
  uint64_t seed;
  bool per_line;        // the source with the counts of each line, too
  std::string results;  // the file to append records to; empty: none
};

// Runs every kernel once at every shape, and prints a table per shape.
void count_work(const Stage& stage, const Operator& op, const WorkPlan& plan,
                const Environment& environment);

}  // namespace attn::driver
