// Named barriers (common/ptx/named_barrier.cuh). As on the GPU, it is warps that arrive: the lanes
// of a warp meet, and the last of them counts the warp.

#include <string>

#include "common/simt/block.hpp"

namespace simt {

void Block::named_barrier(const char* name, const NamedBarrierOperands& operands, Site site) {
  const int id = operands.barrier, threads = operands.threads;
  auto refuse = [&](const std::string& why) {
    fail(site, std::string(name) + ": barrier " + std::to_string(id) + " for " +
                   std::to_string(threads) + " threads" + why);
  };
  if (id < 1 || id >= kNamedBarriers) refuse("; barriers are 1 to 15");
  if (threads < kWarpSize || threads % kWarpSize != 0) refuse(", which must be a multiple of 32");
  const int warps = (launch_->threads + kWarpSize - 1) / kWarpSize;
  if (threads > warps * kWarpSize) {
    refuse(", the block has " + std::to_string(launch_->threads));
  }

  threads_[current_].site = site;
  void* tag = nullptr;
  if constexpr (kTsan) {
    // One for all uses of the barrier is exact if each has the same participants, else too lenient.
    tag = &tsan_tags_[launch_->threads + id];
    tsan::release(tag);
  }
  WarpRequest request{name, nullptr, 0xffffffffu, site, &operands};
  if (!meet(request)) return suspend();

  const int warp = current_ / kWarpSize;
  for (unsigned rest = request.mask; rest != 0; rest &= rest - 1) {
    const void* other = warps_[warp].requests[__builtin_ctz(rest)]->in;
    if (*static_cast<const NamedBarrierOperands*>(other) != operands) {
      refuse("; other lanes of the warp disagree");
    }
  }
  NamedBarrier& barrier = named_barriers_[id];
  if (barrier.arrived == 0) {
    barrier.threads = threads;
    barrier.site = site;
  } else if (threads != barrier.threads) {
    refuse(", but for " + std::to_string(barrier.threads) + " at " + to_string(barrier.site));
  }
  barrier.arrived += kWarpSize;
  if (operands.wait) {
    barrier.waiting |= 1u << warp;
  } else {
    next_[warp] |= request.mask & ~(1u << current_ % kWarpSize);
  }

  if (barrier.arrived == threads) {
    require_intact_shared_memory(site);
    for (unsigned rest = barrier.waiting; rest != 0; rest &= rest - 1) {
      const int ready = __builtin_ctz(rest);
      next_[ready] |= lanes_of(ready);
      if constexpr (kTsan) acquire(tag, ready, lanes_of(ready));
    }
    barrier = {};
  }
  if (operands.wait) suspend();
}

void named_barrier(const char* name, const NamedBarrierOperands& operands, Site site) {
  Block& block = Block::running();
  block.recorder().named_barrier(~0u, __builtin_return_address(0));
  block.named_barrier(name, operands, site);
}

}  // namespace simt
