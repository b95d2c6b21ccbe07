#include "common/simt/microscope/trace.hpp"

namespace simt::microscope {

void Lane::compact() {
  if (begin_ == 0) return;
  std::copy(events_.get() + begin_, events_.get() + end_, events_.get());
  end_ -= begin_;
  begin_ = 0;
}

void Lane::grow() {
  constexpr uint32_t kLeast = 2048;
  capacity_ = std::max(kLeast, 2 * capacity_);
  auto larger = std::make_unique_for_overwrite<Event[]>(capacity_);
  std::copy(events_.get() + begin_, events_.get() + end_, larger.get());
  end_ -= begin_;
  begin_ = 0;
  events_ = std::move(larger);
}

uint32_t replaying::next_group(const std::array<const Event*, 32>& heads, uint32_t lanes) {
  const auto mask_of = [&](int lane) { return uint32_t(heads[lane]->address) & lanes; };
  // Lanes that meet wait for all of their mask that are still running.
  uint32_t free = 0;
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    bool all_there = true;
    if (lanes_meet(heads[lane]->kind)) {
      for (uint32_t others = mask_of(lane); others != 0; others &= others - 1) {
        const int other = std::countr_zero(others);
        all_there &= lanes_meet(heads[other]->kind) && mask_of(other) == mask_of(lane);
      }
    }
    if (all_there) free |= 1u << lane;
  }
  if (free == 0) free = lanes;

  int first = std::countr_zero(free);
  for (uint32_t rest = free; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (heads[lane]->place != heads[first]->place &&
        stands_before(heads[lane]->place, heads[first]->place)) {
      first = lane;
    }
  }
  if (lanes_meet(heads[first]->kind)) return mask_of(first) & free;
  uint32_t group = 0;
  for (uint32_t rest = free; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (heads[lane]->place == heads[first]->place) group |= 1u << lane;
  }
  return group;
}

}  // namespace simt::microscope
