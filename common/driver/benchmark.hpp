// Timing, by Google Benchmark: it owns the command line's --benchmark_ flags, the repetitions and
// the files of --benchmark_out; the driver owns the clock (stopwatch.hpp) and the report.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/driver/stage.hpp"

namespace attn::driver {

// What --benchmark_ flags say about how often to run what.
struct BenchmarkPlan {
  std::string filter;      // --benchmark_filter; empty: everything
  double seconds = 1;      // --benchmark_min_time=<N>: to spend on one kernel at one shape
  int64_t iterations = 0;  // --benchmark_min_time=<N>x; 0: as many as the seconds allow
  int repetitions = 0;     // --benchmark_repetitions; 0: 5 to 30, as the seconds allow

  bool selects(const std::string& name) const;  // may throw BadInput
};

// Hands the flags to Google Benchmark. Throws BadInput at one that it does not know.
BenchmarkPlan parse_benchmark_flags(const std::vector<std::string>& flags, bool on_host);

struct Timing {
  double median_ms, min_ms, max_ms;
  int samples;
};

// One kernel at one shape.
struct BenchmarkJob {
  std::string name;  // "04_double_buffer/double_buffer/16,8,4096,64,64"
  const Kernel* kernel;
  const Operator* op;
  Shape shape;
};

// The timing of each job, in their order, all kernels of an operator on the same inputs.
std::vector<Timing> run_benchmarks(const std::vector<BenchmarkJob>& jobs, const BenchmarkPlan& plan,
                                   Dtype dtype, uint64_t seed, bool on_host);

}  // namespace attn::driver
