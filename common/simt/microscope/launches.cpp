#include "common/simt/microscope/launches.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "common/simt/microscope/device_memory.hpp"

namespace simt::microscope {

namespace {
bool is_counting = false;
std::vector<CountedLaunch> launches;
std::mutex mutex;  // several workers add to a launch
}  // namespace

void start_counting() { is_counting = true; }

std::vector<CountedLaunch> stop_counting() {
  is_counting = false;
  return std::exchange(launches, {});
}

bool counting() { return is_counting; }

void begin_launch(const void* kernel, Site site, dim3 grid, dim3 block) {
  if (!is_counting) return;
  forget_touched();
  launches.push_back({kernel, site, grid, block, 0, {}, 0, 0, 0});
}

void add_to_launch(const Counts& counts, std::size_t shared_bytes, uint32_t most_atomics) {
  const std::lock_guard lock(mutex);
  CountedLaunch& launch = launches.back();
  launch.counts += counts;
  launch.shared_bytes = std::max(launch.shared_bytes, shared_bytes);
  launch.most_atomics = std::max(launch.most_atomics, most_atomics);
}

void end_launch() {
  if (!is_counting) return;
  const Touched bytes = touched();
  launches.back().read_bytes = bytes.read;
  launches.back().written_bytes = bytes.written;
}

}  // namespace simt::microscope
