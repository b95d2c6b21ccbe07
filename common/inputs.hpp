// Seeded inputs. An element depends on the seed, the tensor's name and the element's logical index
// (b, h, l, d) alone: not on layout, sizes, thread count or order. So a reference can make the one
// slice it needs again, and a shape verified on one machine has the same inputs on another.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "common/tensor_view.cuh"

namespace attn {

// out[d] = the draw of N(0, 1) for element (b, h, l, d) of `tensor`, for d in [0, D).
void normal_row(uint64_t seed, std::string_view tensor, int64_t b, int64_t h, int64_t l, float* out,
                int64_t D);

// Fills a tensor in host memory, on all cores. T is float or __nv_bfloat16.
// `from_normal`, if given, makes the element from the draw (before it is rounded to T).
template <class T>
void fill_normal(TensorView<T> tensor, uint64_t seed, std::string_view name,
                 const std::function<float(float)>& from_normal = {});

}  // namespace attn
