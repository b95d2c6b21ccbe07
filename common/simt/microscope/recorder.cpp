#include "common/simt/microscope/recorder.hpp"

#include <algorithm>
#include <utility>

#include "common/simt/block.hpp"
#include "common/simt/microscope/launches.hpp"
#include "common/simt/microscope/memory_model.hpp"

namespace simt::microscope {

namespace {

constexpr int kWarpSize = 32;

Kind kind_of(const WarpRequest& request) {
  const std::pair<WarpRequest::Execute, Kind> kinds[] = {
      {execute_syncwarp, Kind::syncwarp},
      {execute_ballot, Kind::vote},
      {execute_ldmatrix, Kind::ldmatrix},
      {execute_ldmatrix_trans, Kind::ldmatrix},
      {execute_mma_m16n8k16_bf16, Kind::mma_bf16},
      {execute_mma_m16n8k8_tf32, Kind::mma_tf32},
  };
  for (const auto& [execute, kind] : kinds)
    if (request.execute == execute) return kind;
  return Kind::shuffle;
}

}  // namespace

Recorder::Recorder(const SharedRegion& static_shared, const SharedRegion& dynamic_shared)
    : static_begin_(reinterpret_cast<uint64_t>(static_shared.data())),
      static_size_(static_shared.capacity()),
      dynamic_begin_(reinterpret_cast<uint64_t>(dynamic_shared.data())),
      dynamic_size_(dynamic_shared.capacity()),
      lanes_(std::make_unique<Lane[]>(Block::kMaxThreads)) {}

void Recorder::begin_block(int threads) {
  threads_ = threads;
  counting_ = counting();
  for (int i = 0; i < threads; ++i) lanes_[i].begin();
}

void Recorder::enter(int thread) {
  lane_ = &lanes_[thread];
  current_ = counting_ ? this : nullptr;
}

void Recorder::thread_ended(int thread) {
  lanes_[thread].end();
  current_ = nullptr;
}

void Recorder::mute(bool muted) { current_ = counting_ && !muted ? this : nullptr; }

void Recorder::end_block(std::size_t shared_bytes) {
  current_ = nullptr;
  if (!counting_) return;
  for (int warp = 0; warp * kWarpSize < threads_; ++warp) replay_warp(warp);
  shared_bytes_ = std::max(shared_bytes_, shared_bytes);
}

void Recorder::end_launch() {
  if (counting_) add_to_launch(counts_, shared_bytes_, most_atomics_);
  counts_ = {};
  shared_bytes_ = 0;
  most_atomics_ = 0;
  counting_ = false;
}

void Recorder::collective(const WarpRequest& request, const void* code) {
  meet(kind_of(request), request.mask, code);
}

void Recorder::meet(Kind kind, unsigned mask, const void* code) {
  if (counting_) record(kind, mask, 0, code);
}

void Recorder::copy(const AsyncCopy& copy, const void* code) {
  if (!counting_) return;
  record(Kind::copy_load, copy.valid ? reinterpret_cast<uint64_t>(copy.source) : 0, copy.bytes,
         code);
  record(Kind::copy_store, reinterpret_cast<uint64_t>(copy.destination), copy.bytes, code);
}

void Recorder::make_room() {
  Lane& lane = *lane_;
  const int warp = int(lane_ - lanes_.get()) / kWarpSize;
  if (lane.size() != 0) {
    replay_warp(warp);
    if (lane.has_room()) return;
    Block::running().give_way();  // the other lanes catch up
    replay_warp(warp);
    if (lane.has_room()) return;
  }
  lane.grow();
}

void Recorder::replay_warp(int warp) {
  replay(&lanes_[warp * kWarpSize], std::min(threads_ - warp * kWarpSize, kWarpSize),
         [this](const auto& events, uint32_t lanes) { count(events, lanes); });
}

void Recorder::count(const std::array<const Event*, 32>& events, uint32_t lanes) {
  const Event& first = *events[std::countr_zero(lanes)];
  WarpAccess access{lanes, first.bytes, {}};
  if (!lanes_meet(first.kind)) {
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      access.address[lane] = events[lane]->address;
      if (events[lane]->address == 0) access.lanes &= ~(1u << lane);
    }
    if (access.lanes == 0) return;  // cp.async with nothing to read
  }

  const uint64_t address = access.address[std::countr_zero(access.lanes)];
  const Space space = lanes_meet(first.kind) ? Space::none
                      : is_shared(address)   ? Space::shared
                                             : Space::global;
  Count& count = counts_.at(first.place, space);
  count.kind = first.kind;
  count.space = space;
  count.bytes = first.bytes;
  ++count.warps;
  count.lanes += std::popcount(access.lanes);
  if (space == Space::none) return;

  const bool reads = first.kind == Kind::load || first.kind == Kind::copy_load;
  count.asked += distinct_bytes(access);
  if (space == Space::shared) {
    const int wavefronts = reads ? load_wavefronts(access) : store_wavefronts(access);
    count.wavefronts += wavefronts;
    count.ideal += ideal_wavefronts(access, wavefronts);
    return;
  }
  if (first.kind == Kind::atomic) {
    count.sectors += atomic_sectors(access);
    count.contention = std::max(count.contention, contention(access));
  } else {
    count.sectors += sectors(access);
  }
  for (uint32_t rest = access.lanes; rest != 0; rest &= rest - 1) {
    const uint64_t at = access.address[std::countr_zero(rest)];
    if (reads || first.kind == Kind::atomic) note_read(at, first.bytes);
    if (!reads) note_written(at, first.bytes);
    if (first.kind == Kind::atomic) most_atomics_ = std::max(most_atomics_, note_atomic(at));
  }
}

}  // namespace simt::microscope
