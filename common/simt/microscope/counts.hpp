// What a launch asked of the machine, per instruction and in all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/simt/microscope/trace.hpp"
#include "simt/emulator.hpp"

namespace simt::microscope {

enum class Space : uint8_t { none, global, shared };

// One instruction of the kernel. What does not concern it is zero.
struct Count {
  Kind kind = Kind::block;
  Space space = Space::none;
  int bytes = 0;                       // per lane
  uint64_t warps = 0;                  // times that a warp executed it: requests
  uint64_t lanes = 0;                  // times that a lane did
  uint64_t asked = 0;                  // bytes, what several lanes of a warp ask for counted once
  uint64_t sectors = 0;                // global memory
  uint64_t wavefronts = 0, ideal = 0;  // shared memory
  int contention = 0;                  // atomics: the most lanes of a warp at one address

  void operator+=(const Count& other);
};

// Counts by place, of each space.
class Counts {
 public:
  Count& at(Place place, Space space);
  void operator+=(const Counts& other);

  template <class F>
  void for_each(F f) const {  // f(place, count)
    for (const auto& counts : {&other_, &global_, &shared_})
      for (Place place = 0; place < counts->size(); ++place)
        if ((*counts)[place].warps != 0) f(place, (*counts)[place]);
  }

 private:
  std::vector<Count> other_, global_, shared_;
};

// A launch that was counted.
struct CountedLaunch {
  const void* kernel;
  Site site;
  dim3 grid, block;
  std::size_t shared_bytes;  // of a block
  Counts counts;
  uint64_t read_bytes, written_bytes;  // of global memory, each byte once
  uint32_t most_atomics;               // that met at one address
};

}  // namespace simt::microscope
