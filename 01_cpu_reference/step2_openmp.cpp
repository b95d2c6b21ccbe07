// See step2_openmp.hpp. A file of its own, so that only this file is compiled with OpenMP.
#include "01_cpu_reference/step2_openmp.hpp"

#include "01_cpu_reference/step1_scalar.hpp"

namespace attn::cpu {

// [doc:openmp]
void causal_product_openmp(TensorView<const float> q, TensorView<const float> k,
                           TensorView<const float> v, TensorView<float> o) {
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t b = 0; b < q.B; b++) {
    for (int64_t h = 0; h < q.H; h++) recurrence(q, k, v, o, b, h);
  }
}
// [/doc:openmp]

}  // namespace attn::cpu
