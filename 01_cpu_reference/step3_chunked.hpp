// Step 3: the sequence in chunks of 32 steps, each four products of small matrices, on all cores.
//
// Idea: inside a chunk nobody needs the state after every step. The chunk's outputs come from the
// state before it (Q S) and from its own rows (mask(Q K^T) V), and the state moves on once per
// chunk (S += K^T V); step3_walk_kernel.hpp is the code. The state is touched twice in 32 steps
// instead of three times in every step, and a matrix product keeps its sums in registers.
// Who computes what: a thread walks whole sequences, one (b, h) after the other, while there are
// enough of them for the cores. Otherwise a sequence is cut into segments, in three phases: the
// segments' own sums K^T V, all at once; a running sum over the segments, which gives each the
// state it starts from; then the segments' walks, all at once.
// Work per (b, h): 4 L E M flops as before, and L C (E + M) for the scores with C = 32: a quarter
// more at E = M = 64. Segments read k and v twice and compute K^T V twice: up to 2 L E M more.
// Limited by: the multiply-add units, which a tile of registers keeps busy; below about 64
// columns by the packing of the rows, which grows with E + M and not with E M.
// Next: stage 02 starts over on a GPU, from the recurrence of step 1. Chunks return in stage 05.
#pragma once

#include <vector>

#include "common/tensor_view.cuh"

namespace attn::cpu {

// Instruction sets that the walk is compiled for, from the narrowest to the widest.
enum class Isa { portable, avx2, avx512 };

// Those of this build that this CPU can run; the last is the fastest.
std::vector<Isa> usable_isas();

void causal_product_chunked(TensorView<const float> q, TensorView<const float> k,  // [B, H, L, E]
                            TensorView<const float> v, TensorView<float> o,        // [B, H, L, M]
                            Isa isa = usable_isas().back());

}  // namespace attn::cpu
