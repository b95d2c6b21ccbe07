// launch(): spreads the blocks of a grid over the CPU's cores.
//
// The worker threads live as long as the process and keep their stacks and shared memory between
// launches. They take block numbers from one counter; the first error stops them all.

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/simt/block.hpp"
#include "common/simt/microscope/launches.hpp"

namespace simt {

namespace {

struct Grid {
  const Launch& launch;
  uint64_t blocks;
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex{};
  uint64_t failed_block = 0;
  std::string error{};

  void report(uint64_t block, std::string what) {
    std::lock_guard lock(mutex);
    // Of several, the one that a run on one core would have met.
    if (!failed || block < failed_block) {
      failed_block = block;
      error = std::move(what);
    }
    failed = true;
  }
};

class Pool {
 public:
  // Never destroyed: at exit its workers still sleep, and their fibers need not be unwound.
  static Pool& instance() {
    static Pool* pool = new Pool;
    return *pool;
  }

  void run(Grid& grid, unsigned workers) {
    std::lock_guard one_launch_at_a_time(launch_mutex_);
    std::unique_lock lock(mutex_);
    while (started_ < workers) std::thread(&Pool::work, this, started_++).detach();
    grid_ = &grid;
    wanted_ = busy_ = workers;
    ++generation_;
    start_.notify_all();
    done_.wait(lock, [&] { return busy_ == 0; });
  }

 private:
  void work(unsigned number) {
    Block block;
    uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      start_.wait(lock, [&] { return generation_ != seen && number < wanted_; });
      seen = generation_;
      Grid& grid = *grid_;
      lock.unlock();
      while (!grid.failed) {
        const uint64_t index = grid.next++;
        if (index >= grid.blocks) break;
        std::string error = block.run(grid.launch, index);
        if (!error.empty()) grid.report(index, std::move(error));
      }
      block.recorder().end_launch();
      lock.lock();
      if (--busy_ == 0) {
        wanted_ = 0;  // a worker that has overslept must not join a launch that is over
        done_.notify_one();
      }
    }
  }

  std::mutex launch_mutex_, mutex_;
  std::condition_variable start_, done_;
  Grid* grid_ = nullptr;
  uint64_t generation_ = 0;
  unsigned wanted_ = 0, busy_ = 0, started_ = 0;
};

[[noreturn]] void refuse(const char* name, const std::string& value, const char* accepted) {
  throw Error(std::string(name) + "=" + value + ": must be " + accepted);
}

uint64_t number_from_environment(const char* name, uint64_t least, uint64_t otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr) return otherwise;
  char* end;
  const uint64_t value = std::strtoull(text, &end, 10);
  if (*text < '0' || *text > '9' || *end != '\0' || value < least) {
    refuse(name, text, least == 0 ? "a number" : "a number, 1 or more");
  }
  return value;
}

Order order_from_environment() {
  const char* text = std::getenv("SIMT_ORDER");
  const std::string value = text ? text : "forward";
  if (value == "forward") return Order::forward;
  if (value == "reverse") return Order::reverse;
  if (value == "random") return Order::random;
  refuse("SIMT_ORDER", value, "forward, reverse or random");
}

bool early_copies_from_environment() {
  const char* text = std::getenv("SIMT_CP_ASYNC");
  const std::string value = text ? text : "late";
  if (value == "late") return false;
  if (value == "early") return true;
  refuse("SIMT_CP_ASYNC", value, "late or early");
}

}  // namespace

void launch(dim3 grid, dim3 block, std::size_t dynamic_shared_bytes, Site site,
            const void* function, void (*kernel)(const void*), const void* context) {
  const Launch launch{grid,
                      block,
                      int(block.x * block.y * block.z),
                      dynamic_shared_bytes,
                      site,
                      function,
                      kernel,
                      context,
                      order_from_environment(),
                      number_from_environment("SIMT_SEED", 0, 1),
                      early_copies_from_environment()};
  Grid job{launch, uint64_t(grid.x) * grid.y * grid.z};
  const uint64_t cores = std::max(1u, std::thread::hardware_concurrency());
  uint64_t workers = number_from_environment("SIMT_THREADS", 1, cores);
  // ThreadSanitizer's runtime (clang 14) crashes now and then when two OS threads make and end
  // fibers by the ten thousand. One finds the same races: it is the fibers that are compared.
  // MemorySanitizer's setting in msan::forget() is one for all.
  if constexpr (kTsan || kMsan) workers = 1;
  microscope::begin_launch(function, site, grid, block);
  Pool::instance().run(job, unsigned(std::min({workers, job.blocks, uint64_t(1024)})));
  tsan::acquire(&tsan_launch_tag);
  microscope::end_launch();
  if (job.failed) throw Error(job.error);
}

}  // namespace simt
