// What was counted, for people: sums of a launch, and the lines of the source with their part.
#pragma once

#include <string>
#include <vector>

#include "common/simt/microscope/counts.hpp"

namespace simt::microscope {

// A launch's sums. Requests are executions by a warp; bytes asked are those that the warp's lanes
// ask for, each once per request.
struct Work {
  struct Global {
    uint64_t requests = 0, sectors = 0, asked = 0;
  };
  struct Shared {
    uint64_t requests = 0, wavefronts = 0, ideal = 0;
  };
  Global loads, stores;  // of loads: by cp.async too
  Global atomics;
  uint64_t atomic_lanes = 0;
  int contention = 0;                                 // the most lanes of a warp at one address
  Shared shared_loads, shared_stores, shared_copies;  // the latter by cp.async

  // By warps.
  uint64_t barriers = 0, syncwarps = 0, shuffles = 0, votes = 0;
  uint64_t products = 0;  // mma.sync
  double flops = 0;       // of those

  void add(const Count& count);
  uint64_t wavefronts() const {
    return shared_loads.wavefronts + shared_stores.wavefronts + shared_copies.wavefronts;
  }
  uint64_t ideal() const { return shared_loads.ideal + shared_stores.ideal + shared_copies.ideal; }
};

// A line of the kernel and what was counted there. Code that stands inside of the emulator's or
// common/ptx's functions belongs to the line that called them.
struct LineWork {
  std::string file;
  int line;
  Count count;  // of one kind, space and width
};

struct LaunchReport {
  std::string kernel;  // without namespaces and template arguments
  std::string full_name;
  dim3 grid, block;
  std::size_t shared_bytes;
  uint64_t read_bytes, written_bytes;
  uint32_t most_atomics;
  Work work;
  std::vector<LineWork> lines;  // by file and line
};

// Reads the program's debug information.
std::vector<LaunchReport> report(const std::vector<CountedLaunch>& launches);

// "load", "mma.bf16"
const char* to_string(Kind kind);

// Every source file's lines between the first and the last with a count, each with its counts.
void print_lines(const LaunchReport& launch);

}  // namespace simt::microscope
