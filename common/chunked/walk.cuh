// What the engine computes: a walk along a sequence, with a state that decays, that every row is
// written into, and that every row reads.
//
//   S_t = diag(exp decay_t) S_{t-1} + write_t value_t^T                       [E, M]
//   output_t = scale * read_t^T S_t                                           inclusive
//   output_t = scale * read_t^T (S_{t-1} + diag(bonus) write_t value_t^T)     exclusive
//
// Rows are named by what they do to the state. In a forward pass read, write and value are q, k and v;
// a walk backwards is one over flipped views, with other rows in these roles.
#pragma once

#include <cuda_runtime.h>

#include "common/tensor_view.cuh"

namespace attn::chunked {

// T is float or __nv_bfloat16. States are float in either case. The operands fit together, E is at
// most 512 and L at most 2^30: a stage's operands are checked before they become a Walk.
template <class T>
struct Walk {
  TensorView<const T> read, write;  // [B, H, L, E]
  TensorView<const T> value;        // [B, H, L, M]
  TensorView<const T> decay;        // [B, H, L, E], <= 0: natural logarithms; -inf resets
  TensorView<T> output;             // [B, H, L, M]
  float scale;
  TensorView<const float> initial_state;  // [B, H, E, M]; data null: zeros
  TensorView<float> final_state;          // [B, H, E, M]; data null: not wanted
  TensorView<const T> bonus = {};         // [1, H, 1, E]; of exclusive walks only

  int64_t heads() const { return read.B * read.H; }
};

// Rows [first, first + size) of the state, or as many as there are: what a block can hold of it.
template <class T>
Walk<T> state_part(Walk<T> x, int64_t first, int64_t size) {
  x.read = columns(x.read, first, size);
  x.write = columns(x.write, first, size);
  x.decay = columns(x.decay, first, size);
  x.bonus = columns(x.bonus, first, size);
  x.initial_state = state_rows(x.initial_state, first, size);
  x.final_state = state_rows(x.final_state, first, size);
  return x;
}

}  // namespace attn::chunked
