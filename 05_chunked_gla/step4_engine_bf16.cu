#include "05_chunked_gla/step4_engine.cuh"

namespace attn::chunked {

template void walk_segments<chunked_gla::EngineTilings<__nv_bfloat16>>(const Walk<__nv_bfloat16>&,
                                                                       const Segments&,
                                                                       cudaStream_t);

}  // namespace attn::chunked
