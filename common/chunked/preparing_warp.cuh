// The preparing warps: they turn rows of reads, writes and decays into packets, and fetch the rows,
// where no other warps do.
//
// What differs between operators is Tiling::Decay. With h halfway between a sub-chunk's first and last
// sum of decays, a Decay has
//
//   kExclusive      whether a row reads the state before its own decay and write, which it then sees
//                   through the bonus alone
//   kRemembered     rows after which its usual decays leave nothing (cut.cuh)
//   sums(rows)      of 16 rows of decays and kTiles tiles of 8 columns, at the places of mma.sync's
//                   accumulators, with i a place in tile n:
//     .read(n, i)   what row i's read has decayed by, - h
//     .write(n, i)  what row i's write has not yet decayed by, - h
//     .begin(n, j)  from the sub-chunk's beginning to h, of the lane's column j
//     .end(n, j)    from h to the sub-chunk's end: h itself
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "common/chunked/block.cuh"
#include "common/chunked/fp16_range.cuh"
#include "common/chunked/resets.cuh"
#include "common/chunked/rows.cuh"
#include "common/mma_operands.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"

namespace attn::chunked {

// The largest exponent of a factor of the scores, to base 2. Factors from 2^-96 to 2^96 leave the
// products of inputs up to 2^31 inside the range of a float, and of reads and writes all that is above
// 2^-30. It is exp(-133) in all, which 16 decays of -exp(N(0, 1)) reach in one column of 40000.
constexpr float kMildest = 96 / kLog2e;

// [doc:uncut]
// Tensor cores cut a float off after 10 bits of mantissa, half a unit of them too low on average:
// 2^-11 E(1 / mantissa). Every output but the bonus is a sum of products of two such floats.
constexpr float kUncut = 1 + 2 * 3.52e-4f;
// [/doc:uncut]

// One preparing warp: it owns a slab of columns of one sub-chunk of every round.
template <class Tiling>
class PreparingWarp {
  using T = typename Tiling::T;
  using Decay = typename Tiling::Decay;
  static constexpr int kTiles = Tiling::kSlab / 8;
  using Resets = chunked::Resets<Decay::kExclusive>;
  using Sizes = Fp16Range<kTiles, Tiling::kSlabs, Tiling::kM>;

 public:
  __device__ __forceinline__ explicit PreparingWarp(const Block<Tiling>& block)
      : block_(block),
        lane_(threadIdx.x % kWarp),
        sub_((threadIdx.x / kWarp - Tiling::kStateWarps) / Tiling::kSlabs),
        slab_((threadIdx.x / kWarp - Tiling::kStateWarps) % Tiling::kSlabs),
        column_(slab_ * Tiling::kSlab),
        scale_(block.x.scale * kUncut),
        rows_(block, threadIdx.x - Tiling::kStateWarps * kWarp) {}

  // [doc:preparing_rounds]
  // In round r the packets of round r + 1 are prepared.
  __device__ __forceinline__ void run() {
    rows_.begin();
#pragma unroll 1
    for (int round = -1; round < block_.rounds; ++round) {
      rows_.wait();
      // The rows of round + 1 have arrived, of all threads that fetch. The packets of `round` are
      // whole before they are taken; and those of round - 1 taken, and their values used, before
      // they are overwritten.
      block_.meet();
      rows_.load(round + Tiling::kSlots);
      if (round + 1 < block_.rounds) prepare(round + 1);
    }
  }
  // [/doc:preparing_rounds]

 private:
  __device__ __forceinline__ Packet<Tiling>& packet(int round) const {
    return block_.smem.packets[round % 2][sub_];
  }
  // The slab's rows of a tensor.
  __device__ __forceinline__ typename Tiling::Rows slab(int tensor, int round) const {
    return {block_.smem.rows[tensor][round % Tiling::kSlots][sub_ * kSubChunk], column_};
  }
  // The sub-chunk's values.
  __device__ __forceinline__ const T* values(int round) const {
    return block_.smem.values[round % (Tiling::kSlots + 1)][sub_ * kSubChunk];
  }

  // [doc:prepare]
  // Prepares the slab of a packet; its writes as fp16, and then once more if that does not suit all
  // lanes. Only when all is done, so that nothing waits for the vote.
  __device__ __forceinline__ void prepare(int round) {
    Packet<Tiling>& packet = this->packet(round);
    Sizes sizes;
    if (!prepare_mild(packet, round, sizes)) prepare_any(packet, round, sizes);
    if constexpr (Tiling::kFp16) {
      const bool in_fp16 = __all_sync(kFullWarp, sizes.suits());
      if (!in_fp16) split_writes(round);
      if (lane_ == 0) packet.in_fp16[slab_] = in_fp16;
    }
  }
  // [/doc:prepare]

  // Accumulators of 16 rows and 16 columns, what the rows' reads find of the columns' writes; and each
  // row's own through the bonus, in an exclusive walk.
  struct Scores {
    float sums[2][4] = {}, bonus[2] = {};
  };

  // Columns of a sub-chunk, in tiles of eight.
  template <int kCount>
  struct Columns {
    Pair<T> read[kCount][2], write[kCount][2];
    typename Decay::template Sums<kCount> decays;

    // A NaN, from an infinite decay, is not mild.
    __device__ __forceinline__ bool mild() const {
      bool mild = true;
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) mild = mild && decays.end(n, j) >= -kMildest;
      }
      return __all_sync(kFullWarp, mild);
    }
  };
  // From tile n0 of the slab on. All is read before anything is stored: the compiler could not know
  // that stores leave it alone.
  template <bool kWithoutResets, int kCount>
  __device__ __forceinline__ void fetch(Columns<kCount>& columns, int round, int n0) const {
    load_rows(columns.read, slab(kRead, round).from(0, n0 * 8));
    load_rows(columns.write, slab(kWrite, round).from(0, n0 * 8));
    columns.decays =
        Decay::template sums<kCount, kWithoutResets>(slab(kDecay, round).from(0, n0 * 8));
  }

  // [doc:prepare_mild]
  // Returns whether the decays are mild enough for that.
  __device__ __forceinline__ bool prepare_mild(Packet<Tiling>& packet, int round,
                                               Sizes& sizes) const {
    Scores scores;
    Columns<kTiles> columns;
    fetch</*kWithoutResets=*/false>(columns, round, 0);
    if (!columns.mild()) return false;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      // Here and there, among instructions that wait for each other.
      if constexpr (Tiling::kFp16) sizes.look_at(columns.write[n], values(round), n, slab_);
      Tile tile;
      unpack(tile, columns, n);
      if constexpr (Decay::kExclusive) add_bonus(scores, n, tile);
      scale_to_halfway(tile, columns.decays, n);
      add_products_of_rows(scores.sums, tile.read, tile.write);
      scale_to_ends(tile, columns.decays, n);
      store<Tiling::kFp16>(packet, n, tile);
    }
    store_scores(packet, scores);
    return true;
  }
  // [/doc:prepare_mild]

  // [doc:prepare_any]
  // The same for any decays, 16 columns at a time.
  __device__ __forceinline__ void prepare_any(Packet<Tiling>& packet, int round,
                                              Sizes& sizes) const {
    Scores scores[2];  // of even and of odd tiles, which need not wait for each other
#pragma unroll 1
    for (int n0 = 0; n0 < kTiles; n0 += 2) {
      Columns<2> columns;
      fetch</*kWithoutResets=*/true>(columns, round, n0);
      const auto decay_rows = slab(kDecay, round).from(0, n0 * 8);
      Tile tiles[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if constexpr (Tiling::kFp16) sizes.look_at(columns.write[i], values(round), n0 + i, slab_);
        unpack(tiles[i], columns, i);
        if constexpr (Decay::kExclusive) add_bonus(scores[0], n0 + i, tiles[i]);
      }
      if (columns.mild()) {
        const Resets resets[2] = {Resets(decay_rows), Resets(decay_rows.from(0, 8))};
#pragma unroll
        for (int i = 0; i < 2; ++i) scale_to_halfway(tiles[i], columns.decays, i);
        // Rows between two resets of a column see each other, and no others: run after run. (Nobody
        // asks for the second: nearly always there is one, or decays would be mild.)
        const auto add_run = [&](int run) {
#pragma unroll
          for (int i = 0; i < 2; ++i) add_scores_of_run(scores[i], tiles[i], resets[i], run);
        };
        add_run(0);
        add_run(1);
#pragma unroll 1
        for (int run = 2; __any_sync(kFullWarp, resets[0].has(run) || resets[1].has(run)); ++run) {
          add_run(run);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          scale_to_ends(tiles[i], columns.decays, i);
          resets[i].cut(tiles[i].read, tiles[i].write, tiles[i].decay);
        }
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          scale_row_by_row(tiles[i], decay_rows.from(0, i * 8), scores[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) store<Tiling::kFp16>(packet, n0 + i, tiles[i]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) scores[0].sums[i / 4][i % 4] += scores[1].sums[i / 4][i % 4];
    store_scores(packet, scores[0]);
  }
  // [/doc:prepare_any]

  // Eight columns as accumulators have them, of two rows a lane: reads and writes, and what the state
  // decays by over the sub-chunk.
  struct Tile {
    float read[4], write[4], decay[2];
  };
  template <int kCount>
  static __device__ __forceinline__ void unpack(Tile& tile, const Columns<kCount>& columns, int i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 read = to_floats(columns.read[i][half]);
      const float2 write = to_floats(columns.write[i][half]);
      tile.read[2 * half] = read.x, tile.read[2 * half + 1] = read.y;
      tile.write[2 * half] = write.x, tile.write[2 * half + 1] = write.y;
    }
  }

  // [doc:scaled_rows]
  // So that a read times a write has the decays between: h goes out of the product.
  template <class Sums>
  static __device__ __forceinline__ void scale_to_halfway(Tile& tile, const Sums& decays, int n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      tile.read[i] *= exp2_approx(decays.read(n, i) * kLog2e);
      tile.write[i] *= exp2_approx(-(decays.write(n, i) * kLog2e));
    }
  }
  // Reads from the sub-chunk's beginning on, and writes to its end.
  template <class Sums>
  __device__ __forceinline__ void scale_to_ends(Tile& tile, const Sums& decays, int n) const {
    float begin[2], end[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      begin[i] = exp2_approx(decays.begin(n, i) * kLog2e);
      end[i] = exp2_approx(decays.end(n, i) * kLog2e);
      tile.decay[i] = begin[i] * end[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      tile.read[i] *= begin[i % 2] * scale_;
      tile.write[i] *= end[i % 2];
    }
  }
  // [/doc:scaled_rows]

  static __device__ __forceinline__ void add_scores_of_run(Scores& scores, const Tile& tile,
                                                           const Resets& resets, int run) {
    float read[4], write[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      read[i] = resets.read_run[i] == run ? tile.read[i] : 0;
      write[i] = resets.write_run[i] == run ? tile.write[i] : 0;
    }
    add_products_of_rows(scores.sums, read, write);
  }

  // [doc:scale_row_by_row]
  // Of decays that are too strong: no factor is over 1 here. The scores of a row are its read times
  // the writes before it, which have decayed along.
  __device__ __forceinline__ void scale_row_by_row(Tile& tile,
                                                   const typename Tiling::Rows& decay_rows,
                                                   Scores& scores) const {
    const int row = lane_ / 4, pair = lane_ % 4 * 2;
    const float own[4] = {tile.write[0], tile.write[1], tile.write[2], tile.write[3]};
    float(&write)[4] = tile.write;
#pragma unroll
    for (int i = 0; i < 4; ++i) write[i] = 0;
    tile.decay[0] = tile.decay[1] = 1;
#pragma unroll 2
    for (int i = 0; i < kSubChunk; ++i) {
      const float2 logs = to_floats(load_pair(decay_rows.at(i, pair)));
      const float decay[2] = {exp2_approx(logs.x * kLog2e), exp2_approx(logs.y * kLog2e)};
      const bool mine[2] = {row == i, row + 8 == i};
      const auto move_on = [&] {  // past row i
#pragma unroll
        for (int j = 0; j < 2; ++j) tile.decay[j] *= decay[j];
#pragma unroll
        for (int j = 0; j < 4; ++j) write[j] = mine[j / 2] ? own[j] : write[j] * decay[j % 2];
      };
      if (!Decay::kExclusive) move_on();
      float read[4] = {};  // of row i alone
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (!mine[j / 2]) continue;
        read[j] = tile.read[j];
        tile.read[j] *= tile.decay[j % 2] * scale_;
      }
      add_products_of_rows(scores.sums, read, write);
      if (Decay::kExclusive) move_on();
    }
  }
  // [/doc:scale_row_by_row]

  // [doc:split_writes]
  // Stores writes once more, as the sum of two bf16. Of any decays: the sums are of those after a row,
  // not a difference of two.
  __device__ __forceinline__ void split_writes(int round) const {
    const auto write_rows = slab(kWrite, round), decay_rows = slab(kDecay, round);
    const int row = lane_ / 4, pair = lane_ % 4 * 2;
    uint32_t later[4];  // 1 where a column is after a row
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row + i % 2 * 8, j = pair + i / 2 * 8;
      later[i] = pack_high(j > r, j + 1 > r);
    }
#pragma unroll 1
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t decays[4];
      ldmatrix_trans(decays, decay_rows.at(lane_ % 16, lane_ / 16 * 8 + n * 8));
#pragma unroll
      for (int i = 0; i < 4; ++i) decays[i] = finite(decays[i]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float zero[4] = {};
        float sums[4], write[4];
        mma_m16n8k16(sums, later, {decays[2 * i], decays[2 * i + 1]}, zero);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 own =
              to_floats(load_pair(write_rows.at(row + half * 8, (n + i) * 8 + pair)));
          write[2 * half] = own.x * exp2_approx(sums[2 * half] * kLog2e);
          write[2 * half + 1] = own.y * exp2_approx(sums[2 * half + 1] * kLog2e);
        }
        store_writes<false>(packet(round), n + i, write);
      }
    }
  }
  // [/doc:split_writes]

  // bonus += read (bonus write), of the columns that the lane has of eight.
  __device__ __forceinline__ void add_bonus(Scores& scores, int n, const Tile& tile) const {
    const float2 u = load_pair(block_.smem.bonus + column_ + n * 8 + lane_ % 4 * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores.bonus[i / 2] += tile.read[i] * (i % 2 == 0 ? u.x : u.y) * tile.write[i];
    }
  }

  // Tile n of the slab.
  template <bool kInFp16>
  __device__ __forceinline__ void store(Packet<Tiling>& packet, int n, const Tile& tile) const {
    if (lane_ < 4) {  // all rows of lanes have the same
      float* decays = reinterpret_cast<float*>(packet.decay[lane_]);
      store_pair(decays + column_ / 4 + n * 2, tile.decay[0], tile.decay[1]);
    }
    packet.reads[column_ / 8 + n][lane_] = {
        __float_as_uint(tile.read[0]), __float_as_uint(tile.read[2]), __float_as_uint(tile.read[1]),
        __float_as_uint(tile.read[3])};
    store_writes<kInFp16>(packet, n, tile.write);
  }

  template <bool kInFp16>
  __device__ __forceinline__ void store_writes(Packet<Tiling>& packet, int n,
                                               const float (&write)[4]) const {
    const int row = lane_ / 4, word = (column_ + n * 8) / 2 + lane_ % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float x0 = write[2 * half], x1 = write[2 * half + 1];
      const uint32_t high = kInFp16 ? pack_halves(x0, x1) : pack_high(x0, x1);
      packet.write_high[row + half * 8][word] = high;
      if (!kInFp16) packet.write_low[row + half * 8][word] = pack_low(x0, x1, high);
    }
  }

  // [doc:store_scores]
  // The first slab's warp sums up the scores of all slabs, and stores the causal half as two bf16. In
  // an exclusive walk a row's own score is its bonus.
  __device__ __forceinline__ void store_scores(Packet<Tiling>& packet, Scores& all) const {
    float(&scores)[2][4] = all.sums;
    const int row = lane_ / 4, column = lane_ % 4 * 2;
    if constexpr (Decay::kExclusive) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // Summed up over the columns, which four lanes share.
        float bonus = all.bonus[i];
        bonus += __shfl_xor_sync(kFullWarp, bonus, 1);
        bonus += __shfl_xor_sync(kFullWarp, bonus, 2);
        bonus *= 1 / kUncut;  // no tensor core has cut it off
        if (column == row) scores[i][2 * i] = bonus;
        if (column + 1 == row) scores[i][2 * i + 1] = bonus;
      }
    }
    if (!sum_over_slabs<Tiling::kSlabs>(packet.scores, scores, slab_, sub_)) return;
    uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float* s = &scores[i / 2][i % 2 * 2];
      const int last = row + i % 2 * 8 - i / 2 * 8;
      s[0] = column > last ? 0 : s[0] * scale_;
      s[1] = column + 1 > last ? 0 : s[1] * scale_;
      high[i] = pack_high(s[0], s[1]);
      low[i] = pack_low(s[0], s[1], high[i]);
    }
    packet.scores[0][lane_] = {high[0], high[1], high[2], high[3]};
    packet.scores[1][lane_] = {low[0], low[1], low[2], low[3]};
  }
  // [/doc:store_scores]

  const Block<Tiling>& block_;
  const int lane_, sub_, slab_, column_;
  const float scale_;  // of reads and of scores, and so of outputs
  std::conditional_t<Tiling::kLoadWarps == 0, RowLoader<Tiling>, NoRows<Tiling>> rows_;
};

}  // namespace attn::chunked
