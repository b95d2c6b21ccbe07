#include "common/simt/fiber.hpp"

#include <sys/mman.h>

#include "simt/emulator.hpp"

namespace simt {

namespace {

constexpr std::size_t kPage = 4096;

// The fibers do not own their stacks.
struct NoDeallocation {
  boost::context::stack_context allocate() { return {}; }
  void deallocate(boost::context::stack_context&) {}
};

}  // namespace

void* map_stacks(std::size_t count) {
  void* memory = mmap(nullptr, kPage + count * kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kPage, PROT_NONE) != 0) {
    throw Error("no memory for the stacks of more CUDA threads; SIMT_THREADS=1 needs fewest");
  }
  return static_cast<char*>(memory) + kPage;
}

void unmap_stacks(void* stacks, std::size_t count) {
  munmap(static_cast<char*>(stacks) - kPage, kPage + count * kStackBytes);
}

void Fiber::start(void* bottom) {
  stack_bottom_ = bottom;
  stack_size_ = kStackBytes;
  boost::context::stack_context stack;
  stack.sp = static_cast<char*>(bottom) + kStackBytes;
  stack.size = kStackBytes;
  const std::size_t stagger = index_ % 16 * 256;  // Boost rounds the start down to 256 bytes
  suspended_ = boost::context::fiber(
      std::allocator_arg,
      boost::context::preallocated(static_cast<char*>(stack.sp) - stagger, stack.size - stagger,
                                   stack),
      NoDeallocation{},
      [this](boost::context::fiber&& previous) { return run(std::move(previous)); });
}

boost::context::fiber Fiber::run(boost::context::fiber&& previous) {
  // Whoever came first from the OS thread's own stack tells us where that lies.
  const void* bottom;
  std::size_t size;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
  if (kAsan && departed_->stack_bottom_ == nullptr) {
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
