// The parts of every sequence that are walked at the same time, and what they leave each other.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "common/warp.cuh"

namespace attn::chunked {

// The most rows that a tiling has in a round, or segment_states.cuh in a step.
constexpr int kSegmentRows = 64;

// [doc:segments]
struct Segments {
  int count;       // of a sequence
  int first_rows;  // of the first segment, and ...
  int rows;        // ... of each other but the last; multiples of kSegmentRows

  // Of each segment but a sequence's last: what its rows add to the state, begun at zero, as
  // accumulators of mma.sync of the state transposed, in tiles of 16 value columns and 8 rows of the
  // state: [B H (count - 1)][m_tiles][e_tiles][32 lanes]. And the logarithm, to base 2, of what a
  // state decays by over the segment: [B H (count - 1)][8 e_tiles]; -inf of rows that E does not have.
  float4* added = nullptr;
  float* log_decay = nullptr;
  int m_tiles = 0, e_tiles = 0;

  __device__ int begin(int segment) const {
    return segment == 0 ? 0 : first_rows + (segment - 1) * rows;
  }
  __device__ float4& added_at(int64_t head, int segment, int m_tile, int e_tile, int lane) const {
    const int64_t tile = (index(head, segment) * m_tiles + m_tile) * e_tiles + e_tile;
    return added[tile * kWarp + lane];
  }
  __device__ float* log_decay_of(int64_t head, int segment) const {
    return log_decay + index(head, segment) * e_tiles * 8;
  }

  // The same of the state's rows from e on.
  Segments from_row(int64_t e) const {
    Segments part = *this;
    if (count == 1) return part;
    part.added += e / 8 * kWarp;
    part.log_decay += e;
    return part;
  }

 private:
  __device__ int64_t index(int64_t head, int segment) const { return head * (count - 1) + segment; }
};
// [/doc:segments]

inline Segments one_segment(int64_t L) { return {1, static_cast<int>(L), 0}; }

}  // namespace attn::chunked
