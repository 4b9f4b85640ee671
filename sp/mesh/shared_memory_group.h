// One rank's end of a group of ranks that exchange bytes through a shared segment: a ring for each
// ordered pair of ranks, a bell for each rank, and the operations in progress. Torch-free.
//
// Nothing runs in the background. A rank moves the bytes of all its operations, of all its groups,
// whenever it starts an operation or waits for one. What fits into the rings goes out at the start,
// so a rank that computes meanwhile does not hold up the others.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sp/mesh/byte_ring.h"
#include "sp/mesh/shared_operations.h"
#include "sp/mesh/shared_segment.h"

namespace ringside::sp {

class SharedMemoryGroup;

// The groups of one rank, so that a wait in one of them moves the bytes of all.
// Thread safety: any thread.
class RankGroups {
 public:
  // Adds a group of this rank.
  void add(const std::weak_ptr<SharedMemoryGroup>& group);
  // Moves what can be moved in all groups but `except`. True when one of them has operations in
  // progress. A group that another thread uses is left to that thread.
  bool progress(const SharedMemoryGroup* except);

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<SharedMemoryGroup>> groups_;
};

// Who is in a group.
struct GroupMembers {
  std::string name;            // for messages
  std::vector<int64_t> ranks;  // world rank of each member
  int64_t me;                  // this rank's index among them

  int64_t size() const { return static_cast<int64_t>(ranks.size()); }
};

// Operations run in the order in which they are started, which must be the same on all ranks that
// share a ring. After an error every later call throws the same error.
// Thread safety: any thread; operations must still be started in one order.
class SharedMemoryGroup {
 public:
  // Bytes of the segment of a group of `ranks` ranks. Only pages that were used take memory: at
  // most 64 MiB of up to 32 ranks, and 64 KiB for each ordered pair of more.
  static int64_t segment_bytes(int64_t ranks);

  // segment: of segment_bytes(), the same on all ranks. This rank takes its place in it; the others
  // must have taken theirs before an operation starts. timeout: of every wait. mine: the groups of
  // this rank, to which the caller adds this one.
  // Throws: as SharedSegment::occupy().
  SharedMemoryGroup(std::unique_ptr<SharedSegment> segment, GroupMembers members,
                    std::chrono::milliseconds timeout, std::shared_ptr<RankGroups> mine);
  SharedMemoryGroup(const SharedMemoryGroup&) = delete;
  SharedMemoryGroup& operator=(const SharedMemoryGroup&) = delete;
  // Tells the others that this rank leaves. What it has sent can still be received.
  ~SharedMemoryGroup();

  const GroupMembers& members() const { return members_; }

  // Starts an operation with these ranks, by their index in the group, and sends what there is room
  // for.
  // Blocks: never.
  // Throws: std::runtime_error on an earlier error of the group, or when another rank has sent what
  // does not fit.
  void start(const std::shared_ptr<SharedOperation>& operation, const std::vector<int64_t>& send_to,
             const std::vector<int64_t>& receive_from);

  // Blocks: until the operation is done.
  // Throws: as start(); also when a rank of the group has died or left, soon after, and after the
  // timeout. The message names the ranks that were waited for, by their world ranks.
  void wait(const SharedOperation& operation);

  // Moves what can be moved, unless another thread is at it. True when operations are in progress.
  // Keeps an error for the next call of start() or wait().
  bool try_progress();

 private:
  struct Member;  // a rank's part of the segment
  // This rank's ends of the two rings that it shares with another rank.
  struct Link {
    ByteRing out;
    ByteRing in;
    std::deque<std::shared_ptr<SharedOperation>> sends;
    std::deque<std::shared_ptr<SharedOperation>> receives;
  };

  ByteRing ring(int64_t from, int64_t to) const;
  Member& member(int64_t index) const;
  // Moves what can be moved. True when something was.
  bool progress();
  // The same for one other rank, which is woken.
  bool progress(int64_t peer);
  // Whether a rank's part of the operation is missing.
  bool needs(const SharedOperation& operation, int64_t peer) const;
  // Throws when a rank has died, or has left before its part of the operation was done.
  void check_members(const SharedOperation& operation);
  // World ranks of members: "1, 2".
  std::string names_of(const std::vector<int64_t>& peers) const;
  // Ends the group for this rank and, through them, for the others.
  [[noreturn]] void fail(const std::string& reason);
  void throw_if_failed() const;
  bool idle() const;

  std::unique_ptr<SharedSegment> segment_;
  GroupMembers members_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<RankGroups> mine_;
  std::mutex mutex_;
  std::vector<Link> links_;  // of each rank; this rank's own is unused
  std::string failure_;
};

}  // namespace ringside::sp
