#include "common/simt/microscope/device_memory.hpp"

#include <sys/mman.h>

#include <bit>
#include <map>
#include <mutex>

#include "simt/emulator.hpp"

namespace simt::microscope {

namespace {

constexpr std::size_t kPage = 4096;

// Addresses without memory behind them until they are written.
uint64_t reserve(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw Error("no addresses left for the microscope's device memory");
  return reinterpret_cast<uint64_t>(memory);
}

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

std::mutex mutex;
uint64_t next_free = 0;                       // an offset; freed addresses are not used again
std::map<uint64_t, std::size_t> allocations;  // offset, bytes

// A bit per byte of device memory.
class ByteSet {
 public:
  void add(uint64_t offset, int bytes) {
    const uint64_t mask = ((uint64_t(1) << bytes) - 1) << offset % 64;
    uint64_t& word = words_[offset / 64];
    if ((__atomic_load_n(&word, __ATOMIC_RELAXED) & mask) != mask)
      __atomic_fetch_or(&word, mask, __ATOMIC_RELAXED);
  }
  uint64_t count(uint64_t begin, uint64_t end) const {
    uint64_t total = 0;
    for (uint64_t i = begin / 64; i < (end + 63) / 64; ++i) total += std::popcount(words_[i]);
    return total;
  }
  void clear(uint64_t end) { madvise(words_, whole_pages(end / 8 + 1), MADV_DONTNEED); }

 private:
  uint64_t* const words_ = reinterpret_cast<uint64_t*>(reserve(kDeviceBytes / 8));
};

struct Records {
  ByteSet read, written;
  uint32_t* const atomics = reinterpret_cast<uint32_t*>(reserve(kDeviceBytes));
};

Records& records() {
  static Records records;
  return records;
}

}  // namespace

const uint64_t device_begin = reserve(kDeviceBytes);

void* allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex);
  const std::size_t pages = whole_pages(bytes);
  if (next_free + pages > kDeviceBytes) return nullptr;
  const uint64_t offset = next_free;
  next_free += pages;
  allocations[offset] = pages;
  return reinterpret_cast<void*>(device_begin + offset);
}

void release(void* pointer) {
  if (pointer == nullptr) return;
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(reinterpret_cast<uint64_t>(pointer) - device_begin);
  if (found == allocations.end()) return;
  madvise(pointer, found->second, MADV_DONTNEED);
  allocations.erase(found);
}

void note_read(uint64_t address, int bytes) { records().read.add(address - device_begin, bytes); }

void note_written(uint64_t address, int bytes) {
  records().written.add(address - device_begin, bytes);
}

uint32_t note_atomic(uint64_t address) {
  uint32_t& count = records().atomics[(address - device_begin) / 4];
  return __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
}

Touched touched() {
  // A launch can only have touched what is allocated.
  const std::lock_guard lock(mutex);
  Touched total{};
  for (const auto& [offset, bytes] : allocations) {
    total.read += records().read.count(offset, offset + bytes);
    total.written += records().written.count(offset, offset + bytes);
  }
  return total;
}

void forget_touched() {
  const std::lock_guard lock(mutex);
  records().read.clear(next_free);
  records().written.clear(next_free);
  madvise(records().atomics, next_free, MADV_DONTNEED);
}

}  // namespace simt::microscope
