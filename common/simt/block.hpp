// The scheduler of one block: runs its threads as fibers on the calling OS thread.
//
// A thread runs until it must wait (at a barrier or for other lanes of its warp); then the next
// ready thread continues. Ready threads run in rounds: those that become ready in a round run in
// the next, in the order that SIMT_ORDER asks for. When none is ready and not all have ended, the
// kernel has broken a rule, and report.cpp says which.
//
// Threads that never wait cost no switch: a fiber whose thread has ended starts the next thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/simt/fiber.hpp"
#include "common/simt/microscope/recorder.hpp"
#include "common/simt/shared_region.hpp"
#include "simt/emulator.hpp"

namespace simt {

enum class Order { forward, reverse, random };

// What all blocks of a launch have in common.
struct Launch {
  dim3 grid, block;
  int threads;  // of a block
  std::size_t dynamic_shared_bytes;
  Site site;
  const void* function;  // the kernel as the program names it
  void (*kernel)(const void*);
  const void* context;
  Order order;
  uint64_t seed;
  bool early_copies;
};

class Block {
 public:
  static constexpr int kMaxThreads = 1024;
  static constexpr int kWarpSize = 32;
  static constexpr int kNamedBarriers = 16;  // of which number 0 is the block's own

  Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Runs block number `index` of the grid; returns what was wrong with it, or "".
  std::string run(const Launch& launch, uint64_t index);

  // The block that this OS thread is running.
  static Block& running() {
    if (running_ == nullptr) throw Error("device code was called outside of a kernel");
    return *running_;
  }

  // Called by the threads of the block.
  void barrier(Site site);
  void named_barrier(const char* name, const NamedBarrierOperands& operands, Site site);
  void collective(WarpRequest& request);
  void* static_shared(std::size_t bytes, const void* type);
  void* dynamic_shared(std::size_t least_bytes);
  void require_shared(const char* what, const void* address, std::size_t bytes, Site site);
  bool queue_copy(const AsyncCopy& copy, Site site);
  void commit_copies();
  bool next_copy(int allowed, AsyncCopy* copy);

  // Lets the other threads go on first.
  void give_way();

  microscope::Recorder& recorder() { return recorder_; }

  // Ends the block with an error at `site`: does not return to the kernel.
  [[noreturn]] void fail(Site site, const std::string& what);

  // While it lives, ThreadSanitizer takes what this thread does for the scheduler's doing, so that
  // strings and containers of the emulator are no data race between CUDA threads.
  class AsScheduler {
   public:
    explicit AsScheduler(const Block& block);
    ~AsScheduler();

   private:
    const Block& block_;
  };

 private:
  // What a switch touches lies in the first cache line.
  struct alignas(64) Thread {
    uint3 index;
    Fiber* fiber = nullptr;  // none before it starts and after it has ended
    Site site;               // where it waits
    void* tsan_fiber = nullptr;

    // cp.async: copies issued, with the number of groups that had been committed before each
    struct Queued {
      AsyncCopy copy;
      int group;
    };
    std::vector<Queued> copies;
    std::size_t first_copy = 0;
    int committed_groups = 0;
  };

  // Lanes that wait for the rest of their mask at the same place.
  struct Group {
    unsigned mask, arrived;
  };
  struct Warp {
    std::array<WarpRequest*, kWarpSize> requests;  // of the lanes that have arrived
    std::array<Group, kWarpSize> groups;
    int group_count = 0;
  };

  // The arrivals at a named barrier since it was last complete.
  struct NamedBarrier {
    int threads = 0;       // how many it takes
    int arrived = 0;       // threads, by whole warps
    uint32_t waiting = 0;  // the warps among them that wait, a bit each
    Site site;             // of the first
  };

  struct Cancelled {};  // unwinds the threads of a block that has failed

  // block.cpp
  void begin(const Launch& launch, uint64_t index);
  void end();
  void cancel();
  static Fiber& fiber_main(void* block, Fiber& self);
  void run_thread(int id);
  int take_next();
  bool start_round();
  void suspend();
  void continue_with(Fiber& from, int id);
  void release_barrier();
  void make_all_ready();
  unsigned lanes_of(int warp) const;
  void require_intact_shared_memory(Site site);
  void acquire(void* tag, int warp, unsigned lanes);

  // warp.cpp
  bool meet(WarpRequest& request);

  // report.cpp
  std::string describe(Site site, const std::string& what) const;
  std::string describe_deadlock() const;
  std::string describe_running() const;
  std::string name_of(uint3 thread) const;
  std::string describe_waiting() const;
  int waits_at_named_barrier(int warp) const;
  std::string damaged_shared_memory() const;

  static inline constinit thread_local Block* running_ = nullptr;

  const Launch* launch_ = nullptr;
  uint3 index_{};
  dim3 indexed_for_{0, 0, 0};  // the block size that the threads' indices were computed for

  std::unique_ptr<Thread[]> threads_;
  std::array<Warp, kMaxThreads / kWarpSize> warps_;
  int current_ = 0;   // the running thread
  int starting_ = 0;  // the thread that the fiber switched to shall start
  int ended_ = 0;

  std::array<uint32_t, kMaxThreads / kWarpSize> next_;  // ready in the next round, a bit per lane
  std::array<uint16_t, kMaxThreads> round_;             // this round's threads
  int round_size_ = 0, round_position_ = 0;
  uint64_t random_ = 0;

  int at_barrier_ = 0;
  Site barrier_site_;
  bool divergent_ = false;  // threads wait at different barriers

  std::array<NamedBarrier, kNamedBarriers> named_barriers_;

  SharedRegion static_shared_, dynamic_shared_;
  const void* static_type_ = nullptr;
  microscope::Recorder recorder_;

  std::string error_;
  bool failed_ = false;

  Fiber main_;  // the OS thread's own stack
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_fibers_;

  void* tsan_main_;
  void* tsan_stacks_ = nullptr;
  std::unique_ptr<uint64_t[]> tsan_tags_;  // one per thread, and the barriers'
};

inline bool same_site(const Site& a, const Site& b) {
  return a.line == b.line && (a.file == b.file || __builtin_strcmp(a.file, b.file) == 0);
}

std::string to_string(const Site& site);  // "file:line"

// Every CUDA thread releases this as it ends; the launch acquires it.
extern char tsan_launch_tag;

}  // namespace simt
