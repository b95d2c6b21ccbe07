// Step 2: the same recurrence, the (b, h) pairs shared out over the cores.
//
// Idea: no two (b, h) touch the same data, so they need no word from each other.
// Who computes what: a core takes whole pairs, as it becomes free.
// Work: as in step 1.
// Limited by: as in step 1 on every core. At B H = 1 there is one pair, and the speedup is 1: the
// recurrence gives no two steps of a sequence to different cores.
// Step 3 removes: the passes of S through the core for every step, and the bound of one core for
// one sequence.
#pragma once

#include "common/tensor_view.cuh"

namespace attn::cpu {

void causal_product_openmp(TensorView<const float> q, TensorView<const float> k,  // [B, H, L, E]
                           TensorView<const float> v, TensorView<float> o);       // [B, H, L, M]

}  // namespace attn::cpu
