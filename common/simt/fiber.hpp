// A stack of its own, and the execution that is suspended on it (Boost.Context).
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <utility>

#include "common/simt/sanitizers.hpp"

namespace simt {

constexpr std::size_t kStackBytes = (kAsan ? 256 : 64) * 1024;

// Memory for `count` stacks, one behind the other. Under them lies a guard page, where an overflow
// (of the first stack) is a fault.
void* map_stacks(std::size_t count);
void unmap_stacks(void* stacks, std::size_t count);

// One cache line: a block touches those of all its threads at every barrier.
class alignas(64) Fiber {
 public:
  using Entry = Fiber& (*)(void* argument, Fiber& self);

  // The OS thread's own stack, to switch away from and back to.
  Fiber() = default;

  // `index` staggers the stacks' starts: at equal offsets the frames of all threads would compete
  // for the same cache sets.
  Fiber(std::size_t index, Entry entry, void* argument)
      : index_(index), entry_(entry), argument_(argument) {}

  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Begins on this stack: the first switch to the fiber calls `entry`. If that returns, the fiber
  // has ended, the one returned continues, and this one may start again.
  void start(void* stack);

  // Suspends the running fiber `from` and continues `to`; returns when `from` is continued.
  static void switch_to(Fiber& from, Fiber& to) {
    departed_ = &from;
    __sanitizer_start_switch_fiber(&from.fake_stack_, to.stack_bottom_, to.stack_size_);
    boost::context::fiber previous = std::move(to.suspended_).resume();
    __sanitizer_finish_switch_fiber(from.fake_stack_, nullptr, nullptr);
    departed_->suspended_ = std::move(previous);
  }

 private:
  boost::context::fiber run(boost::context::fiber&& previous);

  static inline constinit thread_local Fiber* departed_ = nullptr;  // whom the last switch left

  boost::context::fiber suspended_;  // empty while it runs
  const void* stack_bottom_ = nullptr;
  std::size_t stack_size_ = 0;
  void* fake_stack_ = nullptr;  // AddressSanitizer's
  std::size_t index_ = 0;
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
};

}  // namespace simt
