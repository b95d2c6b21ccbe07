// The texts of errors: who waits where when a block cannot go on, and why that is.

#include <cstdio>
#include <map>

#include "common/simt/block.hpp"

namespace simt {

std::string to_string(const Site& site) {
  return std::string(site.file) + ":" + std::to_string(site.line);
}

namespace {

// "0-31, 40" from a sequence of numbers in ascending order.
std::string ranges(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t j = i;
    while (j + 1 < numbers.size() && numbers[j + 1] == numbers[j] + 1) ++j;
    if (!text.empty()) text += ", ";
    text += std::to_string(numbers[i]);
    if (j > i) text.append("-").append(std::to_string(numbers[j]));
    i = j + 1;
  }
  return text;
}

std::string threads(const std::vector<int>& ids) {
  return (ids.size() == 1 ? "thread " : "threads ") + ranges(ids);
}

std::string hexadecimal(unsigned mask) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", mask);
  return text;
}

}  // namespace

std::string Block::describe(Site site, const std::string& what) const {
  return to_string(site) + ": " + what + " [block (" + std::to_string(index_.x) + ", " +
         std::to_string(index_.y) + ", " + std::to_string(index_.z) + "), launched at " +
         to_string(launch_->site) + "]";
}

// "CUDA thread (5, 0, 0) of block (0, 0, 0)"
std::string Block::name_of(uint3 thread) const {
  char text[128];
  std::snprintf(text, sizeof text, "CUDA thread (%u, %u, %u) of block (%u, %u, %u)", thread.x,
                thread.y, thread.z, index_.x, index_.y, index_.z);
  return text;
}

std::string Block::describe_running() const {
  return "simt: this was " + name_of(threads_[current_].index) + ", launched at " +
         to_string(launch_->site);
}

// The number of the named barrier, 0 if none.
int Block::waits_at_named_barrier(int warp) const {
  for (int id = 1; id < kNamedBarriers; ++id) {
    if (named_barriers_[id].waiting >> warp & 1) return id;
  }
  return 0;
}

// All threads of the block, by what they are waiting for.
std::string Block::describe_waiting() const {
  std::map<std::string, std::vector<int>> by_place;
  for (int i = 0; i < launch_->threads; ++i) {
    std::string place;
    const Warp& warp = warps_[i / kWarpSize];
    unsigned in_collective = 0;
    for (int g = 0; g < warp.group_count; ++g) in_collective |= warp.groups[g].arrived;
    const int named = waits_at_named_barrier(i / kWarpSize);
    if (threads_[i].fiber == nullptr) {
      place = "exited";
    } else if (in_collective >> (i % kWarpSize) & 1) {
      const WarpRequest& request = *warp.requests[i % kWarpSize];
      place = std::string("in ") + request.name + " at " + to_string(request.site) + " for mask " +
              hexadecimal(request.mask);
    } else if (named != 0) {
      place = "in named_barrier_sync at " + to_string(threads_[i].site) + " for barrier " +
              std::to_string(named) + ", where " + std::to_string(named_barriers_[named].arrived) +
              " of " + std::to_string(named_barriers_[named].threads) + " threads have arrived";
    } else {
      place = "in __syncthreads at " + to_string(threads_[i].site);
    }
    by_place[place].push_back(i);
  }
  std::string text;
  for (const auto& [place, ids] : by_place) {
    if (!text.empty()) text += "; ";
    const bool one = ids.size() == 1;
    if (place == "exited") {
      text += threads(ids) + (one ? " has exited" : " have exited");
    } else {
      text += threads(ids) + (one ? " waits " : " wait ") + place;
    }
  }
  return text;
}

std::string Block::describe_deadlock() const {
  // A lane that a collective waits for is the likeliest cause: others may wait for its warp.
  for (int w = 0; w * kWarpSize < launch_->threads; ++w) {
    if (warps_[w].group_count == 0) continue;
    const Group& group = warps_[w].groups[0];
    const WarpRequest& request = *warps_[w].requests[__builtin_ctz(group.arrived)];
    std::vector<int> missing;
    for (int lane = 0; lane < kWarpSize; ++lane) {
      if ((group.mask & ~group.arrived) >> lane & 1) missing.push_back(lane);
    }
    return describe(request.site,
                    std::string(request.name) +
                        " waits for ever: " + (missing.size() == 1 ? "lane " : "lanes ") +
                        ranges(missing) + " of warp " + std::to_string(w) + " in its mask " +
                        hexadecimal(group.mask) + " never came; " + describe_waiting());
  }
  if (divergent_) {
    return describe(barrier_site_,
                    "divergent barrier: the threads of a block must all reach "
                    "the same __syncthreads; " +
                        describe_waiting());
  }
  for (int w = 0; w * kWarpSize < launch_->threads; ++w) {
    if (waits_at_named_barrier(w) == 0) continue;
    return describe(threads_[w * kWarpSize].site,
                    "named_barrier_sync waits for ever; " + describe_waiting());
  }
  return describe(barrier_site_, "barrier that not all threads reach; " + describe_waiting());
}

std::string Block::damaged_shared_memory() const {
  std::string text;
  auto examine = [&](const char* kind, const SharedRegion& region) {
    if (region.intact()) return;
    text += std::string("a thread wrote out of bounds, beside the block's ") +
            std::to_string(region.size()) + " bytes of " + kind +
            " shared memory, since the "
            "barrier before (an AddressSanitizer build names the line)";
  };
  examine("static", static_shared_);
  examine("dynamic", dynamic_shared_);
  return text;
}

}  // namespace simt
