#include "05_chunked_gla/step4_engine.cuh"

namespace attn::chunked {

template void walk_segments<chunked_gla::EngineTilings<float>>(const Walk<float>&, const Segments&,
                                                               cudaStream_t);

}  // namespace attn::chunked
