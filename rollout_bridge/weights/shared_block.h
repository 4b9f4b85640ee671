// Memory that other processes of this machine may read: weights a worker beside the trainer takes
// without a socket in between. What it reads is checked like what comes over the wire, so nothing
// here needs to be trusted, and memory may be written anew while a late reader still looks at it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>

#include "rollout_bridge/base/result.h"

namespace ringside::bridge {

// Where a block is, for a process that may look into this one: of the same user and, as host_id()
// tells, under the same kernel and in the same space of process numbers.
struct SharedPlace {
  std::string host;
  int64_t pid = -1;
  int64_t fd = -1;
  uint64_t bytes = 0;
};

// The kernel's boot and the process number space, as text; "" where they cannot be told.
std::string host_id();

// A block of fixed size in this process. It has no name anywhere: it ends with its last user.
class SharedBlock {
 public:
  // Any content. Throws std::system_error when the kernel gives no such memory, also where
  // RLIMIT_FSIZE, which counts for it, is below `bytes`.
  explicit SharedBlock(std::size_t bytes);
  ~SharedBlock();
  SharedBlock(const SharedBlock&) = delete;
  SharedBlock& operator=(const SharedBlock&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  SharedPlace place() const;

 private:
  int fd_ = -1;
  std::span<std::byte> bytes_;
};

// Hands blocks out and takes them back for the next version: new pages cost more than what is
// written to them. A handle; copies share the same blocks. Thread-safe.
class SharedBlocks {
 public:
  SharedBlocks();

  // A block of exactly so many bytes, which comes back when its last owner lets go. Idle blocks of
  // another size are freed. Throws like SharedBlock.
  std::shared_ptr<SharedBlock> take(std::size_t bytes);

 private:
  class FreeList;
  std::shared_ptr<FreeList> shelf_;
};

// Another process's block, read-only.
class SharedView {
 public:
  ~SharedView();
  SharedView(const SharedView&) = delete;
  SharedView& operator=(const SharedView&) = delete;

  // May change under the reader's eyes: copy first, then check the copy.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  friend class SharedViews;
  SharedView(std::span<const std::byte> bytes, uint64_t device, uint64_t inode)
      : bytes_(bytes), device_(device), inode_(inode) {}
  std::span<const std::byte> bytes_;
  uint64_t device_, inode_;  // which file it is, whatever number the other process has for it now
};

// Maps blocks, and keeps the last few mapped: a publisher writes the same ones again and again, and
// to map one costs as much as to copy it. What is kept keeps the memory alive, and is counted in
// the RSS of both processes though it is there once. Not thread-safe.
class SharedViews {
 public:
  // Errors: kUnsupported for another machine, kGone where the place cannot be opened, kInvalidField
  // when it is no block of so many bytes whose size is sealed (reading one that shrinks would end
  // this process).
  Result<std::shared_ptr<const SharedView>> open(const SharedPlace& place);
  // When the publisher is gone or may be.
  void clear() { kept_.clear(); }

 private:
  std::deque<std::shared_ptr<const SharedView>> kept_;  // newest last
};

}  // namespace ringside::bridge
