// The block's shared memory, as its threads ask for it.

#include "common/simt/block.hpp"

namespace simt {

namespace {
constexpr std::size_t kSharedLimit = 227 * 1024;  // static and dynamic together
}

void* Block::static_shared(std::size_t bytes, const void* type) {
  if (!static_shared_.is_open()) {
    static_type_ = type;
    if (bytes + launch_->dynamic_shared_bytes > kSharedLimit) {
      fail(launch_->site, "too much shared memory: " + std::to_string(bytes) +
                              " bytes static and " + std::to_string(launch_->dynamic_shared_bytes) +
                              " dynamic, a block has " + std::to_string(kSharedLimit));
    }
    return static_shared_.open(bytes);
  }
  if (type != static_type_) {
    fail(launch_->site, "the kernel asks for shared_storage of two types; put all in one struct");
  }
  return static_shared_.data();
}

void* Block::dynamic_shared(std::size_t least_bytes) {
  const std::size_t bytes = launch_->dynamic_shared_bytes;
  if (bytes < least_bytes || bytes == 0) {
    fail(launch_->site,
         "the kernel uses " +
             (least_bytes ? std::to_string(least_bytes) + " bytes of" : std::string()) +
             " dynamic shared memory, the launch asked for " + std::to_string(bytes) +
             " (LaunchConfig::shared_bytes)");
  }
  return dynamic_shared_.is_open() ? dynamic_shared_.data() : dynamic_shared_.open(bytes);
}

void Block::require_shared(const char* what, const void* address, std::size_t bytes, Site site) {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0) {
    fail(site, std::string(what) + ": the address in shared memory is not aligned to " +
                   std::to_string(bytes) + " bytes");
  }
  if (!static_shared_.contains(address, bytes) && !dynamic_shared_.contains(address, bytes)) {
    fail(site, std::string(what) + ": the address is not in the block's shared memory");
  }
}

void* static_shared(std::size_t bytes, const void* type) {
  return Block::running().static_shared(bytes, type);
}

void* dynamic_shared(std::size_t least_bytes) {
  return Block::running().dynamic_shared(least_bytes);
}

void require_shared(const char* what, const void* address, std::size_t bytes, Site site) {
  Block::running().require_shared(what, address, bytes, site);
}

}  // namespace simt
