#include "06_rwkv6/step4_engine.cuh"

namespace attn::chunked {

template void walk_segments<rwkv6::EngineTilings<float>>(const Walk<float>&, const Segments&,
                                                         cudaStream_t);

}  // namespace attn::chunked
