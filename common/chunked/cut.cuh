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

// The blocks of one segment of every head, and how many blocks run at a time.
struct Blocks {
  int64_t of_segment, at_a_time;
};
template <class Tilings>
Blocks blocks_of(int64_t heads, int64_t E, int64_t M) {
  return {heads * ceil_div(M, column_tile(E)),
          multiprocessors() * (E <= 64 ? Tilings::UpTo64::kSizes.blocks : 1)};
}

// A block's beginning and end take as long as so many rows: measured on an H200 at E = 64 and 128.
constexpr int64_t kBlockRows = 128;

// How long a cut takes, in rows that a block walks. First segments begin first, and the others take
// turns, beside them and then after them. The other launch takes as long as some rows, too, and so
// does reading what a segment adds.
inline int64_t cost_of(const Cut& cut, const Blocks& blocks) {
  constexpr int64_t kLaunch = 128, kSegment = 8;
  const int64_t first = cut.first_rows + kBlockRows, other = cut.rows + kBlockRows;
  if (cut.count == 1) return ceil_div(blocks.of_segment, blocks.at_a_time) * first;
  const int64_t beside = first / other * (blocks.at_a_time - blocks.of_segment);
  const int64_t after = std::max<int64_t>(0, (cut.count - 1) * blocks.of_segment - beside);
  return first + ceil_div(after, blocks.at_a_time) * other + kLaunch + cut.count * kSegment;
}

// The best cut for heads that do not fill the multiprocessors; others stay whole.
inline Cut best_cut(int64_t L, const Blocks& blocks) {
  Cut best = {1, L, 0};
  const int64_t idle = blocks.at_a_time - blocks.of_segment;
  if (idle <= 0) return best;
  // Of what runs at a time, or some more for what that leaves idle.
  for (int64_t wanted = 2; wanted <= blocks.at_a_time / blocks.of_segment + 8; ++wanted) {
    // The first segment is as long as the others, or as all the turns that they take beside it.
    for (int64_t turns : {int64_t{1}, ceil_div((wanted - 1) * blocks.of_segment, idle)}) {
      const int64_t more = (turns - 1) * kBlockRows;
      const int64_t rows = ceil_div(L - more, (turns + wanted - 1) * kSegmentRows) * kSegmentRows;
      const int64_t first = turns * rows + more;
      if (rows <= 0 || first >= L) continue;
      const Cut cut = {1 + ceil_div(L - first, rows), first, rows};
      if (best.count == 1 || cost_of(cut, blocks) < cost_of(best, blocks)) best = cut;
    }
  }
  return best;
}
// [/doc:cut]

// [doc:prefers_segments]
// Whether segments walked at the same time are faster. By the cost of strong decays, of which a
// segment's last hundred rows are all that reaches the next; with mild ones segments read writes,
// values and decays twice, and where they gain little they lose.
template <class Tilings>
bool prefers_segments(int64_t heads, int64_t L, int64_t E, int64_t M) {
  const Blocks blocks = blocks_of<Tilings>(heads, E, M);
  return cost_of(best_cut(L, blocks), blocks) < 0.85 * cost_of({1, L, 0}, blocks);
}
// [/doc:prefers_segments]

// [doc:walk_in_segments]
// Walks sequences in segments at the same time, by two launches that overlap: a first segment waits
// for nothing, and its blocks begin as soon as there is a multiprocessor for them; the others wait for
// what the segments before them add. Throws CudaError also when there is no memory for that.
template <class Tilings>
void walk_in_segments(const Walk<typename Tilings::T>& x, cudaStream_t stream) {
  const int64_t L = x.write.L, E = x.write.D, M = x.value.D;
  const Cut cut = best_cut(L, blocks_of<Tilings>(x.heads(), E, M));
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
// [/doc:walk_in_segments]

}  // namespace attn::chunked
