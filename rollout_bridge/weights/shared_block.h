// Shared memory for weights: a worker on the trainer's machine reads them without a socket.
//
// The reader checks the bytes as it checks bytes from the network, so the memory need not be
// trusted. A block may be overwritten while a late reader still reads it; the reader then sees a
// wrong hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>

#include "rollout_bridge/base/result.h"

namespace ringside::bridge {

// Location of a block, for a process that may read this one's memory: it has the same user and, as
// host_id() tells, the same kernel and PID namespace.
struct SharedPlace {
  std::string host;
  int64_t pid = -1;
  int64_t fd = -1;
  uint64_t bytes = 0;
};

// Identifies the kernel boot and the PID namespace; "" when they cannot be read.
std::string host_id();

// A block of fixed size in this process: an anonymous memfd, freed when its last mapping is closed.
class SharedBlock {
 public:
  // The content is undefined.
  // Throws: std::system_error when the kernel refuses the memory, also when RLIMIT_FSIZE, which
  // applies to it, is below `bytes`.
  explicit SharedBlock(std::size_t bytes);
  ~SharedBlock();
  SharedBlock(const SharedBlock&) = delete;
  SharedBlock& operator=(const SharedBlock&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  // Where another process of this machine finds it.
  SharedPlace place() const;

 private:
  int fd_ = -1;
  std::span<std::byte> bytes_;
};

// Pool of shared blocks. Blocks are reused for later versions, because mapping new pages costs more
// than writing them. Copies of the pool share the same blocks.
// Thread safety: any thread.
class SharedBlocks {
 public:
  // An empty pool.
  SharedBlocks();

  // A block of exactly `bytes` bytes. It returns to the pool when its last owner releases it. Frees
  // idle blocks of another size.
  // Throws: as SharedBlock does.
  std::shared_ptr<SharedBlock> take(std::size_t bytes);

 private:
  class FreeList;
  std::shared_ptr<FreeList> free_list_;
};

// Read-only mapping of another process's block.
class SharedView {
 public:
  ~SharedView();
  SharedView(const SharedView&) = delete;
  SharedView& operator=(const SharedView&) = delete;

  // The bytes may change at any time: copy them first, then check the copy.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  friend class SharedViews;
  SharedView(std::span<const std::byte> bytes, uint64_t device, uint64_t inode)
      : bytes_(bytes), device_(device), inode_(inode) {}
  std::span<const std::byte> bytes_;
  uint64_t device_, inode_;  // identify the file, whatever its descriptor in the other process
};

// Opens blocks and keeps the last few mapped. A publisher reuses its blocks, and mapping one costs
// as much as copying it. A kept mapping keeps the memory alive. The memory counts in the RSS of
// both processes although it exists once.
// Thread safety: none.
class SharedViews {
 public:
  // Errors: kUnsupported for another machine; kGone when the place cannot be opened; kInvalidField
  // when it is not a block of that many bytes with a sealed size. (Reading a block that shrinks
  // would kill this process.)
  Result<std::shared_ptr<const SharedView>> open(const SharedPlace& place);
  // Unmaps all blocks. Call it when the publisher has or may have ended.
  void clear() { kept_.clear(); }

 private:
  std::deque<std::shared_ptr<const SharedView>> kept_;  // newest last
};

}  // namespace ringside::bridge
