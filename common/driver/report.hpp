// What a run found: one row per kernel and shape, printed as a table and recorded.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/compare.hpp"
#include "common/driver/benchmark.hpp"
#include "common/driver/environment.hpp"
#include "common/driver/rates.hpp"
#include "common/driver/results.hpp"
#include "common/driver/stage.hpp"

namespace attn::driver {

struct Row {
  const Kernel* kernel;
  std::string stage;   // that it belongs to
  const Operator* op;  // the stage's, or the other one
  Shape shape;
  bool picked;           // the stage's dispatcher takes it at this shape
  const Kernel* before;  // the rung before; null: there is none
  Comparison error;
  Timing timing;
  // How many times faster than the rung before; absent if that was not timed.
  std::optional<double> over_before = {};
  // The first row of the shape, and how many times faster than that; absent for itself.
  const Kernel* first = {};
  std::optional<double> over_first = {};
};

// Fills in the speedups of the rows of operator `op`, the stage's. Those of other operators have
// none: they are not alike.
void compare_rungs(std::vector<Row>& rows, const Operator& op);

void print_table(const Operator& op, Dtype dtype, const std::vector<Row>& rows, const Rates& rates);

// A record for each row of operator `op`; what was timed of another operator at the same shape is in
// each, as "others".
std::vector<Record> make_records(const Stage& stage, const Operator& op, Dtype dtype,
                                 const std::vector<Row>& rows, const Rates& rates,
                                 const Environment& environment);

// For machines that cannot time the stage: what was recorded on one that could, by the .jsonl files
// of `folder`.
void print_recorded(const Stage& stage, const std::filesystem::path& folder);

}  // namespace attn::driver
