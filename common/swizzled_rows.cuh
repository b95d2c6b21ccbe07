// Rows in shared memory, without padding, of which both cp.async and ldmatrix make good use.
//
// Eight lanes that copy a row of 128 bytes write one line of shared memory, all 32 banks, at once;
// but two lines if the row begins in the middle of one, as with padding it does. Rows that all begin
// with a line, though, have their first 16 bytes in the same banks, and those are what ldmatrix reads
// of eight rows at a time. So the 16-byte pieces of a line change places, in each of eight rows in
// another way: piece p of row r lies where piece p ^ (r % 8) would.
#pragma once

#include <cuda_runtime.h>

namespace attn {

// kWidth: elements of a row; 64 bytes or a multiple of 128.
template <class T_, int kWidth_>
struct SwizzledRows {
  using T = T_;
  static constexpr int kWidth = kWidth_;
  static constexpr int kPiece = 16 / sizeof(T);                              // elements
  static constexpr int kPieces = kWidth / kPiece < 8 ? kWidth / kPiece : 8;  // that change places
  static constexpr int kRowsPerLine = 8 / kPieces;
  static_assert(kPieces == 4 || (kPieces == 8 && kWidth % (8 * kPiece) == 0));

  T* rows;         // begins with a line, and rows on end with a multiple of eight of them
  int column = 0;  // where column 0 of at() is, a multiple of kPiece

  // [doc:swizzle]
  __device__ __forceinline__ T* at(int row, int x) const {
    const int swizzle = row / kRowsPerLine % kPieces * kPiece;
    return rows + row * kWidth + ((column + x) ^ swizzle);
  }
  // [/doc:swizzle]
  // The rows from `row` on, a multiple of eight, and the columns from `x` on.
  __device__ __forceinline__ SwizzledRows from(int row, int x) const {
    return {rows + row * kWidth, column + x};
  }
};

}  // namespace attn
