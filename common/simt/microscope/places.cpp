#include "common/simt/microscope/places.hpp"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "simt/emulator.hpp"

namespace simt::microscope {

namespace {

struct Node {
  Place parent;
  uintptr_t return_address;
};

// Never moved, so that it is read without a lock; of memory that nobody has written yet only the
// addresses are taken.
constexpr Place kMost = 1 << 16;
Node nodes[kMost];

// Parent and address in one number: user space ends at 2^47.
uint64_t key_of(Place parent, uintptr_t return_address) {
  return uint64_t(parent) << 47 | return_address;
}

Place find_or_add(uint64_t key, Place parent, uintptr_t return_address) {
  static std::mutex mutex;
  static auto& numbers = *new std::unordered_map<uint64_t, Place>;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = numbers.try_emplace(key, Place(numbers.size() + 1));
  if (is_new) {
    if (entry->second >= kMost) throw Error("more places in the code than the microscope can hold");
    nodes[entry->second] = {parent, return_address};
  }
  return entry->second;
}

}  // namespace

Place place_of(Place parent, const void* return_address) {
  struct Entry {
    uint64_t key = ~uint64_t(0);
    Place place = 0;
  };
  constexpr int kEntries = 2048;
  static thread_local Entry cache[kEntries];
  const uint64_t key = key_of(parent, reinterpret_cast<uintptr_t>(return_address));
  Entry& entry = cache[(key ^ key >> 11 ^ key >> 47) % kEntries];
  if (entry.key != key)
    entry = {key, find_or_add(key, parent, reinterpret_cast<uintptr_t>(return_address))};
  return entry.place;
}

Place parent_of(Place place) { return nodes[place].parent; }
uintptr_t return_address_of(Place place) { return nodes[place].return_address; }

std::vector<uintptr_t> path_of(Place place) {
  std::vector<uintptr_t> path;
  for (; place != kRoot; place = nodes[place].parent) path.push_back(nodes[place].return_address);
  std::reverse(path.begin(), path.end());
  return path;
}

bool stands_before(Place a, Place b) {
  if (nodes[a].parent == nodes[b].parent) return nodes[a].return_address < nodes[b].return_address;
  return path_of(a) < path_of(b);
}

}  // namespace simt::microscope
