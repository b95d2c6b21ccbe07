// The part of the microscope that the emulator calls: a block tells it which thread runs and where
// lanes meet; the hooks (hooks.cpp) tell it every load and store.
//
// In builds without the microscope all of it is empty, and costs nothing.
#pragma once

#include <cstddef>

#include "common/simt/shared_region.hpp"
#include "simt/emulator.hpp"

#ifndef SIMT_MICROSCOPE

namespace simt::microscope {
struct Recorder {
  Recorder(const SharedRegion&, const SharedRegion&) {}
  void begin_block(int) {}
  void end_block(std::size_t) {}
  void end_launch() {}
  void enter(int) {}
  void thread_ended(int) {}
  void mute(bool) {}
  void barrier(unsigned, const void*) {}
  void named_barrier(unsigned, const void*) {}
  void collective(const WarpRequest&, const void*) {}
  void copy(const AsyncCopy&, const void*) {}
};
}  // namespace simt::microscope

#else

#include <memory>

#include "common/simt/microscope/counts.hpp"
#include "common/simt/microscope/device_memory.hpp"
#include "common/simt/microscope/memory_model.hpp"

namespace simt::microscope {
// Of one block at a time: each of the emulator's workers has one.
class Recorder {
 public:
  Recorder(const SharedRegion& static_shared, const SharedRegion& dynamic_shared);

  void begin_block(int threads);
  void end_block(std::size_t shared_bytes);
  void end_launch();  // adds what was counted to the launch

  void enter(int thread);  // the thread that runs from here on
  void thread_ended(int thread);
  void mute(bool muted);  // while the emulator itself runs instrumented code

  // A thread's arrival. `code`: the return address, which names the place.
  void barrier(unsigned mask, const void* code) { meet(Kind::barrier, mask, code); }
  void named_barrier(unsigned mask, const void* code) { meet(Kind::named_barrier, mask, code); }
  void collective(const WarpRequest& request, const void* code);
  void copy(const AsyncCopy& copy, const void* code);

  // Called by the hooks, for the running thread; null when nothing is to be counted.
  static Recorder* current() { return current_; }
  void access(Kind kind, uint64_t address, int bytes, const void* code) {
    if (is_shared(address) || is_device(address)) record(kind, address, bytes, code);
  }
  void basic_block(const void* code) { record(Kind::block, 0, 0, code); }
  void enter_call(const void* code) { lane_->context = place_of(lane_->context, code); }
  void leave_call() { lane_->context = parent_of(lane_->context); }

 private:
  bool is_shared(uint64_t address) const {
    return address - static_begin_ < static_size_ || address - dynamic_begin_ < dynamic_size_;
  }
  void meet(Kind kind, unsigned mask, const void* code);
  void record(Kind kind, uint64_t address, int bytes, const void* code) {
    if (!lane_->has_room()) make_room();
    lane_->add({address, place_of(lane_->context, code), uint16_t(bytes), kind});
  }
  void make_room();
  void replay_warp(int warp);

  // What an instruction of the warp cost.
  void count(const std::array<const Event*, 32>& events, uint32_t lanes);
  void count_shared(const Event& event, const WarpAccess& access);
  void count_global(const Event& event, const WarpAccess& access);
  void count_copy(const Event& event, const std::array<const Event*, 32>& events, uint32_t lanes);
  Count& one_more(const Event& event, Kind kind, Space space, uint32_t lanes);
  void note_touched(Kind kind, const WarpAccess& access);

  static inline constinit thread_local Recorder* current_ = nullptr;

  const uint64_t static_begin_, static_size_, dynamic_begin_, dynamic_size_;  // shared memory
  std::unique_ptr<Lane[]> lanes_;                                             // one per thread
  Lane* lane_ = nullptr;  // the running thread's
  int threads_ = 0;
  bool counting_ = false;
  Counts counts_;
  uint32_t most_atomics_ = 0;
  std::size_t shared_bytes_ = 0;
};

}  // namespace simt::microscope

#endif
