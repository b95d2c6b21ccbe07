#include "common/simt/microscope/memory_model.hpp"

#include <algorithm>
#include <bit>

namespace simt::microscope {

namespace {

template <class F>
void for_each_lane(uint32_t lanes, F f) {
  for (; lanes != 0; lanes &= lanes - 1) f(std::countr_zero(lanes));
}

// How many different numbers `of(address)` gives for the lanes.
template <class F>
int count_distinct(const WarpAccess& access, F of) {
  if (access.lanes == 0) return 0;
  uint64_t least = ~uint64_t(0), most = 0;
  for_each_lane(access.lanes, [&](int lane) {
    const uint64_t x = of(access.address[lane]);
    least = std::min(least, x);
    most = std::max(most, x);
  });
  if (most - least < 64) {
    uint64_t seen = 0;
    for_each_lane(access.lanes,
                  [&](int lane) { seen |= uint64_t(1) << (of(access.address[lane]) - least); });
    return std::popcount(seen);
  }
  std::array<uint64_t, 32> all;
  int size = 0;
  for_each_lane(access.lanes, [&](int lane) { all[size++] = of(access.address[lane]); });
  std::sort(all.begin(), all.begin() + size);
  return int(std::unique(all.begin(), all.begin() + size) - all.begin());
}

// The most rows that these lanes need of one bank.
int bank_passes(const WarpAccess& access, uint32_t lanes) {
  if (lanes == 0) return 0;
  const int words = std::max(access.bytes / 4, 1);
  uint64_t least = ~uint64_t(0), most = 0;
  for_each_lane(lanes, [&](int lane) {
    least = std::min(least, access.address[lane] / 4);
    most = std::max(most, access.address[lane] / 4 + words - 1);
  });
  if (most - least < 32) return 1;
  std::array<std::array<uint64_t, 32>, 32> rows;
  std::array<uint8_t, 32> count{};
  int passes = 1;
  for_each_lane(lanes, [&](int lane) {
    for (int i = 0; i < words; ++i) {
      const uint64_t word = access.address[lane] / 4 + i;
      auto& of_bank = rows[word % 32];
      uint8_t& size = count[word % 32];
      if (std::find(of_bank.begin(), of_bank.begin() + size, word) == of_bank.begin() + size) {
        of_bank[size++] = word;
        passes = std::max<int>(passes, size);
      }
    }
  });
  return passes;
}

bool pair_up(const WarpAccess& access, uint32_t lanes, int distance) {
  bool all = true;
  for_each_lane(lanes, [&](int lane) {
    const int other = lane ^ distance;
    if (lanes >> other & 1) all &= access.address[lane] == access.address[other];
  });
  return all;
}

uint32_t part(const WarpAccess& access, int size, int index) {
  const uint32_t mask = size == 32 ? ~0u : (1u << size) - 1;
  return access.lanes & mask << size * index;
}

// Lanes that one pass can serve.
int lanes_per_pass(const WarpAccess& access) { return access.bytes <= 4 ? 32 : 128 / access.bytes; }

// How many pieces the copy falls into, each within `bytes` of global memory and a line of shared.
int copy_pieces(const WarpCopy& copy, int bytes) {
  WarpAccess pieces = copy.read;
  for_each_lane(pieces.lanes, [&](int lane) {
    pieces.address[lane] = copy.read.address[lane] / bytes << 16 | copy.shared[lane] / 128;
  });
  return count_distinct(pieces, [](uint64_t piece) { return piece; });
}

// Of a copy of 16 bytes a lane: the sectors that each piece of a line fills.
int filled_sectors(const WarpCopy& copy) {
  int total = 0;
  for (uint32_t rest = copy.read.lanes; rest != 0;) {
    const int first = std::countr_zero(rest);
    WarpAccess piece{0, copy.read.bytes, copy.read.address};
    for_each_lane(rest, [&](int lane) {
      if (copy.read.address[lane] / 128 == copy.read.address[first] / 128 &&
          copy.shared[lane] / 128 == copy.shared[first] / 128) {
        piece.lanes |= 1u << lane;
      }
    });
    total += (distinct_bytes(piece) + kSectorBytes - 1) / kSectorBytes;
    rest &= ~piece.lanes;
  }
  return total;
}

// Whether the half of a sector that this lane copies comes to lie apart from the other half, as in
// rows that are shifted by half a sector. Halves that change places stay together.
bool splits_sector(const WarpCopy& copy, int lane) {
  const uint64_t from = copy.read.address[lane], to = copy.shared[lane];
  if (copy.read.bytes != 16 || ((from ^ to) & 16) == 0) return false;
  bool together = false;
  for_each_lane(copy.read.lanes, [&](int other) {
    together |= copy.read.address[other] == (from ^ 16) && copy.shared[other] == (to ^ 16);
  });
  return !together;
}

int zero_passes(const WarpCopy& copy) { return copy.zeros ? 32 * copy.read.bytes / 128 : 0; }

}  // namespace

int sectors(const WarpAccess& access) {
  return count_distinct(access, [](uint64_t address) { return address / kSectorBytes; });
}

int atomic_sectors(const WarpAccess& access) {
  int total = 0;
  for_each_lane(access.lanes, [&](int lane) {
    // The first lane of each sector counts for it: the longest queue in it.
    const uint64_t sector = access.address[lane] / kSectorBytes;
    int longest = 0;
    bool first = true;
    for_each_lane(access.lanes, [&](int other) {
      if (access.address[other] / kSectorBytes != sector) return;
      first &= other >= lane;
      int queue = 0;
      for_each_lane(access.lanes,
                    [&](int third) { queue += access.address[third] == access.address[other]; });
      longest = std::max(longest, queue);
    });
    if (first) total += longest;
  });
  return total;
}

int contention(const WarpAccess& access) {
  int most = 0;
  for_each_lane(access.lanes, [&](int lane) {
    int queue = 0;
    for_each_lane(access.lanes,
                  [&](int other) { queue += access.address[other] == access.address[lane]; });
    most = std::max(most, queue);
  });
  return most;
}

int distinct_bytes(const WarpAccess& access) {
  const int shift = std::countr_zero(unsigned(access.bytes));
  return access.bytes * count_distinct(access, [=](uint64_t address) { return address >> shift; });
}

int store_wavefronts(const WarpAccess& access) {
  const int size = lanes_per_pass(access);
  int passes = 0;
  for (int i = 0; i < 32 / size; ++i) passes += bank_passes(access, part(access, size, i));
  return passes;
}

int load_wavefronts(const WarpAccess& access) {
  const int size = lanes_per_pass(access);
  if (size == 32) return bank_passes(access, access.lanes);
  int passes = 0;
  for (int i = 0; i < 16 / size; ++i) {
    const uint32_t both = part(access, 2 * size, i);
    if ((pair_up(access, both, 1) || pair_up(access, both, 2)) && bank_passes(access, both) <= 1) {
      passes += both != 0;
    } else {
      passes += bank_passes(access, part(access, size, 2 * i)) +
                bank_passes(access, part(access, size, 2 * i + 1));
    }
  }
  return passes;
}

int copy_sectors(const WarpCopy& copy) {
  return copy.read.bytes == 16 ? filled_sectors(copy) : copy_pieces(copy, kSectorBytes);
}

int copy_wavefronts(const WarpCopy& copy) {
  WarpAccess pieces = copy.read;
  for_each_lane(pieces.lanes, [&](int lane) {
    const uint64_t from = copy.read.address[lane], to = copy.shared[lane];
    const uint64_t half = splits_sector(copy, lane) ? 1 + (from >> 4 & 1) : 0;
    pieces.address[lane] = (from / 128 << 16 | to / 128) << 2 | half;
  });
  return count_distinct(pieces, [](uint64_t piece) { return piece; }) + zero_passes(copy);
}

int ideal_copy_wavefronts(const WarpCopy& copy) {
  return (std::popcount(copy.read.lanes) * copy.read.bytes + 127) / 128 + zero_passes(copy);
}

int ideal_wavefronts(const WarpAccess& access, int wavefronts) {
  const int bytes = std::popcount(access.lanes) * std::max(access.bytes, 4);
  return std::min(wavefronts, (bytes + 127) / 128);
}

}  // namespace simt::microscope
