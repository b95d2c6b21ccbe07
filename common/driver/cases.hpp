// The shapes that every stage must survive: around and between the sizes of tiles, warps and
// blocks, and more slices (b, h) than two of a grid's dimensions hold.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "common/shape.hpp"
#include "common/tensor_view.cuh"

namespace attn::driver {

struct Case {
  Shape shape;
  Layout layout;

  bool operator==(const Case&) const = default;
};

// Every length with every pair of head sizes, and more than 65535 slices in several ways.
std::vector<Case> whole_grid();

inline bool has_many_slices(const Shape& shape) { return shape.B * shape.H > 65535; }

// What to verify, the most telling first.
struct Plan {
  std::vector<Case> cases;
  // After so many cases it may stop once so many seconds have passed: a kernel that is slow to
  // emulate is verified on fewer shapes.
  size_t at_least = std::numeric_limits<size_t>::max();
  double seconds = std::numeric_limits<double>::infinity();
};

// As much of the grid as `budget` multiply-adds allow: every size of each axis, more than 65535
// slices, every pair of head sizes, every length, then a seeded draw of the rest.
Plan covering_plan(double budget, uint64_t seed);

// The plan without the cases of head sizes above `limit`.
Plan with_head_sizes_up_to(int64_t limit, Plan plan);

// The plan's cases dealt in turn to `hands` plans, which share its time.
std::vector<Plan> deal(const Plan& plan, size_t hands);

// The plan for `kernel_count` kernels on this machine: the whole grid on a GPU, else (or if the
// environment sets ATTN_VERIFY_BUDGET, in multiply-adds) what takes some seconds.
Plan verification_plan(bool on_host, size_t kernel_count, uint64_t seed);

}  // namespace attn::driver
