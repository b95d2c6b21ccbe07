// The preparing warps: they turn rows of reads, writes and decays into packets, and fetch the rows,
// where no other warps do.
//
// What differs between operators is Tiling::Decay. With h some number halfway between a sub-chunk's
// first and last sum of decays, a Decay has
//
//   kExclusive      whether a row reads the state before its own decay and write, which it then sees
//                   through the bonus alone
//   sums(rows)      of 16 rows of decays and kTiles tiles of 8 columns, at the places of mma.sync's
//                   accumulators, with i a place in tile n:
//     .read(n, i)   what row i's read has decayed by, - h
//     .write(n, i)  what row i's write has not yet decayed by, - h
//     .begin(n, j)  from the sub-chunk's beginning to h, of the lane's column j
//     .end(n, j)    from h to the sub-chunk's end
//     .mild()       whether exp() of none of these leaves the range of a float, in the lane's columns
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "common/chunked/block.cuh"
#include "common/chunked/fp16_range.cuh"
#include "common/chunked/rows.cuh"
#include "common/mma_operands.cuh"
#include "common/ptx/exp2.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/max_bf16.cuh"
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
    Sizes sizes;
    if (!prepare_mild(round, sizes)) prepare_strong(round, sizes);
    if constexpr (Tiling::kFp16) {
      const bool in_fp16 = __all_sync(kFullWarp, sizes.suits());
      if (!in_fp16) split_writes(round);
      if (lane_ == 0) packet(round).in_fp16[slab_] = in_fp16;
    }
  }
  // [/doc:prepare]

  // [doc:prepare_mild]
  // Returns whether the decays are mild enough for that.
  __device__ __forceinline__ bool prepare_mild(int round, Sizes& sizes) {
    Packet<Tiling>& packet = this->packet(round);

    // Read before anything is stored: the compiler could not know that the stores leave it alone.
    Pair<T> read_pairs[kTiles][2], write_pairs[kTiles][2];
    load_rows(read_pairs, slab(kRead, round));
    load_rows(write_pairs, slab(kWrite, round));
    const auto sums = Decay::template sums<kTiles>(slab(kDecay, round));
    if (!__all_sync(kFullWarp, sums.mild())) return false;

    float scores[2][4] = {}, bonus[2] = {};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      // Here and there, among instructions that wait for each other.
      if constexpr (Tiling::kFp16) sizes.look_at(write_pairs[n], values(round), n, slab_);
      float read[4], write[4];
      unpack(read, read_pairs[n]);
      unpack(write, write_pairs[n]);
      if constexpr (Decay::kExclusive) add_bonus(bonus, n, read, write);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        read[i] *= exp2_approx(sums.read(n, i) * kLog2e);
        write[i] *= exp2_approx(-sums.write(n, i) * kLog2e);
      }
      add_scores(scores, read, write);
      float begin[2], end[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        begin[i] = exp2_approx(sums.begin(n, i) * kLog2e);
        end[i] = exp2_approx(sums.end(n, i) * kLog2e);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        read[i] *= begin[i % 2] * scale_;
        write[i] *= end[i % 2];
      }
      store_reads(packet, n, read);
      store_writes<Tiling::kFp16>(packet, n, write);
      store_decay(packet, n, begin[0] * end[0], begin[1] * end[1]);
    }
    store_scores(packet, scores, bonus);
    return true;
  }
  // [/doc:prepare_mild]

  // [doc:split_writes]
  // Stores writes once more, as the sum of two bf16. Of any decays: the sums are of those after a row,
  // not a difference of two. (A decay of -inf, times 0, would be NaN; the lowest bf16 does as well.)
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
      for (int i = 0; i < 4; ++i) decays[i] = max_bf16x2(decays[i], 0xff7fff7fu);
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

  // [doc:prepare_strong]
  // The same for any decays, row by row: no factor is over 1. The scores of a row are its read times
  // the writes before it, which have decayed along.
  __device__ __forceinline__ void prepare_strong(int round, Sizes& sizes) {
    Packet<Tiling>& packet = this->packet(round);
    const auto read_rows = slab(kRead, round), write_rows = slab(kWrite, round),
               decay_rows = slab(kDecay, round);
    const int row = lane_ / 4, pair = lane_ % 4 * 2;
    float scores[2][2][4] = {};  // of even and of odd rows, which need not wait for each other
    float bonus[2] = {};
#pragma unroll 1
    for (int n = 0; n < kTiles; ++n) {
      const int column = n * 8 + pair;
      float read[4], own_write[4], write[4] = {}, decayed[2] = {1, 1};
      const Pair<T> reads[2] = {load_pair(read_rows.at(row, column)),
                                load_pair(read_rows.at(row + 8, column))};
      const Pair<T> writes[2] = {load_pair(write_rows.at(row, column)),
                                 load_pair(write_rows.at(row + 8, column))};
      unpack(read, reads);
      unpack(own_write, writes);
      if constexpr (Decay::kExclusive) add_bonus(bonus, n, read, own_write);
#pragma unroll
      for (int i = 0; i < kSubChunk; ++i) {
        const float2 logs = to_floats(load_pair(decay_rows.at(i, column)));
        const float decay[2] = {exp2_approx(logs.x * kLog2e), exp2_approx(logs.y * kLog2e)};
        const int own = i / 8 * 2;  // where a lane that has this row keeps it
        const bool mine = row == i % 8;
        const auto move_on = [&] {  // past the row
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            decayed[j] *= decay[j];
            write[j] *= decay[j];
            write[2 + j] *= decay[j];
            if (mine) write[own + j] = own_write[own + j];
          }
        };
        if (!Decay::kExclusive) move_on();
        float row_read[4] = {};
        if (mine) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            row_read[own + j] = read[own + j];
            read[own + j] *= decayed[j] * scale_;
          }
        }
        add_scores(scores[i % 2], row_read, write);
        if (Decay::kExclusive) move_on();
      }
      store_reads(packet, n, read);
      store_writes<Tiling::kFp16>(packet, n, write);
      store_decay(packet, n, decayed[0], decayed[1]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[0][half][i] += scores[1][half][i];
    }
    if constexpr (Tiling::kFp16) {
      uint32_t write_pairs[kTiles][2];
      load_rows(write_pairs, write_rows);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) sizes.look_at(write_pairs[n], values(round), n, slab_);
    }
    store_scores(packet, scores[0], bonus);
  }
  // [/doc:prepare_strong]

  // The lane's columns of two rows, as accumulators have them.
  static __device__ __forceinline__ void unpack(float (&x)[4], const Pair<T> (&pairs)[2]) {
    const float2 upper = to_floats(pairs[0]), lower = to_floats(pairs[1]);
    x[0] = upper.x, x[1] = upper.y, x[2] = lower.x, x[3] = lower.y;
  }

  // bonus += read (bonus write), of the columns that the lane has of eight.
  __device__ __forceinline__ void add_bonus(float (&bonus)[2], int n, const float (&read)[4],
                                            const float (&write)[4]) const {
    const float2 u = load_pair(block_.smem.bonus + column_ + n * 8 + lane_ % 4 * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) bonus[i / 2] += read[i] * (i % 2 == 0 ? u.x : u.y) * write[i];
  }

  // scores += read write^T, of eight columns: accumulators of one product as operands of the next.
  // Elements 1 and 2 of an accumulator are 2 and 1 of an A operand.
  __device__ __forceinline__ void add_scores(float (&scores)[2][4], const float (&read)[4],
                                             const float (&write)[4]) const {
    const uint32_t read_bits[4] = {__float_as_uint(read[0]), __float_as_uint(read[2]),
                                   __float_as_uint(read[1]), __float_as_uint(read[3])};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      mma_m16n8k8_tf32(scores[half], read_bits,
                       {__float_as_uint(write[2 * half]), __float_as_uint(write[2 * half + 1])},
                       scores[half]);
    }
  }

  // By the lanes of row 0.
  __device__ __forceinline__ void store_decay(Packet<Tiling>& packet, int n, float x0,
                                              float x1) const {
    if (lane_ >= 4) return;
    float* decays = reinterpret_cast<float*>(packet.decay[lane_]);
    store_pair(decays + column_ / 4 + n * 2, x0, x1);
  }

  __device__ __forceinline__ void store_reads(Packet<Tiling>& packet, int n,
                                              const float (&read)[4]) const {
    packet.reads[column_ / 8 + n][lane_] = {__float_as_uint(read[0]), __float_as_uint(read[2]),
                                            __float_as_uint(read[1]), __float_as_uint(read[3])};
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
  __device__ __forceinline__ void store_scores(Packet<Tiling>& packet, float (&scores)[2][4],
                                               float (&bonus)[2]) const {
    const int row = lane_ / 4, column = lane_ % 4 * 2;
    if constexpr (Decay::kExclusive) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // Summed up over the columns, which four lanes share.
        bonus[i] += __shfl_xor_sync(kFullWarp, bonus[i], 1);
        bonus[i] += __shfl_xor_sync(kFullWarp, bonus[i], 2);
        float(&own)[4] = scores[i];  // the quarter of the scores that has the row's own
        if (column == row) own[2 * i] = bonus[i] * (1 / kUncut);  // no tensor core has cut it off
        if (column + 1 == row) own[2 * i + 1] = bonus[i] * (1 / kUncut);
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
