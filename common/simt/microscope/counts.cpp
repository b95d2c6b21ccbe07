#include "common/simt/microscope/counts.hpp"

#include <algorithm>

namespace simt::microscope {

void Count::operator+=(const Count& other) {
  kind = other.kind;
  space = other.space;
  bytes = other.bytes;
  warps += other.warps;
  lanes += other.lanes;
  asked += other.asked;
  sectors += other.sectors;
  wavefronts += other.wavefronts;
  ideal += other.ideal;
  contention = std::max(contention, other.contention);
}

Count& Counts::at(Place place, Space space) {
  auto& counts = space == Space::global ? global_ : (space == Space::shared ? shared_ : other_);
  if (place >= counts.size()) counts.resize(place + 1);
  return counts[place];
}

void Counts::operator+=(const Counts& other) {
  other.for_each([&](Place place, const Count& count) { at(place, count.space) += count; });
}

}  // namespace simt::microscope
