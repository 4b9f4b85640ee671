// A communicator for CUDA tensors over NCCL. Only in builds that have a CUDA toolkit.
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

// Joins an NCCL group on the current CUDA device and warms it up with one all-reduce, because the
// first point-to-point call of a group must involve all its ranks. Blocks until all have come;
// throws after timeout.
std::shared_ptr<Communicator> make_nccl_communicator(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::string& group_name, int64_t rank,
                                                     int64_t size,
                                                     std::chrono::milliseconds timeout);

}  // namespace ringside::sp
