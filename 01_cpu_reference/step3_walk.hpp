// Step 3's walk over a stretch of one sequence, chunk by chunk: what is compiled once for each
// instruction set.
//
// The walk is compiled from one source (step3_walk_kernel.hpp) with different compiler flags, and
// chosen when the program runs, so that one binary uses AVX-512 where there is AVX-512 and still
// runs on an older laptop. Code compiled for AVX-512 must then never be called elsewhere. An inline
// function shared with other files could be: the linker keeps one copy of it, perhaps that one. So
// nothing but plain data crosses this interface, and the kernel file includes nothing of ours but
// this header.
#pragma once

#include <cstdint>

namespace attn::cpu {

// [doc:sizes]
// Steps in a chunk. The scores inside a chunk are work that grows with it, the passes over the
// state shrink with it. At head size 64, 16 is no faster than 32 and 64 slower; at 256 they are
// equal.
constexpr int64_t kChunk = 32;
// Columns in a panel: matrices that vectors run along are stored as panels, [rows][kPanel] each, so
// that a tile of the product reads consecutive cache lines. Two AVX-512 vectors.
constexpr int64_t kPanel = 32;
// Rows of E are padded to this with zeros, which add nothing: no product has a ragged edge.
constexpr int64_t kRowTile = 8;
// [/doc:sizes]

// [doc:walk]
struct Walk {
  // Row t of q is at q + t * q_stride; so for k, v and o.
  const float* q;  // [L, E]
  const float* k;  // [L, E]
  const float* v;  // [L, M]
  float* o;        // [L, M]; null: only the state is wanted
  int64_t q_stride, k_stride, v_stride, o_stride;
  int64_t L, E, M;
  // Both begin on a cache line; E is padded to kRowTile, M to kPanel.
  float* state;    // in panels [M / kPanel][E][kPanel]: before the stretch, then after it
  float* scratch;  // kChunk * (3 E + M + kChunk) floats for the packed chunk
};
// [/doc:walk]

void walk_portable(const Walk& walk);  // any CPU
void walk_avx2(const Walk& walk);      // x86-64 with AVX2 and FMA
void walk_avx512(const Walk& walk);    // x86-64 with AVX-512

}  // namespace attn::cpu
