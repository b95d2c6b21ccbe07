// Gated linear attention with every sequence cut into segments that are walked at the same time.
//
// The idea: with few heads, the fused kernel leaves multiprocessors idle. What segments need of each
// other is the state they begin with, and the state after a segment is
//
//   (what the segment adds, begun at zero) + (what it decays by) * (the state it began with).
//
// What a segment adds takes no recurrence, and no outputs: segment_states.cuh has a kernel for it,
// which takes half to two thirds of the time of the walk, and much less where gates let it end
// early. Then the fused kernel walks all segments, each from the state that it puts together from
// the segments before.
//
// Who computes what: the two launches overlap. A first segment waits for nothing, and its blocks
// begin as soon as there is a multiprocessor for them; the others wait for the kernel before.
//
// What memory moves: q and o once, k, g and v twice at the most, 4 bytes per element of the state and
// segment, and as much for each later segment that remembers it. This is the literature's way to
// recompute: keeping the state of every 64 rows instead would write and read 2 E M / 64 floats per
// row, for E = M = 128 in bf16 2.7 times as much as reading k, v and g again.
//
// What limits it: the same latency as in step 2, over a shorter walk; and with few segments that the
// later ones wait for what the first ones add. 64 heads of E = M = 64 are not faster in two segments
// than in one until L = 4096.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "05_chunked_gla/operands.cuh"
#include "05_chunked_gla/segment_states.cuh"
#include "05_chunked_gla/segments.cuh"
#include "05_chunked_gla/step2_fused.cuh"
#include "common/ceil_div.hpp"
#include "common/device.hpp"
#include "common/stream_buffer.hpp"

namespace attn::chunked_gla {

// [doc:cut]
// Segments that fill the multiprocessors, one block each. Where there are not even two blocks for
// each, the first segment of a head has a multiprocessor to itself, and the others are walked one
// after another by those that are left over, while it is.
inline Segments cut(int64_t heads, int64_t L, int64_t E, int64_t M) {
  const int64_t blocks = heads * ceil_div(M, column_tile(E)), all = multiprocessors();
  if (blocks >= all) return one_segment(L);
  const int64_t others = std::max<int64_t>(1, all / blocks - 1);
  const int64_t in_turn = ceil_div(others * blocks, all - blocks);
  // A segment takes its time for its rows, and for each segment before it that is not forgotten as
  // much as for some five rows: the sum is the least where there are as many of both.
  const int64_t least_rows = static_cast<int64_t>(std::sqrt(5.0 * L));
  const int64_t wanted_rows = std::max(ceil_div(L, others + in_turn), least_rows);
  const int64_t rows = ceil_div(wanted_rows, kSegmentRows) * kSegmentRows, first = in_turn * rows;
  if (L <= first) return one_segment(L);
  return {.count = static_cast<int>(1 + ceil_div(L - first, rows)),
          .first_rows = static_cast<int>(first),
          .rows = static_cast<int>(rows)};
}
// [/doc:cut]

// [doc:chunk_parallel]
// As fused_gla. Throws CudaError also when there is no memory for the states of the segments.
template <class T>
void chunk_parallel_gla(const GlaOperands<T>& x, cudaStream_t stream = 0) {
  check_gla(x);
  const int64_t heads = x.q.B * x.q.H, E = x.q.D, M = x.v.D;
  Segments segments = cut(heads, x.q.L, E, M);
  // A head's last segment may end before its first one begins, which would then find a state that
  // is kept in place to be the new one.
  const bool in_place = x.final_state.data != nullptr && x.final_state.data == x.initial_state.data;
  if (segments.count == 1 || in_place) return fused_gla(x, stream);

  segments.e_tiles = static_cast<int>(ceil_div(E, row_tile(E)) * row_tile(E) / 8);
  segments.m_tiles = static_cast<int>(ceil_div(M, sum_tile(E)) * sum_tile(E) / 16);
  const int64_t states = heads * (segments.count - 1);
  StreamBuffer<float4> added(states * segments.m_tiles * segments.e_tiles * kWarp, stream);
  StreamBuffer<float> log_decay(states * segments.e_tiles * 8, stream);
  segments.added = added.data();
  segments.log_decay = log_decay.data();
  segment_states(x, segments, stream);
  fused_segments(x, segments, stream);
}
// [/doc:chunk_parallel]

}  // namespace attn::chunked_gla
