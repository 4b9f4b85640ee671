// Communicator of CPU tensors over shared memory, for ranks of one machine. Sums have the bits of
// Gloo's ring all-reduce.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "sp/mesh/communicator.h"
#include "sp/mesh/rendezvous.h"
#include "sp/mesh/shared_memory_group.h"

namespace ringside::sp {

// The machine refused shared memory to a rank of a group; what() says which rank, and why. Thrown
// by every rank of the group.
class SharedMemoryUnavailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Joins a group whose ranks are processes, or threads, of one machine. mine: the groups of this
// rank. The rendezvous' timeout also bounds every later collective.
// Collective over: the members. A group of one connects nothing.
// Blocks: until all members have called with the same store and name.
// Throws: SharedMemoryUnavailable; c10::Error after the timeout.
std::shared_ptr<Communicator> make_shared_memory_communicator(
    const GroupRendezvous& rendezvous, const GroupMembers& members,
    const std::shared_ptr<RankGroups>& mine);

}  // namespace ringside::sp
