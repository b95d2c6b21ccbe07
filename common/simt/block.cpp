#include "common/simt/block.hpp"

#include <cstdio>
#include <exception>

#include "simt/device_functions.hpp"

constinit thread_local uint3 threadIdx{0, 0, 0};
constinit thread_local uint3 blockIdx{0, 0, 0};
constinit thread_local dim3 blockDim{1, 1, 1};
constinit thread_local dim3 gridDim{1, 1, 1};
const int warpSize = 32;

#ifdef SIMT_MSAN
// Only what the kernels themselves, and the runtime for them, leave unwritten is of interest.
extern "C" const char* __msan_default_options() { return "poison_in_malloc=0:poison_in_free=0"; }
#endif

namespace simt {

char tsan_launch_tag;

namespace {

constexpr std::size_t kStaticSharedCapacity = 48 * 1024;
constexpr std::size_t kDynamicSharedCapacity = 227 * 1024;

uint64_t splitmix64(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

Block::Block()
    : threads_(std::make_unique<Thread[]>(kMaxThreads)),
      static_shared_(kStaticSharedCapacity),
      dynamic_shared_(kDynamicSharedCapacity),
      recorder_(static_shared_, dynamic_shared_),
      tsan_main_(tsan::current()) {
  next_.fill(0);
  at_sanitizer_report([] {
    if (running_ != nullptr) std::fprintf(stderr, "%s\n", running_->describe_running().c_str());
  });
}

Block::AsScheduler::AsScheduler(const Block& block) : block_(block) {
  tsan::switch_to(block.tsan_main_);
}

Block::AsScheduler::~AsScheduler() { tsan::switch_to(block_.threads_[block_.current_].tsan_fiber); }

std::string Block::run(const Launch& launch, uint64_t index) {
  begin(launch, index);
  // Threads pass the turn among themselves; it comes back here when none can take it.
  for (int id; !failed_ && (id = take_next()) >= 0;) continue_with(main_, id);
  if (!failed_ && ended_ < launch.threads) {
    failed_ = true;
    error_ = describe_deadlock();
  }
  if (failed_) {
    cancel();
    tsan::acquire(&tsan_launch_tag);  // a thread has written the error's text
  } else {
    error_ = damaged_shared_memory();
    failed_ = !error_.empty();
  }
  end();
  return std::move(error_);
}

void Block::begin(const Launch& launch, uint64_t index) {
  launch_ = &launch;
  running_ = this;
  index_.x = unsigned(index % launch.grid.x);
  index_.y = unsigned(index / launch.grid.x % launch.grid.y);
  index_.z = unsigned(index / launch.grid.x / launch.grid.y);
  blockIdx = index_;
  blockDim = launch.block;
  gridDim = launch.grid;

  if (indexed_for_.x != launch.block.x || indexed_for_.y != launch.block.y ||
      indexed_for_.z != launch.block.z) {
    indexed_for_ = launch.block;
    for (int i = 0; i < launch.threads; ++i) {
      const unsigned xy = launch.block.x * launch.block.y;
      threads_[i].index = {i % launch.block.x, i / launch.block.x % launch.block.y, i / xy};
    }
  }

  if constexpr (kTsan) {
    // Fresh in every block: what a fiber or a tag has seen before would order this block's threads
    // after those of another, and a stack that others have used would seem to be raced for.
    tsan_tags_ = std::make_unique<uint64_t[]>(launch.threads + kNamedBarriers);
    tsan_stacks_ = map_stacks(launch.threads);
    for (int i = 0; i < launch.threads; ++i) {
      if (i == int(fibers_.size())) {
        fibers_.push_back(std::make_unique<Fiber>(i, fiber_main, this));
      }
      fibers_[i]->start(static_cast<char*>(tsan_stacks_) + i * kStackBytes);
      threads_[i].fiber = fibers_[i].get();
      threads_[i].tsan_fiber = tsan::create();
      tsan::name(threads_[i].tsan_fiber, name_of(threads_[i].index).c_str());
    }
  }

  random_ = launch.seed ^ (index * 0xd1342543de82ef95u);
  ended_ = at_barrier_ = round_size_ = round_position_ = 0;
  divergent_ = failed_ = false;
  for (NamedBarrier& barrier : named_barriers_) barrier = {};
  error_.clear();
  static_type_ = nullptr;
  recorder_.begin_block(launch.threads);
  make_all_ready();
}

void Block::end() {
  for (int i = 0; i < launch_->threads; ++i) {
    Thread& thread = threads_[i];
    // Copies that nobody waited for are dropped: CUDA allows a thread to exit without waiting.
    thread.copies.clear();
    thread.first_copy = 0;
    thread.committed_groups = 0;
    if constexpr (kTsan) {
      tsan::destroy(thread.tsan_fiber);
      thread.fiber = nullptr;
    }
  }
  if constexpr (kTsan) unmap_stacks(tsan_stacks_, launch_->threads);
  recorder_.end_block(static_shared_.size() + launch_->dynamic_shared_bytes);
  static_shared_.close();
  dynamic_shared_.close();
  running_ = nullptr;
}

// Lets every thread that still waits unwind its stack.
void Block::cancel() {
  for (int i = 0; i < launch_->threads; ++i) {
    if (threads_[i].fiber != nullptr) continue_with(main_, i);
  }
  for (Warp& warp : warps_) warp.group_count = 0;
  next_.fill(0);
}

Fiber& Block::fiber_main(void* argument, Fiber& self) {
  Block& block = *static_cast<Block*>(argument);
  for (;;) {
    block.run_thread(block.starting_);
    if constexpr (kTsan) {
      // A stack serves one thread only: the next would seem to race with it.
      tsan::switch_to(block.tsan_main_);
      return block.main_;
    }
    const int next = block.failed_ ? -1 : block.take_next();
    if (next >= 0 && block.threads_[next].fiber == nullptr) {
      block.threads_[next].fiber = &self;
      block.starting_ = next;
      continue;
    }
    block.free_fibers_.push_back(&self);
    Fiber::switch_to(self, next >= 0 ? *block.threads_[next].fiber : block.main_);
  }
}

void Block::run_thread(int id) {
  current_ = id;
  threadIdx = threads_[id].index;
  recorder_.enter(id);
  std::string thrown;
  try {
    msan::arguments_are_written();
    if (!failed_) launch_->kernel(launch_->context);
  } catch (const Cancelled&) {
  } catch (const std::exception& exception) {
    thrown = exception.what();
  } catch (...) {
    thrown = "of no standard type";
  }
  if (!thrown.empty() && !failed_) {
    failed_ = true;
    error_ = describe(launch_->site, "an exception left the kernel in thread " +
                                         std::to_string(id) + ": " + thrown);
  }
  threads_[id].fiber = nullptr;
  recorder_.thread_ended(id);
  ++ended_;
  tsan::release(&tsan_launch_tag);
}

int Block::take_next() {
  if (round_position_ == round_size_ && !start_round()) return -1;
  return round_[round_position_++];
}

// Collects the threads that have become ready. (Plain loops: see README, ThreadSanitizer.)
bool Block::start_round() {
  int size = 0;
  const int warps = (launch_->threads + kWarpSize - 1) / kWarpSize;
  for (int w = 0; w < warps; ++w) {
    for (uint32_t lanes = next_[w]; lanes != 0; lanes &= lanes - 1) {
      round_[size++] = uint16_t(w * kWarpSize + __builtin_ctz(lanes));
    }
    next_[w] = 0;
  }
  auto swap = [this](int i, int j) {
    const uint16_t id = round_[i];
    round_[i] = round_[j];
    round_[j] = id;
  };
  if (launch_->order == Order::reverse) {
    for (int i = 0, j = size - 1; i < j; ++i, --j) swap(i, j);
  } else if (launch_->order == Order::random) {
    for (int i = size - 1; i > 0; --i) swap(i, int(splitmix64(random_) % unsigned(i + 1)));
  }
  round_size_ = size;
  round_position_ = 0;
  return size > 0;
}

void Block::make_all_ready() {
  for (int w = 0; w * kWarpSize < launch_->threads; ++w) next_[w] = lanes_of(w);
}

// The last warp may have fewer than 32.
unsigned Block::lanes_of(int warp) const {
  const int lanes = launch_->threads - warp * kWarpSize;
  return lanes < kWarpSize ? (1u << lanes) - 1 : 0xffffffffu;
}

inline void Block::continue_with(Fiber& from, int id) {
  Thread& thread = threads_[id];
  starting_ = id;
  if (thread.fiber == nullptr) {
    if (free_fibers_.empty()) {
      fibers_.push_back(std::make_unique<Fiber>(fibers_.size(), fiber_main, this));
      fibers_.back()->start(map_stacks(1));
      free_fibers_.push_back(fibers_.back().get());
    }
    thread.fiber = free_fibers_.back();
    free_fibers_.pop_back();
  }
  tsan::switch_to(thread.tsan_fiber);
  Fiber::switch_to(from, *thread.fiber);
}

// The running thread gives the turn to another, and returns when it has been made ready.
void Block::suspend() {
  if (failed_) throw Cancelled{};
  const int id = current_;
  const int next = take_next();
  if (next == id) return;
  if (next >= 0) {
    continue_with(*threads_[id].fiber, next);
  } else {
    tsan::switch_to(tsan_main_);
    Fiber::switch_to(*threads_[id].fiber, main_);
  }
  current_ = id;
  threadIdx = threads_[id].index;
  recorder_.enter(id);
  if (failed_) throw Cancelled{};
}

void Block::give_way() {
  next_[current_ / kWarpSize] |= 1u << current_ % kWarpSize;
  try {
    suspend();
  } catch (const Cancelled&) {
    // The caller is no kernel and may not be able to throw: the thread's next wait does.
  }
}

void Block::fail(Site site, const std::string& what) {
  if (!failed_) {
    error_ = describe(site, what);
    failed_ = true;
  }
  throw Cancelled{};
}

void Block::barrier(Site site) {
  threads_[current_].site = site;
  if constexpr (kTsan) tsan::release(&tsan_tags_[launch_->threads]);
  if (at_barrier_++ == 0) {
    barrier_site_ = site;
  } else if (!same_site(site, barrier_site_)) {
    divergent_ = true;
  }
  if (at_barrier_ == launch_->threads && !divergent_) release_barrier();
  suspend();
}

void Block::require_intact_shared_memory(Site site) {
  if (!static_shared_.intact() || !dynamic_shared_.intact()) fail(site, damaged_shared_memory());
}

// To ThreadSanitizer: these lanes go on after all that was released with the tag.
void Block::acquire(void* tag, int warp, unsigned lanes) {
  for (; lanes != 0; lanes &= lanes - 1) {
    tsan::switch_to(threads_[warp * kWarpSize + __builtin_ctz(lanes)].tsan_fiber);
    tsan::acquire(tag);
  }
  tsan::switch_to(threads_[current_].tsan_fiber);
}

void Block::release_barrier() {
  require_intact_shared_memory(barrier_site_);
  at_barrier_ = 0;
  make_all_ready();
  if constexpr (kTsan) {
    for (int w = 0; w * kWarpSize < launch_->threads; ++w) {
      acquire(&tsan_tags_[launch_->threads], w, lanes_of(w));
    }
  }
}

void block_barrier(Site site) {
  Block& block = Block::running();
  block.recorder().barrier(~0u, __builtin_return_address(0));
  block.barrier(site);
}

void thread_fence() {
  static char tag;  // fences order memory across blocks; one tag for all is coarse but sound
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  tsan::acquire(&tag);
  tsan::release(&tag);
}

}  // namespace simt
