// What the lanes of a warp did, one after the other, laid side by side: the warp's instructions.
//
// The emulator runs a thread until it must wait, so a warp's 32 accesses of one instruction come far
// apart. Each lane writes down what it does, control flow included. replay() then walks all 32
// records as a warp executes: lanes whose next event is at the same place take it together; where
// they differ, those that stand first in the code go first, and the others wait for them there.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>

#include "common/simt/microscope/places.hpp"

namespace simt::microscope {

enum class Kind : uint8_t {
  block,  // the beginning of a basic block: control flow
  load,
  store,
  atomic,
  copy_load,   // cp.async: what it reads of global memory
  copy_store,  // and writes to shared memory; both are one event, a copy_load
  // From here on the lanes of a mask meet.
  barrier,
  named_barrier,
  syncwarp,
  shuffle,
  vote,
  ldmatrix,
  mma_bf16,
  mma_fp16,
  mma_tf32,
  other,
};
constexpr bool lanes_meet(Kind kind) { return kind >= Kind::barrier; }

struct Event {
  uint64_t address;  // of a copy: of both (copy_addresses); where lanes meet: their mask
  Place place;
  uint16_t bytes;
  Kind kind;
};
static_assert(sizeof(Event) == 16);

// A copy's two addresses in one number: in global memory, 0 if it reads nothing, and from the
// beginning of the block's shared memory.
inline uint64_t copy_addresses(uint64_t global, uint64_t shared) {
  return shared / 4 << 48 | global;
}
inline uint64_t copy_from(uint64_t both) { return both & 0xffffffffffff; }
inline uint64_t copy_to(uint64_t both) { return (both >> 48) * 4; }

// One thread's events that have not been replayed yet.
class Lane {
 public:
  void begin() {
    begin_ = end_ = 0;
    ended_ = false;
    context = kRoot;
  }
  void end() { ended_ = true; }
  bool ended() const { return ended_; }

  // False if it is full: replay, and if that has not helped, let other lanes catch up, or grow().
  bool has_room() {
    if (end_ < capacity_) return true;
    if (2 * begin_ >= capacity_) compact();  // rarely, so that it costs little
    return end_ < capacity_;
  }
  void grow();
  void add(const Event& event) { events_[end_++] = event; }

  uint32_t size() const { return end_ - begin_; }
  const Event* events() const { return events_.get() + begin_; }
  void drop(uint32_t count) { begin_ += count; }

  Place context = kRoot;  // of the calls that the thread is in

 private:
  void compact();

  std::unique_ptr<Event[]> events_;
  uint32_t begin_ = 0, end_ = 0, capacity_ = 0;
  bool ended_ = false;
};

// Calls visit(events, lanes) for each instruction that lanes of the warp took together: events[i]
// is that of lane i. Stops where it cannot be known what a lane does next, because it has not got
// there yet.
template <class Visit>
void replay(Lane* warp, int size, Visit visit);

// --- implementation -------------------------------------------------------------------------------

namespace replaying {
// Which of the lanes go on next, given the events that they are at.
uint32_t next_group(const std::array<const Event*, 32>& heads, uint32_t lanes);
}  // namespace replaying

template <class Visit>
void replay(Lane* warp, int size, Visit visit) {
  std::array<const Event*, 32> heads;
  for (;;) {
    uint32_t lanes = 0;
    uint32_t steps = ~0u;
    for (int i = 0; i < size; ++i) {
      if (warp[i].size() == 0) {
        if (!warp[i].ended()) return;
        continue;
      }
      lanes |= 1u << i;
      heads[i] = warp[i].events();
      steps = std::min(steps, warp[i].size());
    }
    if (lanes == 0) return;
    // As long as all are at the same place; then one step of some.
    const int first = std::countr_zero(lanes);
    uint32_t done = 0;
    for (; done < steps; ++done) {
      const Place place = heads[first]->place;
      bool together = true;
      for (uint32_t rest = lanes; rest != 0; rest &= rest - 1)
        together &= heads[std::countr_zero(rest)]->place == place;
      if (!together) break;
      if (heads[first]->kind != Kind::block) visit(heads, lanes);
      for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) ++heads[std::countr_zero(rest)];
    }
    uint32_t group = 0;
    if (done < steps) {
      group = replaying::next_group(heads, lanes);
      const int leader = std::countr_zero(group) % 32;  // never empty
      if (heads[leader]->kind != Kind::block) visit(heads, group);
    }
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      warp[lane].drop(done + (group >> lane & 1));
    }
  }
}

}  // namespace simt::microscope
