// The command line of every stage. Bad input is found here, before any work, and gets one line that
// names the flag and says what would be accepted.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/driver/stage.hpp"

namespace attn::driver {

struct Options {
  std::vector<Shape> shapes;  // of --shape; empty: the stage's default
  // Of --dtype; not given: the stage's default, and behind it, for --verify-only, its others. Of
  // each there is a kernel that --kernel selects.
  std::vector<Dtype> dtypes;
  std::string inputs;  // of --inputs; empty: not given
  uint64_t seed = 0;
  std::string kernel;   // empty: all
  std::string results;  // empty: recorded nowhere
  bool verify_only = false;
  bool per_line = false;
  bool list = false;
  std::vector<std::string> benchmark_flags;  // as given, each begins with --benchmark_
  std::string help;                          // of --help: the text to print
};

// What the user asked for cannot be done: exit status 2.
struct BadInput : std::runtime_error {
  using std::runtime_error::runtime_error;
};

Options parse_options(const Stage& stage, int argc, char** argv);

// The stage's own kernels of one of options.dtypes that run with these options; never empty.
std::vector<const Kernel*> selected_kernels(const Stage& stage, const Options& options,
                                            Dtype dtype);

}  // namespace attn::driver
