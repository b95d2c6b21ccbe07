#include "06_rwkv6/step4_engine.cuh"

namespace attn::chunked {

template void walk_segments<rwkv6::EngineTilings<__nv_bfloat16>>(const Walk<__nv_bfloat16>&,
                                                                 const Segments&, cudaStream_t);

}  // namespace attn::chunked
