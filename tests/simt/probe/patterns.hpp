// Which element each lane of a warp accesses, in patterns that tell models of the memory system
// apart. An element is as wide as the access; -1: the lane takes no part.
#pragma once

#ifdef __CUDACC__
#define PATTERN_FUNCTION __host__ __device__
#else
#define PATTERN_FUNCTION
#endif

namespace attn::patterns {

constexpr int kElements = 512;  // that a pattern may reach
constexpr int kRegular = 36;
constexpr int kCount = kRegular + 28;

// A number below `limit` that looks random, the same everywhere.
PATTERN_FUNCTION constexpr int scattered(int pattern, int lane, int limit) {
  unsigned x = 0x9e3779b9u * unsigned(pattern * 32 + lane + 1);
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return int((x ^ (x >> 16)) % unsigned(limit));
}

PATTERN_FUNCTION constexpr int element(int pattern, int lane) {
  // clang-format off
  switch (pattern) {
    case 0: return lane;                       // row by row
    case 1: return 0;                          // all the same
    case 2: return lane / 2;                   // neighbours share
    case 3: return lane / 4;
    case 4: return lane / 8;
    case 5: return lane / 16;
    case 6: return lane % 2;
    case 7: return lane % 4;
    case 8: return lane % 8;
    case 9: return lane % 16;
    case 10: return lane * 2;                  // strides
    case 11: return lane * 4;
    case 12: return lane * 8;
    case 13: return lane * 3;
    case 14: return lane * 5;
    case 15: return lane * 7;
    case 16: return lane * 9;
    case 17: return lane ^ 1;
    case 18: return lane ^ 16;
    case 19: return 31 - lane;
    case 20: return lane < 16 ? lane : -1;     // some lanes only
    case 21: return lane % 2 == 0 ? lane : -1;
    case 22: return lane % 4 == 0 ? lane : -1;
    case 23: return lane == 5 ? 7 : -1;
    case 24: return lane >= 24 ? lane : -1;
    case 25: return lane % 2 == 0 ? 0 : 8;
    case 26: return lane % 2 == 0 ? 0 : 9;
    case 27: return lane / 16 * 8;             // the halves at one bank, different words
    case 28: return lane / 8 * 8;
    case 29: return lane / 8 * 16 + lane % 8;
    case 30: return lane % 8 * 4 + lane / 8;   // a transposed tile
    case 31: return lane % 4 * 8 + lane / 4;
    case 32: return lane / 2 * 2;
    case 33: return lane / 4 * 16 + lane % 4;
    case 34: return lane % 16 * 2;
    case 35: return (lane & 1) * 8 + (lane & 2) * 8 + lane / 4;
  }
  // clang-format on
  const int n = pattern - kRegular;
  constexpr int kLimits[] = {2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256};
  const int limit = kLimits[n / 2];
  if (n % 2 != 0 && scattered(pattern + 64, lane, 3) == 0) return -1;  // a third takes no part
  return scattered(pattern, lane, limit);
}

}  // namespace attn::patterns
