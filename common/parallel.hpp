// A loop spread over all cores. std::thread rather than OpenMP, because ThreadSanitizer cannot see
// OpenMP's barriers and would report races that are none.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace attn {

inline int64_t core_count() { return std::max(1u, std::thread::hardware_concurrency()); }

// Calls body(i) once for each i in [0, count), in no particular order; rethrows the first
// exception.
template <class Body>
void parallel_for(int64_t count, const Body& body) {
  std::atomic<int64_t> next = 0;
  std::exception_ptr error;
  std::mutex error_mutex;
  const auto work = [&] {
    try {
      for (int64_t i; (i = next++) < count;) body(i);
    } catch (...) {
      next = count;
      const std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::jthread> helpers;
  for (int64_t t = 1; t < std::min(core_count(), count); ++t) helpers.emplace_back(work);
  work();
  helpers.clear();  // joins
  if (error) std::rethrow_exception(error);
}

}  // namespace attn
