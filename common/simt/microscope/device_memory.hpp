// The device's memory in the microscope's build: one range of addresses, so that one comparison tells
// an access to it, with allocations aligned as cudaMalloc aligns them, and a record of what a
// launch has touched.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simt::microscope {

constexpr uint64_t kDeviceBytes = uint64_t(1) << 40;  // of addresses, not of memory
extern const uint64_t device_begin;

inline bool is_device(uint64_t address) { return address - device_begin < kDeviceBytes; }

void* allocate(std::size_t bytes);  // null if there is no more
void release(void* pointer);

// Which bytes a launch reads and writes.
void note_read(uint64_t address, int bytes);
void note_written(uint64_t address, int bytes);
// One more atomic at an address; how many it has seen.
uint32_t note_atomic(uint64_t address);

struct Touched {
  uint64_t read, written;  // bytes, each counted once
};
Touched touched();
void forget_touched();

}  // namespace simt::microscope
