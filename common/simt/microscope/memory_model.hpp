// What one memory instruction of a warp costs: sectors of global memory, wavefronts of shared
// memory.
//
// The rules are those that Nsight Compute's counters follow on an H200, measured with one
// instruction for each of the access patterns in tests/simt/probe (docs/microscope.md has the
// outcome). Which caches a sector hits is none of it.
#pragma once

#include <array>
#include <cstdint>

namespace simt::microscope {

// The lanes of a warp that execute one load, store or atomic. Every address is a multiple of
// `bytes`, as on the GPU.
struct WarpAccess {
  uint32_t lanes = 0;  // a bit for each that takes part
  int bytes = 0;       // per lane: 1, 2, 4, 8 or 16
  std::array<uint64_t, 32> address{};
};

constexpr int kSectorBytes = 32;

// 32-byte pieces of memory that the access touches.
int sectors(const WarpAccess& access);

// Of an atomic: lanes that meet at one address queue, and each round moves the sector again.
int atomic_sectors(const WarpAccess& access);

// The most lanes that meet at one address.
int contention(const WarpAccess& access);

// Bytes that are asked for; those that several lanes ask for count once.
int distinct_bytes(const WarpAccess& access);

// Passes over the 32 banks of shared memory, each four bytes wide. A pass serves every lane whose
// bank it reads at the same row, of all lanes for accesses of up to 4 bytes, of half a warp for 8
// and a quarter for 16. Loads of two such parts share a pass if no banks conflict and lanes pair up
// at one address: each with its neighbour (lane ^ 1), or each with the next but one (lane ^ 2).
int load_wavefronts(const WarpAccess& access);
int store_wavefronts(const WarpAccess& access);

// cp.async: from global memory to `shared`, addresses as the banks count them. A pass moves what lies
// in one 128-byte line of global memory and belongs in one line of shared memory. Of 16 bytes a lane,
// which go past L1, such a piece is moved in as few sectors as it can fill; else in those it
// touches; and where rows are shifted by half a sector, first and second halves take passes of their
// own (halves that change places, as in a swizzled row, do not). Lanes with nothing to read write
// zeros, in passes of their own: as many as a whole warp would take.
struct WarpCopy {
  WarpAccess read;  // the lanes that read
  std::array<uint64_t, 32> shared{};
  bool zeros = false;  // are there others?
};
int copy_sectors(const WarpCopy& copy);
int copy_wavefronts(const WarpCopy& copy);
int ideal_copy_wavefronts(const WarpCopy& copy);

// As few as an access of so many lanes can take: what Nsight Compute calls ideal.
int ideal_wavefronts(const WarpAccess& access, int wavefronts);

}  // namespace simt::microscope
