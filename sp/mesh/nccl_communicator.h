// NCCL communicator for CUDA tensors. Exists only in builds with a CUDA toolkit.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>

#include "sp/mesh/communicator.h"

namespace c10d {
class Store;
}

namespace ringside::sp {

// Joins an NCCL group on the current CUDA device. Runs one all-reduce first, because the first
// point-to-point call of a group must involve all its ranks.
// Blocks: until all ranks have joined.
// Throws: after `timeout`.
std::shared_ptr<Communicator> make_nccl_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::string& group_name, int64_t rank,
                                                     int64_t size,
                                                     std::chrono::milliseconds timeout);

}  // namespace ringside::sp
