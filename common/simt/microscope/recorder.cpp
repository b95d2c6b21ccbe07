#include "common/simt/microscope/recorder.hpp"

#include <algorithm>
#include <utility>

#include "common/simt/block.hpp"
#include "common/simt/microscope/launches.hpp"

namespace simt::microscope {

namespace {

constexpr int kWarpSize = 32;

Kind kind_of(const WarpRequest& request) {
  const std::pair<WarpRequest::Execute, Kind> kinds[] = {
      {execute_syncwarp, Kind::syncwarp},
      {execute_ballot, Kind::vote},
      {execute_shfl, Kind::shuffle},
      {execute_shfl_up, Kind::shuffle},
      {execute_shfl_down, Kind::shuffle},
      {execute_shfl_xor, Kind::shuffle},
      {execute_ldmatrix, Kind::ldmatrix},
      {execute_ldmatrix_trans, Kind::ldmatrix},
      {execute_mma_m16n8k16_bf16, Kind::mma_bf16},
      {execute_mma_m16n8k16_fp16, Kind::mma_fp16},
      {execute_mma_m16n8k8_tf32, Kind::mma_tf32},
  };
  for (const auto& [execute, kind] : kinds)
    if (request.execute == execute) return kind;
  return Kind::other;
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
  const uint64_t to = reinterpret_cast<uint64_t>(copy.destination);
  const bool in_static = to - static_begin_ < static_size_;
  record(Kind::copy_load,
         copy_addresses(copy.valid ? reinterpret_cast<uint64_t>(copy.source) : 0,
                        to - (in_static ? static_begin_ : dynamic_begin_)),
         copy.bytes, code);
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
  if (lanes_meet(first.kind)) {
    one_more(first, first.kind, Space::none, lanes);
  } else if (first.kind == Kind::copy_load) {
    count_copy(first, events, lanes);
  } else {
    WarpAccess access{lanes, first.bytes, {}};
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      access.address[lane] = events[lane]->address;
    }
    if (is_shared(first.address)) {
      count_shared(first, access);
    } else {
      count_global(first, access);
    }
  }
}

Count& Recorder::one_more(const Event& event, Kind kind, Space space, uint32_t lanes) {
  Count& count = counts_.at(event.place, space);
  count.kind = kind;
  count.space = space;
  count.bytes = event.bytes;
  ++count.warps;
  count.lanes += std::popcount(lanes);
  return count;
}

void Recorder::count_shared(const Event& event, const WarpAccess& access) {
  Count& count = one_more(event, event.kind, Space::shared, access.lanes);
  const int wavefronts =
      event.kind == Kind::load ? load_wavefronts(access) : store_wavefronts(access);
  count.asked += distinct_bytes(access);
  count.wavefronts += wavefronts;
  count.ideal += ideal_wavefronts(access, wavefronts);
}

void Recorder::count_global(const Event& event, const WarpAccess& access) {
  Count& count = one_more(event, event.kind, Space::global, access.lanes);
  count.asked += distinct_bytes(access);
  if (event.kind == Kind::atomic) {
    count.sectors += atomic_sectors(access);
    count.contention = std::max(count.contention, contention(access));
  } else {
    count.sectors += sectors(access);
  }
  note_touched(event.kind, access);
}

void Recorder::count_copy(const Event& event, const std::array<const Event*, 32>& events,
                          uint32_t lanes) {
  WarpCopy copy{{0, event.bytes, {}}};
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    copy.read.address[lane] = copy_from(events[lane]->address);
    copy.shared[lane] = copy_to(events[lane]->address);
    if (copy.read.address[lane] != 0) copy.read.lanes |= 1u << lane;
  }
  copy.zeros = copy.read.lanes != lanes;
  if (copy.read.lanes != 0) {
    Count& from = one_more(event, Kind::copy_load, Space::global, copy.read.lanes);
    from.asked += distinct_bytes(copy.read);
    from.sectors += copy_sectors(copy);
    note_touched(Kind::copy_load, copy.read);
  }
  Count& to = one_more(event, Kind::copy_store, Space::shared, lanes);
  to.wavefronts += copy_wavefronts(copy);
  to.ideal += ideal_copy_wavefronts(copy);
}

void Recorder::note_touched(Kind kind, const WarpAccess& access) {
  for (uint32_t rest = access.lanes; rest != 0; rest &= rest - 1) {
    const uint64_t at = access.address[std::countr_zero(rest)];
    if (kind != Kind::store) note_read(at, access.bytes);
    if (kind == Kind::store || kind == Kind::atomic) note_written(at, access.bytes);
    if (kind == Kind::atomic) most_atomics_ = std::max(most_atomics_, note_atomic(at));
  }
}

}  // namespace simt::microscope
