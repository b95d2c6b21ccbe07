// RWKV-6 with every sequence cut into segments that are walked at the same time.
//
// The idea: with few heads, the chunked kernel leaves multiprocessors idle. What segments need of
// each other is the state they begin with, and the state after a segment is
//
//   (what the segment adds, begun at zero) + (what it decays by) * (the state it began with),
//
// and neither needs a recurrence: they are sums over the segment's rows. So two launches do it:
// segment_states.cuh, and the chunked kernel on all segments at once, which begins each by putting
// together what the segments before it left.
//
// Who computes what: as in the chunked kernel. That a block goes through the segments before its own
// costs a few reads from L2, which is less than a third launch for a scan; and it goes no further
// back than anything is left from.
//
// What memory moves: r and o once; k, v and w nearly twice, or where decays are strong once and the
// last rows of each segment again; 4 bytes of state per element and segment written, and read once
// for each later segment that it reaches.
//
// What limits it: the same latency as the chunked kernel's, in a shorter walk, and the beginning and
// end of two launches.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "06_rwkv6/operands.cuh"
#include "06_rwkv6/segment_states.cuh"
#include "06_rwkv6/step3_chunked.cuh"
#include "common/ceil_div.hpp"
#include "common/device.hpp"
#include "common/stream_buffer.hpp"

namespace attn::rwkv6 {

// [doc:cut]
// Segments of every sequence: how many, and the rows of the first and of each other but the last.
struct Cut {
  int64_t count, first_rows, rows;
};

// The blocks of one segment of every head, and how many blocks run at a time.
struct Blocks {
  int64_t of_segment, at_a_time;
};
template <class T>
Blocks blocks_of(int64_t heads, int64_t E, int64_t M) {
  return {heads * ceil_div(M, column_tile(E)),
          multiprocessors() * (sizeof(T) == 2 && E <= 64 ? 2 : 1)};
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
  constexpr int64_t kWholeRounds = 32;  // the rows of a round, or of two
  Cut best = {1, L, 0};
  const int64_t idle = blocks.at_a_time - blocks.of_segment;
  if (idle <= 0) return best;
  // Of what runs at a time, or some more for what that leaves idle.
  for (int64_t wanted = 2; wanted <= blocks.at_a_time / blocks.of_segment + 8; ++wanted) {
    // The first segment is as long as the others, or as all the turns that they take beside it.
    for (int64_t turns : {int64_t{1}, ceil_div((wanted - 1) * blocks.of_segment, idle)}) {
      const int64_t more = (turns - 1) * kBlockRows;
      const int64_t rows = ceil_div(L - more, (turns + wanted - 1) * kWholeRounds) * kWholeRounds;
      const int64_t first = turns * rows + more;
      if (rows <= 0 || first >= L) continue;
      const Cut cut = {1 + ceil_div(L - first, rows), first, rows};
      if (best.count == 1 || cost_of(cut, blocks) < cost_of(best, blocks)) best = cut;
    }
  }
  return best;
}
// [/doc:cut]

// [doc:chunked_parallel]
// As chunked_rwkv6. Throws CudaError also when there is no memory for the states of the segments.
template <class T>
void chunked_parallel_rwkv6(const Rwkv6Operands<T>& operands, cudaStream_t stream = 0) {
  const Rwkv6Operands<T> x = in_walking_order(operands);
  const int64_t B = x.r.B, H = x.r.H, L = x.r.L, E = x.r.D, M = x.v.D;
  // In place, the last segment could store the final state before others have read the initial one.
  const bool in_place = x.final_state.data != nullptr && x.final_state.data == x.initial_state.data;
  const Cut cut = in_place ? Cut{1, L, 0} : best_cut(L, blocks_of<T>(B * H, E, M));
  // Whole tiles of the blocks of both launches.
  const auto padded = [](int64_t size, int64_t tile) { return ceil_div(size, tile) * tile; };
  const int64_t eights = padded(E, row_tile(E)) / 8;
  const int64_t column_tiles = padded(M, column_tile(E)) / 16;
  const int64_t states = B * H * (cut.count - 1);
  const int64_t added = states * eights * column_tiles * kWarp;
  StreamBuffer<float4> memory(added + states * eights * 2, stream);
  const Segments segments = {
      .count = static_cast<int>(cut.count),
      .first_rows = static_cast<int>(cut.first_rows),
      .rows = static_cast<int>(cut.rows),
      .eights = static_cast<int>(eights),
      .column_tiles = static_cast<int>(column_tiles),
      .added = memory.data(),
      .log_decay = reinterpret_cast<float*>(memory.data() + added),
  };
  if (cut.count > 1) segment_states(x, segments, stream);
  chunked_segments(x, segments, stream);
}
// [/doc:chunked_parallel]

}  // namespace attn::rwkv6
