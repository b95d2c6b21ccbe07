// Operations of a warp: how lanes meet, and what the last one to arrive does for all.
//
// Lanes post pointers into their own stacks; no copies are kept. The loops copy words one by one,
// because ThreadSanitizer intercepts memcpy and would check it as an access by the executing lane.

#include <string>

#include "common/simt/block.hpp"

namespace simt {

// The running thread posts its part. True if all lanes of the mask have come: then it makes the
// others ready; else it must suspend itself.
bool Block::meet(WarpRequest& request) {
  const int id = current_;
  const int lane = id % kWarpSize;
  Warp& warp = warps_[id / kWarpSize];
  // A full mask is right in a block's last warp even if it has fewer lanes.
  request.mask &= lanes_of(id / kWarpSize);
  const unsigned mask = request.mask;
  if (!(mask >> lane & 1)) {
    fail(request.site, std::string(request.name) + ": lane " + std::to_string(lane) + " of warp " +
                           std::to_string(id / kWarpSize) + " is not in the mask it gives");
  }

  warp.requests[lane] = &request;
  int g = 0;
  for (; g < warp.group_count; ++g) {
    const Group& group = warp.groups[g];
    if (group.mask != mask) continue;
    const WarpRequest& other = *warp.requests[__builtin_ctz(group.arrived)];
    if (other.execute == request.execute && same_site(other.site, request.site)) break;
  }
  if (g == warp.group_count) warp.groups[warp.group_count++] = {mask, 0};
  Group& group = warp.groups[g];
  group.arrived |= 1u << lane;
  if (group.arrived != mask) return false;
  group = warp.groups[--warp.group_count];
  return true;
}

void Block::collective(WarpRequest& request) {
  const bool complete = meet(request);
  const int warp = current_ / kWarpSize;

  // Only __syncwarp orders memory. The tag of the mask's first lane will do for every mask that
  // it leads: what it has collected, that lane has seen too.
  void* tag = nullptr;
  if (kTsan && request.execute == execute_syncwarp) {
    tag = &tsan_tags_[warp * kWarpSize + __builtin_ctz(request.mask)];
    tsan::release(tag);
  }

  if (!complete) return suspend();
  request.execute(warps_[warp].requests.data(), request.mask);
  next_[warp] |= request.mask & ~(1u << current_ % kWarpSize);
  if (tag != nullptr) acquire(tag, warp, request.mask);
}

void warp_collective(WarpRequest& request) {
  Block& block = Block::running();
  block.recorder().collective(request, __builtin_return_address(0));
  block.collective(request);
}

namespace {

using Lanes = WarpRequest* const*;

template <class F>
void for_each_lane(unsigned mask, F f) {
  for (; mask != 0; mask &= mask - 1) f(__builtin_ctz(mask));
}

// `source_of(lane, first, last, argument)` is the lane whose value `lane` receives, within its
// segment [first, last]. Of the argument PTX takes 5 bits, and so does the hardware.
template <class F>
void shuffle_lanes(Lanes lanes, unsigned mask, F source_of) {
  for_each_lane(mask, [&](int lane) {
    const WarpRequest& request = *lanes[lane];
    const int width = request.width;
    if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
      Block::running().fail(request.site, std::string(request.name) + ": width " +
                                              std::to_string(width) +
                                              " is no power of two up to 32");
    }
    const int first = lane & ~(width - 1);
    const int source = source_of(lane, first, first + width - 1, request.lane & 31);
    if (!(mask >> source & 1)) {
      Block::running().fail(request.site, std::string(request.name) + ": lane " +
                                              std::to_string(lane) + " reads from lane " +
                                              std::to_string(source) +
                                              ", which is not in the mask");
    }
    const auto* in = static_cast<const uint32_t*>(lanes[source]->in);
    auto* out = static_cast<uint32_t*>(request.out);
    for (int i = 0; i < request.words; ++i) out[i] = in[i];
    msan::copied(out, in, request.words * sizeof *out);
  });
}

}  // namespace

void execute_syncwarp(Lanes, unsigned) {}

void execute_shfl(Lanes lanes, unsigned mask) {
  shuffle_lanes(lanes, mask, [](int, int first, int last, int source) {
    return first + (source & (last - first));
  });
}

// A source outside of the segment: the lane keeps its own value.

void execute_shfl_up(Lanes lanes, unsigned mask) {
  shuffle_lanes(lanes, mask, [](int lane, int first, int, int delta) {
    return lane - delta < first ? lane : lane - delta;
  });
}

void execute_shfl_down(Lanes lanes, unsigned mask) {
  shuffle_lanes(lanes, mask, [](int lane, int, int last, int delta) {
    return lane + delta > last ? lane : lane + delta;
  });
}

// With xor, unlike the others, an earlier segment can be read and only a later one cannot.
void execute_shfl_xor(Lanes lanes, unsigned mask) {
  shuffle_lanes(lanes, mask, [](int lane, int, int last, int lane_mask) {
    return (lane ^ lane_mask) > last ? lane : lane ^ lane_mask;
  });
}

void execute_ballot(Lanes lanes, unsigned mask) {
  unsigned ballot = 0;
  for_each_lane(mask, [&](int lane) {
    if (*static_cast<const int*>(lanes[lane]->in) != 0) ballot |= 1u << lane;
  });
  for_each_lane(mask, [&](int lane) { *static_cast<unsigned*>(lanes[lane]->out) = ballot; });
}

}  // namespace simt
