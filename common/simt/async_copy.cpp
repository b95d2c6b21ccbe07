// cp.async: every thread's queue of copies. The copy itself is done by the header that issues it
// (common/ptx/cp_async.cuh), in code that the sanitizers see.

#include "common/simt/block.hpp"

namespace simt {

bool Block::queue_copy(const AsyncCopy& copy, Site site) {
  require_shared("cp.async", copy.destination, copy.bytes, site);
  if (copy.valid && reinterpret_cast<uintptr_t>(copy.source) % copy.bytes != 0) {
    fail(site, "cp.async: the address in global memory is not aligned to " +
                   std::to_string(copy.bytes) + " bytes");
  }
  if (launch_->early_copies) return false;
  AsScheduler guard(*this);
  Thread& thread = threads_[current_];
  if (thread.first_copy >= 64 && thread.first_copy * 2 >= thread.copies.size()) {
    thread.copies.erase(thread.copies.begin(), thread.copies.begin() + thread.first_copy);
    thread.first_copy = 0;
  }
  thread.copies.push_back({copy, thread.committed_groups});
  return true;
}

void Block::commit_copies() { ++threads_[current_].committed_groups; }

bool Block::next_copy(int allowed, AsyncCopy* copy) {
  Thread& thread = threads_[current_];
  if (thread.first_copy == thread.copies.size()) return false;
  const Thread::Queued& oldest = thread.copies[thread.first_copy];
  // Group g is complete once no more than `allowed` groups were committed after it.
  if (oldest.group >= thread.committed_groups - allowed) return false;
  *copy = oldest.copy;
  ++thread.first_copy;
  return true;
}

bool queue_copy(const AsyncCopy& copy, Site site) {
  Block& block = Block::running();
  block.recorder().copy(copy, __builtin_return_address(0));
  return block.queue_copy(copy, site);
}
void commit_copies() { Block::running().commit_copies(); }
bool next_copy(int allowed, AsyncCopy* copy) {
  Block& block = Block::running();
  const bool found = block.next_copy(allowed, copy);
  block.recorder().mute(found);  // counted when it was issued
  return found;
}

}  // namespace simt
