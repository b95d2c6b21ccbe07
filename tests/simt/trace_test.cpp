// The microscope's replay: 32 lanes' records become a warp's instructions.
#include "common/simt/microscope/trace.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace simt::microscope {
namespace {

// Instructions are named by where they stand in the code: a larger number is further down.
Place at(int instruction) {
  return place_of(kRoot, reinterpret_cast<const void*>(uintptr_t(0x1000 + 16 * instruction)));
}

class Warp {
 public:
  explicit Warp(int size) : lanes_(size) {
    for (Lane& lane : lanes_) lane.begin();
  }
  void add(int lane, Kind kind, int instruction, uint64_t address = 0) {
    if (!lanes_[lane].has_room()) lanes_[lane].grow();
    lanes_[lane].add({address, at(instruction), 4, kind});
  }
  void end() {
    for (Lane& lane : lanes_) lane.end();
  }
  // "3:0f 5:01" is instruction 3 by four lanes, then 5 by the first.
  std::string replayed() {
    std::string text;
    replay(lanes_.data(), int(lanes_.size()), [&](const auto& events, uint32_t lanes) {
      const Place place = events[std::countr_zero(lanes)]->place;
      char step[32];
      std::snprintf(step, sizeof step, "%s%d:%x", text.empty() ? "" : " ",
                    int(return_address_of(place) - 0x1000) / 16, lanes);
      text += step;
    });
    return text;
  }

 private:
  std::vector<Lane> lanes_;
};

TEST(Replay, LanesTogether) {
  Warp warp(4);
  for (int lane = 0; lane < 4; ++lane)
    for (int i : {1, 2, 2, 3}) warp.add(lane, Kind::load, i);
  warp.end();
  EXPECT_EQ(warp.replayed(), "1:f 2:f 2:f 3:f");
}

// if (lane < 2) { 2 } else { 3 }; 4
TEST(Replay, BranchesMeetBehind) {
  Warp warp(4);
  for (int lane = 0; lane < 4; ++lane) {
    warp.add(lane, Kind::load, 1);
    warp.add(lane, Kind::load, lane < 2 ? 2 : 3);
    warp.add(lane, Kind::load, 4);
  }
  warp.end();
  EXPECT_EQ(warp.replayed(), "1:f 2:3 3:c 4:f");
}

// for (i = 0; i <= lane; ++i) 1; 2
TEST(Replay, LoopsOfDifferentLengths) {
  Warp warp(3);
  for (int lane = 0; lane < 3; ++lane) {
    for (int i = 0; i <= lane; ++i) warp.add(lane, Kind::load, 1);
    warp.add(lane, Kind::load, 2);
  }
  warp.end();
  EXPECT_EQ(warp.replayed(), "1:7 1:6 1:4 2:7");
}

// for (t = 0; t < 3; ++t) { if (t < lane) continue; 2 }: the turn counts, not how often lanes came
TEST(Replay, SkippedTurns) {
  Warp warp(3);
  for (int lane = 0; lane < 3; ++lane) {
    for (int t = 0; t < 3; ++t) {
      warp.add(lane, Kind::block, 1);
      if (t >= lane) warp.add(lane, Kind::load, 2);
      warp.add(lane, Kind::block, 3);  // ++t
    }
  }
  warp.end();
  EXPECT_EQ(warp.replayed(), "2:1 2:3 2:7");
}

// A lane that waits at a barrier is not behind those that come later.
TEST(Replay, LanesMeet) {
  Warp warp(2);
  warp.add(0, Kind::shuffle, 1, 0x3);
  warp.add(0, Kind::load, 3);
  warp.add(1, Kind::load, 2);
  warp.add(1, Kind::shuffle, 1, 0x3);
  warp.add(1, Kind::load, 3);
  warp.end();
  EXPECT_EQ(warp.replayed(), "2:2 1:3 3:3");
}

TEST(Replay, LanesThatEndedAreNotWaitedFor) {
  Warp warp(2);
  warp.add(0, Kind::barrier, 1, 0xffffffff);
  warp.add(0, Kind::load, 2);
  warp.end();
  EXPECT_EQ(warp.replayed(), "1:1 2:1");
}

// What a lane does next is not known before it has done it.
TEST(Replay, StopsAtTheEndOfARecord) {
  Warp warp(2);
  warp.add(0, Kind::load, 1);
  warp.add(0, Kind::load, 3);
  warp.add(1, Kind::load, 1);
  EXPECT_EQ(warp.replayed(), "1:3");
  warp.add(1, Kind::load, 2);
  warp.end();
  EXPECT_EQ(warp.replayed(), "2:2 3:1");
}

TEST(Places, CallsStandWhereTheyAreCalled) {
  const auto code = [](int i) { return reinterpret_cast<const void*>(uintptr_t(0x1000 + i)); };
  const Place first_call = place_of(kRoot, code(100)), second_call = place_of(kRoot, code(200));
  const Place in_first = place_of(first_call, code(900)),
              in_second = place_of(second_call, code(900));
  EXPECT_NE(in_first, in_second);
  EXPECT_EQ(in_first, place_of(first_call, code(900)));
  EXPECT_TRUE(stands_before(in_first, in_second));
  EXPECT_TRUE(stands_before(in_first, place_of(kRoot, code(150))));
  EXPECT_FALSE(stands_before(in_second, place_of(kRoot, code(150))));
}

}  // namespace
}  // namespace simt::microscope
