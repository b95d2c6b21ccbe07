#include "common/simt/fiber.hpp"

#include <sys/mman.h>

#include "simt/emulator.hpp"

namespace simt {

namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t stack_bytes = (with_asan || with_tsan ? 256 : 64) * 1024;

// The stacks are owned by their Fiber, and those live as long as the process.
struct NoDeallocation {
  boost::context::stack_context allocate() { return {}; }
  void deallocate(boost::context::stack_context&) {}
};

}  // namespace

Fiber::Fiber(std::size_t index, Entry entry, void* argument)
    : stack_size_(stack_bytes), index_(index), entry_(entry), argument_(argument) {
  void* memory = mmap(nullptr, page + stack_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  // The lowest page is a guard: an overflow is a fault there and not in a neighbour's frames.
  if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) {
    throw Error("no memory for the stack of one more CUDA thread; SIMT_THREADS=1 needs fewest");
  }
  stack_bottom_ = static_cast<char*>(memory) + page;
  start();
}

void Fiber::start() {
  // Boost rounds the start down to 256 bytes, so that is the step.
  boost::context::stack_context stack;
  stack.sp = static_cast<char*>(const_cast<void*>(stack_bottom_)) + stack_size_;
  stack.size = stack_size_;
  const std::size_t stagger = index_ % 16 * 256;
  suspended_ = boost::context::fiber(
      std::allocator_arg,
      boost::context::preallocated(static_cast<char*>(stack.sp) - stagger, stack.size - stagger,
                                   stack),
      NoDeallocation{},
      [this](boost::context::fiber&& previous) { return run(std::move(previous)); });
}

void Fiber::restart() {
  void* bottom = const_cast<void*>(stack_bottom_);
  munmap(bottom, stack_size_);
  if (mmap(bottom, stack_size_, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK | MAP_FIXED, -1, 0) != bottom) {
    throw Error("cannot map a CUDA thread's stack anew");
  }
  start();
}

boost::context::fiber Fiber::run(boost::context::fiber&& previous) {
  // Whoever came first from the OS thread's own stack tells us where that lies.
  const void* bottom;
  std::size_t size;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
  if (with_asan && departed_->stack_bottom_ == nullptr) {
    departed_->stack_bottom_ = bottom;
    departed_->stack_size_ = size;
  }
  departed_->suspended_ = std::move(previous);
  Fiber& next = entry_(argument_, *this);
  departed_ = this;
  __sanitizer_start_switch_fiber(nullptr, next.stack_bottom_, next.stack_size_);
  return std::move(next.suspended_);
}

}  // namespace simt
