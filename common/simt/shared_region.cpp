#include "common/simt/shared_region.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "common/simt/sanitizers.hpp"
#include "simt/emulator.hpp"

namespace simt {

namespace {

constexpr std::size_t kPage = 4096;       // mapped before and behind the region
constexpr std::size_t kGuardBytes = 256;  // of these, examined at every barrier
constexpr unsigned char kGuardValue = 0xA5;
constexpr unsigned char kPoison = 0xFF;  // as float, bf16 or half: NaN; as an index: far outside

unsigned char* map(void* where, std::size_t bytes) {
  void* memory = mmap(where, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | (where ? MAP_FIXED : 0), -1, 0);
  if (memory == MAP_FAILED) throw Error("no memory for a block's shared memory");
  return static_cast<unsigned char*>(memory);
}

void fill(unsigned char* begin, std::size_t bytes, unsigned char value) {
  if constexpr (kTsan) {
    // ThreadSanitizer intercepts memset and would take it for a write by one of the threads.
    for (std::size_t i = 0; i < bytes; ++i) static_cast<volatile unsigned char*>(begin)[i] = value;
  } else {
    std::memset(begin, value, bytes);
  }
}

bool is_guard(const unsigned char* begin) {
  constexpr uint64_t expected = 0x0101010101010101u * kGuardValue;
  for (std::size_t i = 0; i < kGuardBytes; i += sizeof expected) {
    uint64_t word;
    __builtin_memcpy(&word, begin + i, sizeof word);
    if (word != expected) return false;
  }
  return true;
}

}  // namespace

SharedRegion::SharedRegion(std::size_t capacity)
    : capacity_(capacity), begin_(map(nullptr, kPage + capacity + kPage) + kPage) {}

void* SharedRegion::open(std::size_t bytes) {
  bytes_ = bytes;
  open_ = true;
  if constexpr (kAsan) {
    __asan_poison_memory_region(begin_ - kPage, kPage + capacity_ + kPage);
    __asan_unpoison_memory_region(begin_, bytes);
  } else {
    fill(begin_ - kGuardBytes, kGuardBytes, kGuardValue);
    fill(begin_ + bytes, kGuardBytes, kGuardValue);
  }
  fill(begin_, bytes, kPoison);
  msan::forget(begin_, bytes);
  return begin_;
}

void SharedRegion::close() {
  if (kTsan && open_) {
    // The next block's threads are others, at the same addresses: make ThreadSanitizer forget.
    munmap(begin_ - kPage, kPage + capacity_ + kPage);
    map(begin_ - kPage, kPage + capacity_ + kPage);
  }
  open_ = false;
  bytes_ = 0;
}

bool SharedRegion::intact() const {
  if (kAsan || !open_) return true;
  return is_guard(begin_ - kGuardBytes) && is_guard(begin_ + bytes_);
}

bool SharedRegion::contains(const void* address, std::size_t bytes) const {
  const auto* p = static_cast<const unsigned char*>(address);
  return open_ && p >= begin_ && p + bytes <= begin_ + bytes_;
}

}  // namespace simt
