// From addresses of code to the source: by addr2line, which every compiler comes with, run once.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace simt::microscope {

struct Frame {
  std::string function;  // as C++ spells it, with its namespaces; its parameters left out
  std::string file;
  int line;  // 0: not known
};

// For each address of this program the function that holds it, and before it, the innermost first,
// those that were written out inline there. Empty where addr2line is not installed.
std::map<uintptr_t, std::vector<Frame>> frames_of(const std::vector<uintptr_t>& addresses);

}  // namespace simt::microscope
