// The walk of step 3, as step3_walk_{portable,avx2,avx512}.cpp compile it; see step3_walk.hpp.
//
// A chunk of C = 32 steps is four products of small matrices, where S is the state before it:
//     A  = mask(Q K^T)     [C, C]   scores inside the chunk, zero above the diagonal
//     O  = Q S + A V       [C, M]   what came before the chunk, and what is inside it
//     S += K^T V           [E, M]   the chunk joins the past
// One routine computes them all: a tile of the result stays in vector registers while the depth of
// the product goes by, so that a loaded vector serves every row of the tile and a loaded scalar
// every column. The rows are packed first: strides, ragged lengths and ragged head sizes end there.
//
// Everything here has internal linkage, for the reason given in step3_walk.hpp.
#pragma once

#include "01_cpu_reference/step3_walk.hpp"

namespace attn::cpu {
namespace {

int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Rows x (2 vectors of Lanes columns) of a product, in registers.
template <int Lanes, int Rows>
struct Tile {
  typedef float Vector __attribute__((vector_size(Lanes * sizeof(float))));
  static constexpr int kCols = 2 * Lanes;

  // [doc:tile]
  Vector sum[Rows][2];

  // sum[i][j] += sum_p a(i, p) b(p, j), where a(i, p) = a[i * a_row + p * a_depth] and b is a
  // panel.
  [[gnu::always_inline]] void add_product(const float* a, int64_t a_row, int64_t a_depth,
                                          const float* b, int64_t depth) {
    for (int64_t p = 0; p < depth; p++) {
      const Vector left = load_vector(b + p * kPanel);
      const Vector right = load_vector(b + p * kPanel + Lanes);
#pragma GCC unroll 8
      for (int i = 0; i < Rows; i++) {
        const float a_ip = a[i * a_row + p * a_depth];
        sum[i][0] += a_ip * left;
        sum[i][1] += a_ip * right;
      }
    }
  }
  // [/doc:tile]

  [[gnu::always_inline]] void clear() {
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++) sum[i][0] = sum[i][1] = Vector{};
  }

  [[gnu::always_inline]] void load(const float* c, int64_t row_stride) {
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++) {
      sum[i][0] = load_vector(c + i * row_stride);
      sum[i][1] = load_vector(c + i * row_stride + Lanes);
    }
  }

  [[gnu::always_inline]] void store(float* c, int64_t row_stride) const {
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++) {
      store_vector(c + i * row_stride, sum[i][0]);
      store_vector(c + i * row_stride + Lanes, sum[i][1]);
    }
  }

 private:
  // A vector anywhere in an array of floats. (A memcpy of it would be plainer, but g++ then keeps
  // the sums in memory.)
  typedef float VectorInArray
      __attribute__((vector_size(Lanes * sizeof(float)), aligned(alignof(float)), may_alias));

  [[gnu::always_inline]] static Vector load_vector(const float* x) {
    return *reinterpret_cast<const VectorInArray*>(x);
  }
  [[gnu::always_inline]] static void store_vector(float* x, Vector value) {
    *reinterpret_cast<VectorInArray*>(x) = value;
  }
};

// The rows of one chunk, packed, and padded with zeros: rows to kRowTile, E to kRowTile, M to
// kPanel.
struct Chunk {
  int64_t rows, E, panels;  // padded; panels of M
  float* q;                 // [kChunk][E]
  float* k;                 // [kChunk][E]
  float* k_columns;         // the transpose of k, in panels: [kChunk / kPanel][E][kPanel]
  float* v;                 // in panels: [panels][kChunk][kPanel]
  float* scores;            // A: [kChunk][kChunk]
};

// Rows t0 .. t0 + rows of x [L, D] with the padding around them.
void pack_rows(const float* x, int64_t stride, int64_t rows, int64_t D, const Chunk& chunk,
               float* packed) {
  for (int64_t t = 0; t < chunk.rows; t++) {
    const int64_t valid = t < rows ? D : 0;
    float* row = packed + t * chunk.E;
    __builtin_memcpy(row, x + t * stride, valid * sizeof(float));
    for (int64_t d = valid; d < chunk.E; d++) row[d] = 0;
  }
}

void pack_panels(const float* x, int64_t stride, int64_t rows, int64_t D, const Chunk& chunk,
                 float* packed) {
  for (int64_t p = 0; p < chunk.panels; p++) {
    for (int64_t t = 0; t < chunk.rows; t++) {
      const int64_t valid = t < rows ? min(kPanel, D - p * kPanel) : 0;
      float* row = packed + (p * kChunk + t) * kPanel;
      __builtin_memcpy(row, x + t * stride + p * kPanel, valid * sizeof(float));
      for (int64_t d = valid; d < kPanel; d++) row[d] = 0;
    }
  }
}

// In blocks of 4 x 4, each in four vectors: element by element it would take as long as the scores.
void transpose_keys(const Chunk& chunk) {
  typedef float Four __attribute__((vector_size(16)));
  for (int64_t p = 0; p * kPanel < chunk.rows; p++) {
    for (int64_t e = 0; e < chunk.E; e += 4) {
      for (int64_t s = 0; s < kPanel; s += 4) {
        const float* from = chunk.k + (p * kPanel + s) * chunk.E + e;
        float* to = chunk.k_columns + (p * chunk.E + e) * kPanel + s;
        Four x[4];
        for (int i = 0; i < 4; i++) __builtin_memcpy(&x[i], from + i * chunk.E, sizeof x[i]);
        const Four low01 = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
        const Four high01 = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
        const Four low23 = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
        const Four high23 = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
        x[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
        x[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
        x[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
        x[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
        for (int i = 0; i < 4; i++) __builtin_memcpy(to + i * kPanel, &x[i], sizeof x[i]);
      }
    }
  }
}

Chunk carve(const Walk& walk) {
  const int64_t E = round_up(walk.E, kRowTile), panels = round_up(walk.M, kPanel) / kPanel;
  Chunk chunk{0, E, panels, walk.scratch, nullptr, nullptr, nullptr, nullptr};
  chunk.k = chunk.q + kChunk * E;
  chunk.k_columns = chunk.k + kChunk * E;
  chunk.v = chunk.k_columns + kChunk * E;
  chunk.scores = chunk.v + panels * kChunk * kPanel;
  return chunk;
}

// The part of a tile that lies inside the tensor.
template <class Tile>
void store_part(const Tile& tile, int64_t rows, int64_t cols, float* o, int64_t o_stride) {
  float whole[sizeof tile.sum / sizeof(float)];
  tile.store(whole, Tile::kCols);
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t j = 0; j < cols; j++) o[i * o_stride + j] = whole[i * Tile::kCols + j];
  }
}

// [doc:products]
// A = mask(Q K^T). Tiles wholly above the diagonal are neither computed nor read.
template <int Lanes, int Rows>
void compute_scores(const Chunk& chunk) {
  using Tile = Tile<Lanes, Rows>;
  for (int64_t s = 0; s < chunk.rows; s += Tile::kCols) {
    const float* keys = chunk.k_columns + s / kPanel * chunk.E * kPanel + s % kPanel;
    for (int64_t t = s / Rows * Rows; t < chunk.rows; t += Rows) {
      Tile tile;
      tile.clear();
      tile.add_product(chunk.q + t * chunk.E, chunk.E, 1, keys, chunk.E);
      tile.store(chunk.scores + t * kChunk + s, kChunk);
      for (int64_t i = t; i < t + Rows; i++) {
        for (int64_t j = i + 1; j < s + Tile::kCols; j++) chunk.scores[i * kChunk + j] = 0;
      }
    }
  }
}

// O = Q S + A V for the kPanel columns of one panel; o is their first column.
template <int Lanes, int Rows>
void compute_outputs(const Chunk& chunk, const float* S, const float* v, int64_t rows, int64_t cols,
                     float* o, int64_t o_stride) {
  using Tile = Tile<Lanes, Rows>;
  for (int64_t m = 0; m < cols; m += Tile::kCols) {
    for (int64_t t = 0; t < rows; t += Rows) {
      Tile tile;
      tile.clear();
      tile.add_product(chunk.q + t * chunk.E, chunk.E, 1, S + m, chunk.E);
      tile.add_product(chunk.scores + t * kChunk, kChunk, 1, v + m, t + Rows);
      if (t + Rows <= rows && m + Tile::kCols <= cols) {
        tile.store(o + t * o_stride + m, o_stride);
      } else {
        store_part(tile, min(Rows, rows - t), min(Tile::kCols, cols - m), o + t * o_stride + m,
                   o_stride);
      }
    }
  }
}

// S += K^T V for one panel.
template <int Lanes, int Rows>
void update_state(const Chunk& chunk, const float* v, float* S) {
  using Tile = Tile<Lanes, Rows>;
  for (int64_t m = 0; m < kPanel; m += Tile::kCols) {
    for (int64_t e = 0; e < chunk.E; e += Rows) {
      Tile tile;
      tile.load(S + e * kPanel + m, kPanel);
      tile.add_product(chunk.k + e, 1, chunk.E, v + m, chunk.rows);
      tile.store(S + e * kPanel + m, kPanel);
    }
  }
}
// [/doc:products]

// [doc:chunks]
template <int Lanes, int Rows>
void walk_chunks(const Walk& walk) {
  Chunk chunk = carve(walk);
  for (int64_t t = 0; t < walk.L; t += kChunk) {
    const int64_t rows = min(kChunk, walk.L - t);
    chunk.rows = round_up(rows, kRowTile);
    pack_rows(walk.k + t * walk.k_stride, walk.k_stride, rows, walk.E, chunk, chunk.k);
    pack_panels(walk.v + t * walk.v_stride, walk.v_stride, rows, walk.M, chunk, chunk.v);
    if (walk.o) {
      pack_rows(walk.q + t * walk.q_stride, walk.q_stride, rows, walk.E, chunk, chunk.q);
      transpose_keys(chunk);
      compute_scores<Lanes, Rows>(chunk);
    }
    for (int64_t p = 0; p < chunk.panels; p++) {
      float* S = walk.state + p * chunk.E * kPanel;
      const float* v = chunk.v + p * kChunk * kPanel;
      if (walk.o) {
        compute_outputs<Lanes, Rows>(chunk, S, v, rows, min(kPanel, walk.M - p * kPanel),
                                     walk.o + t * walk.o_stride + p * kPanel, walk.o_stride);
      }
      update_state<Lanes, Rows>(chunk, v, S);
    }
  }
}
// [/doc:chunks]

}  // namespace
}  // namespace attn::cpu
