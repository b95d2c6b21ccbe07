// A piece of a block's shared memory: poisoned when a block first uses it, guarded at both ends.
#pragma once

#include <cstddef>

namespace simt {

class SharedRegion {
 public:
  explicit SharedRegion(std::size_t capacity);
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  // The region for this block, `bytes` long and full of NaN; it stays open until close().
  void* open(std::size_t bytes);
  void close();

  bool is_open() const { return open_; }
  void* data() const { return begin_; }
  std::size_t size() const { return bytes_; }
  std::size_t capacity() const { return capacity_; }

  // False if the block has written just before or just behind the region. (AddressSanitizer
  // reports the write itself, so that there is nothing to look for in its builds.)
  bool intact() const;
  bool contains(const void* address, std::size_t bytes) const;

 private:
  const std::size_t capacity_;
  unsigned char* begin_ = nullptr;  // page-aligned
  std::size_t bytes_ = 0;
  bool open_ = false;
};

}  // namespace simt
