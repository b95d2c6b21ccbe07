// How a block divides its head. A stage has a table of these, as data: for head sizes up to 64, 128 and
// 256; and, of bf16, for heads so few that every block has a multiprocessor to itself, with more warps
// to a block, and fewer columns.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "common/chunked/slabs.cuh"
#include "common/swizzled_rows.cuh"
#include "common/warp.cuh"

namespace attn::chunked {

constexpr int kSubChunk = 16;  // rows of an mma.sync tile

// [doc:tiling]
struct TilingSizes {
  int rows;               // of the state: the head size of reads and writes, padded with zeros
  int warp_columns;       // value columns of one state warp
  int column_warps;       // state warps side by side
  int row_parts = 1;      // of the state, each with state warps of its own
  int sub_chunks;         // in a round, between two barriers of the block
  int slots = 3;          // buffers for the rows of a round
  int slab;               // columns of reads, writes and decays of one preparing warp
  int loading_warps = 0;  // that only fetch rows; 0: preparing warps do
  int blocks = 1;         // side by side on one multiprocessor
};
// [/doc:tiling]

// [doc:tilings]
// What was fastest for both stages of those tried on an H200; a stage's table may differ. A float has
// twice the rows in shared memory, so that one block fills a multiprocessor.
template <class T>
struct UsualTilings;
// clang-format off
template <>
struct UsualTilings<float> {
  using T = float;
  struct UpTo64 { static constexpr TilingSizes kSizes = {
      .rows = 64, .warp_columns = 16, .column_warps = 4, .sub_chunks = 2, .slab = 32, .loading_warps = 4}; };
  struct UpTo128 { static constexpr TilingSizes kSizes = {
      .rows = 128, .warp_columns = 32, .column_warps = 4, .sub_chunks = 1, .slab = 32}; };
  struct UpTo256 { static constexpr TilingSizes kSizes = {
      .rows = 256, .warp_columns = 16, .column_warps = 4, .sub_chunks = 1, .slots = 2, .slab = 64}; };
};
template <>
struct UsualTilings<__nv_bfloat16> {
  using T = __nv_bfloat16;
  struct AloneNarrow { static constexpr TilingSizes kSizes = {
      .rows = 64, .warp_columns = 16, .column_warps = 2, .row_parts = 2, .sub_chunks = 4, .slab = 64,
      .loading_warps = 4}; };
  struct Alone { static constexpr TilingSizes kSizes = {
      .rows = 64, .warp_columns = 32, .column_warps = 2, .row_parts = 2, .sub_chunks = 4, .slab = 64,
      .loading_warps = 4}; };
  struct UpTo64 { static constexpr TilingSizes kSizes = {
      .rows = 64, .warp_columns = 32, .column_warps = 2, .sub_chunks = 2, .slab = 32, .blocks = 2}; };
  struct UpTo128 { static constexpr TilingSizes kSizes = {
      .rows = 128, .warp_columns = 32, .column_warps = 4, .sub_chunks = 2, .slab = 64}; };
  struct UpTo256 { static constexpr TilingSizes kSizes = {
      .rows = 256, .warp_columns = 16, .column_warps = 4, .sub_chunks = 1, .slots = 2, .slab = 64}; };
};
// clang-format on
// [/doc:tilings]

// Decay: how decays become packets (preparing_warp.cuh). Sizes::kSizes is a TilingSizes. (As a type, since g++ 12 breaks off at one as a template's argument.)
template <class T_, class Decay_, class Sizes>
struct Tiling {
  using T = T_;
  using Decay = Decay_;
  static constexpr int kE = Sizes::kSizes.rows;
  static constexpr int kWarpColumns = Sizes::kSizes.warp_columns;
  static constexpr int kColumnWarps = Sizes::kSizes.column_warps;
  static constexpr int kRowParts = Sizes::kSizes.row_parts;
  static constexpr int kSubChunks = Sizes::kSizes.sub_chunks;
  static constexpr int kSlots = Sizes::kSizes.slots;
  static constexpr int kSlab = Sizes::kSizes.slab;
  static constexpr int kLoadWarps = Sizes::kSizes.loading_warps;
  static constexpr int kBlocks = Sizes::kSizes.blocks;

  static constexpr int kM = kColumnWarps * kWarpColumns;  // value columns of the block
  static constexpr int kStateWarps = kRowParts * kColumnWarps;
  static constexpr int kRows = kSubChunks * kSubChunk;  // of a round
  static constexpr int kSlabs = kE / kSlab;
  static constexpr int kPrepareWarps = kSubChunks * kSlabs;
  static constexpr int kThreads = (kStateWarps + kPrepareWarps + kLoadWarps) * kWarp;

  // Of a packet: 16 bytes more than a row has, so that eight rows begin in different banks.
  static constexpr int kPitch = kE + 8;

  // Of how many bf16 a value is the sum.
  static constexpr int kTerms = sizeof(T) / 2;

  // Whether packets may be in fp16. At 256 there are no registers for two ways to take them.
  static constexpr bool kFp16 = sizeof(T) == 2 && kE <= 128;

  // Rows as they come.
  using Rows = SwizzledRows<const T, kE>;
  using ValueRows = SwizzledRows<const T, kM>;

  static_assert(kE % kSlab == 0 && kSlab % kWarp == 0, "lanes take whole pairs of columns");
  static_assert(kWarpColumns % kSubChunk == 0, "S transposed is made of mma.sync tiles");
  static_assert(kFirstSlabBarrier + kSubChunks + kColumnWarps <= 16, "a block has 16 barriers");
  static_assert(kRowParts == 1 || kRowParts == 2, "each of two adds up half of the outputs");
};

}  // namespace attn::chunked
