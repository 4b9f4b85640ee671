// NCCL process groups for CUDA tensors. Only in programs that are linked for CUDA.
//
// One thread of a rank launches the work of all its groups, in the order of the plan: two groups
// that are used in different orders on two ranks wait for each other for ever.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>

#include "sp/mesh/process_groups.h"

namespace c10d {
class Backend;
}

namespace ringside::sp {

// Connects an NCCL group of ranks 0 to size - 1 of `store`; this rank uses `device`. Its
// communicator is made at once, so that an error of the network or the device comes here, and
// other groups can be split from it.
// Collective over: the group.
// Blocks: until all ranks have joined; waiting calls of its work order the current stream and
// return.
// Throws: c10::Error after `timeout`, or what NCCL reports.
c10::intrusive_ptr<c10d::Backend> make_nccl_process_group(
    const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size, c10::Device device,
    std::chrono::milliseconds timeout);

// Connects the groups of a mesh when it is called: the world first, by make_nccl_process_group().
// The others are split from the world's communicator, without a rendezvous of their own. Groups of
// the same ranks share one communicator; a group of one rank has none. Each new group runs one
// all-reduce, so that its connections are made before the first step. Groups end together with the
// last communicator; pending work is finished unless an exception is in flight. NCCL wants a device
// for each rank: ranks that share one, as the threads of the virtual ranks do on one GPU, are
// refused by it.
// Collective over: the world, each call of the function.
// Blocks: each call, until every rank has joined its group.
// Throws: each call: c10::Error when the first group is not the world's, after the rendezvous'
// timeout, or what NCCL reports.
ProcessGroups::Connect nccl_groups(const Mesh& mesh, const GroupRendezvous& rendezvous,
                                   c10::Device device);

}  // namespace ringside::sp
