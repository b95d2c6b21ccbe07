// Where to cut sequences into segments, and whether it pays.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.hpp"
#include "common/chunked/engine.cuh"
#include "common/chunked/segment_states.cuh"
#include "common/chunked/segments.cuh"
#include "common/device.hpp"
#include "common/stream_buffer.hpp"

namespace attn::chunked {

// [doc:cut]
// Segments of every sequence: how many, and the rows of the first and of each other but the last.
struct Cut {
  int64_t count, first_rows, rows;
};

// What the cost of a cut depends on, beside its rows.
struct Heads {
  int64_t blocks;           // of one segment of all heads
  int64_t multiprocessors;  // of the device
  int64_t side_by_side;     // blocks on one of them, where there are more than multiprocessors
  int64_t sums;        // of what segments add: on one multiprocessor without slowing each other
  int64_t remembered;  // rows after which the decays that the operator is used with leave nothing
};
template <class Tilings>
Heads heads_of(int64_t heads, int64_t E, int64_t M) {
  return {heads * ceil_div(M, column_tile(E)), multiprocessors(),
          E <= 64 ? Tilings::UpTo64::kSizes.blocks : 1, E <= 64 ? 3 : 1,
          Tilings::Decay::kRemembered};
}

// All costs are in rows that a block walks which has a multiprocessor to itself. A block's beginning
// and end take as long as so many: measured on an H200 at E = 64 and 128.
constexpr int64_t kBlockRows = 128;

// [doc:costs]
// When it is known what the segments add. Those rows of a segment that count are summed up in four
// fifths of the time of their walk, on the multiprocessors that first segments leave over.
inline int64_t cost_of_sums(const Cut& cut, const Heads& heads) {
  constexpr int64_t kLaunch = 64;
  const int64_t idle = std::max<int64_t>(1, heads.multiprocessors - heads.blocks);
  const int64_t rows = std::min(std::max(cut.first_rows, cut.rows), heads.remembered);
  return kLaunch + ceil_div((cut.count - 1) * heads.blocks, idle * heads.sums) * rows * 4 / 5;
}

// How long a cut takes. First segments begin at once; the others take turns, beside them when the
// sums are known, and after them. The other launch, and reading what a segment adds, take as long as
// some rows, too.
inline int64_t cost_of(const Cut& cut, const Heads& heads) {
  constexpr int64_t kOtherLaunch = 192, kSegment = 8;
  // Blocks side by side take turns at everything: none is faster for it.
  const int64_t share = cut.count * heads.blocks > heads.multiprocessors ? heads.side_by_side : 1;
  const int64_t at_a_time = share * heads.multiprocessors;
  const int64_t first = share * cut.first_rows + kBlockRows, other = share * cut.rows + kBlockRows;
  if (cut.count == 1) return ceil_div(heads.blocks, at_a_time) * first;
  const int64_t idle = at_a_time - heads.blocks, others = (cut.count - 1) * heads.blocks;
  const int64_t sums = cost_of_sums(cut, heads);
  const int64_t all_beside = sums + ceil_div(others, idle) * other;
  const int64_t beside = std::max<int64_t>(0, first - sums) / other * idle;
  const int64_t rest = ceil_div(std::max<int64_t>(0, others - beside), at_a_time) * other;
  return std::max(first, std::min(all_beside, std::max(first, sums) + rest)) + kOtherLaunch +
         cut.count * kSegment;
}
// [/doc:costs]

// The best cut for heads that do not fill the multiprocessors; others stay whole.
inline Cut best_cut(int64_t L, const Heads& heads) {
  Cut best = {1, L, 0};
  // Of cuts that cost nearly the same, one into short segments: what they add is sooner known where
  // decays are milder than usual.
  const auto score_of = [&](const Cut& cut) {
    return cost_of(cut, heads) + std::max(cut.first_rows, cut.rows) / 8;
  };
  int64_t best_score = 0;
  const int64_t at_a_time = heads.side_by_side * heads.multiprocessors;
  const int64_t idle = at_a_time - heads.blocks;
  if (idle <= 0) return best;
  // As many segments as run at a time, or some more for what that leaves idle.
  for (int64_t wanted = 2; wanted <= at_a_time / heads.blocks + 8; ++wanted) {
    // The first is as long as all the turns that the others take beside it, and until they begin.
    const int64_t turns = ceil_div((wanted - 1) * heads.blocks, idle);
    int64_t more = (turns - 1) * kBlockRows;
    for (int guess = 0; guess < 3; ++guess) {
      const int64_t rows = ceil_div(L - more, (turns + wanted - 1) * kSegmentRows) * kSegmentRows;
      const int64_t first = turns * rows + more;
      if (rows <= 0 || first >= L) break;
      const Cut cut = {1 + ceil_div(L - first, rows), first, rows};
      if (const int64_t score = score_of(cut); best.count == 1 || score < best_score) {
        best = cut;
        best_score = score;
      }
      const int64_t wait = (turns - 1) * kBlockRows + cost_of_sums(cut, heads);
      more = ceil_div(wait, kSegmentRows) * kSegmentRows;
    }
  }
  return best;
}
// [/doc:cut]

// [doc:prefers_segments]
// Whether segments walked at the same time are faster, with the decays that the operator is used with.
// (With none at all, every row of a segment counts.)
inline bool is_faster(const Cut& cut, int64_t L, const Heads& heads) {
  return cost_of(cut, heads) < 0.95 * cost_of({1, L, 0}, heads);
}
template <class Tilings>
bool prefers_segments(int64_t heads, int64_t L, int64_t E, int64_t M) {
  const Heads all = heads_of<Tilings>(heads, E, M);
  return is_faster(best_cut(L, all), L, all);
}
// [/doc:prefers_segments]

// [doc:walk_in_segments]
// Walks sequences in segments at the same time, by two launches that overlap: a first segment waits
// for nothing, and its blocks begin as soon as there is a multiprocessor for them; the others wait for
// what the segments before them add. Throws CudaError also when there is no memory for that.
template <class Tilings>
void walk_cut(const Walk<typename Tilings::T>& x, const Cut& cut, cudaStream_t stream) {
  const int64_t L = x.write.L, E = x.write.D, M = x.value.D;
  // A head's last segment may end before its first one begins, which would then find a state that
  // is kept in place to be the new one.
  const bool in_place = x.final_state.data != nullptr && x.final_state.data == x.initial_state.data;
  if (cut.count == 1 || in_place) return walk_segments<Tilings>(x, one_segment(L), stream);

  // Whole tiles of the blocks of both launches.
  const auto padded = [](int64_t size, int64_t tile) { return ceil_div(size, tile) * tile; };
  Segments segments = {.count = static_cast<int>(cut.count),
                       .first_rows = static_cast<int>(cut.first_rows),
                       .rows = static_cast<int>(cut.rows)};
  segments.e_tiles = static_cast<int>(padded(E, row_tile(E)) / 8);
  segments.m_tiles = static_cast<int>(padded(M, sum_tile(E)) / 16);
  const int64_t states = x.heads() * (segments.count - 1);
  StreamBuffer<float4> added(states * segments.m_tiles * segments.e_tiles * kWarp, stream);
  StreamBuffer<float> log_decay(states * segments.e_tiles * 8, stream);
  segments.added = added.data();
  segments.log_decay = log_decay.data();
  segment_states(x, segments, stream);
  walk_segments<Tilings>(x, segments, stream);
}

// By the best cut; and by it or by none, whichever is faster.
template <class Tilings>
void walk_in_segments(const Walk<typename Tilings::T>& x, cudaStream_t stream) {
  const Heads heads = heads_of<Tilings>(x.heads(), x.write.D, x.value.D);
  walk_cut<Tilings>(x, best_cut(x.write.L, heads), stream);
}
template <class Tilings>
void walk_fastest(const Walk<typename Tilings::T>& x, cudaStream_t stream) {
  const int64_t L = x.write.L;
  const Heads heads = heads_of<Tilings>(x.heads(), x.write.D, x.value.D);
  const Cut cut = best_cut(L, heads);
  walk_cut<Tilings>(x, is_faster(cut, L, heads) ? cut : Cut{1, L, 0}, stream);
}
// [/doc:walk_in_segments]

}  // namespace attn::chunked
