// Verification: kernels against the float64 reference, over shapes chosen to break them.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/driver/stage.hpp"

namespace attn::driver {

struct Case {
  Shape shape;
  Layout layout;

  bool operator==(const Case&) const = default;
};

// Every length with every pair of head sizes, and more than 65535 slices (b, h).
std::vector<Case> whole_grid();

// As much of the grid as `budget` multiply-adds allow, the most telling first: every size of each
// axis, more than 65535 slices, every pair of head sizes, every length, then a seeded draw.
std::vector<Case> covering_subset(double budget, uint64_t seed);

// The cases for `kernel_count` kernels on this machine: the whole grid on a GPU, else (or if the
// environment sets ATTN_VERIFY_BUDGET, in multiply-adds) what takes some seconds.
std::vector<Case> verification_cases(bool on_host, size_t kernel_count, uint64_t seed);

// A kernel's result is wrong. The message says which, where, and the first wrong element.
struct WrongResult : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws WrongResult, which begins with `place`, unless the comparison of `output` passes.
void require_right(const Comparison& comparison, const OutputSpec& output, double tolerance,
                   const std::string& place);

// Runs kernels on seeded inputs and compares everything they write.
struct Verifier {
  const Operator& op;
  Dtype dtype;
  uint64_t seed;
  bool on_host;

  // The comparison of each kernel's outputs at each case: result[case][kernel].
  // Throws WrongResult at the first that does not pass.
  std::vector<std::vector<Comparison>> run(const std::vector<const Kernel*>& kernels,
                                           const std::vector<Case>& cases) const;

  // The memory that run() needs for one case.
  double device_bytes(const Shape& shape) const;
  double host_bytes(const Shape& shape) const;
};

}  // namespace attn::driver
