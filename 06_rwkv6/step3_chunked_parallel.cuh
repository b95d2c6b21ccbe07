// RWKV-6 with every sequence cut into segments that are walked at the same time.
//
// The idea: with few heads, the chunked kernel leaves multiprocessors idle. What segments need of
// each other is the state they begin with, and the state after a segment is
//
//   (what the segment adds, begun at zero) + (what it decays by) * (the state it began with),
//
// so that two launches of the chunked kernel do it: one without outputs, for what each segment but
// the last adds and decays by; and one that begins each segment by putting together what the
// segments before it left.
//
// Who computes what: as in the chunked kernel. That a block goes through all segments before its own
// costs a few reads from L2, which is less than a third launch for a scan.
//
// What memory moves: k, v and w nearly twice, r and o once, 4 bytes of state per element and segment
// written, and read once for each later segment.
//
// What limits it: the same latency as the chunked kernel's, twice over a shorter walk.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "06_rwkv6/operands.cuh"
#include "06_rwkv6/segment_states.cuh"
#include "06_rwkv6/step3_chunked.cuh"
#include "common/device.hpp"
#include "common/stream_buffer.hpp"

namespace attn::rwkv6 {

// [doc:segments_to_fill]
// How many segments fill the multiprocessors.
template <class T>
int64_t segments_to_fill(int64_t heads, int64_t E, int64_t M) {
  const int64_t side_by_side = sizeof(T) == 2 && E <= 64 ? 2 : 1;  // blocks of one multiprocessor
  const int64_t blocks = heads * ((M + column_tile(E) - 1) / column_tile(E));
  return std::max<int64_t>(1, side_by_side * multiprocessors() / blocks);
}
// [/doc:segments_to_fill]

// [doc:chunked_parallel]
// As chunked_rwkv6. Throws CudaError also when there is no memory for the states of the segments.
template <class T>
void chunked_parallel_rwkv6(const Rwkv6Operands<T>& operands, cudaStream_t stream = 0) {
  const Rwkv6Operands<T> x = in_walking_order(operands);
  const int64_t B = x.r.B, H = x.r.H, L = x.r.L, E = x.r.D, M = x.v.D;
  constexpr int64_t kWholeRounds = 32;  // the rows of a round, or of two
  const int64_t wanted = segments_to_fill<T>(B * H, E, M);
  const int64_t rows = (L + wanted * kWholeRounds - 1) / (wanted * kWholeRounds) * kWholeRounds;
  const int64_t count = (L + rows - 1) / rows;

  // Whole tiles of the blocks of both launches.
  const auto padded = [](int64_t size, int64_t tile) { return (size + tile - 1) / tile * tile; };
  const int64_t eights = padded(E, row_tile(E)) / 8;
  const int64_t column_tiles = padded(M, E <= 64 ? 64 : 128) / 16;
  const int64_t states = B * H * (count - 1);
  StreamBuffer<float4> added(states * eights * column_tiles * kWarp, stream);
  StreamBuffer<float> log_decay(states * eights * 8, stream);
  const Segments segments = {
      .count = static_cast<int>(count),
      .rows = static_cast<int>(rows),
      .eights = static_cast<int>(eights),
      .column_tiles = static_cast<int>(column_tiles),
      .added = added.data(),
      .log_decay = log_decay.data(),
  };
  if (count > 1) segment_states(x, segments, stream);
  chunked_segments(x, segments, stream);
}
// [/doc:chunked_parallel]

}  // namespace attn::rwkv6
