// How many rows each rank holds: what every function of this folder must know before it exchanges.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sp/mesh/communicator.h"

namespace ringside::sp {

// `mine` of every rank, in rank order. Collective over comm, blocks. device: one the group's
// backend sends from. Call it once per micro-batch and pass the result on: functions that are given
// no lengths ask again each time.
std::vector<int64_t> gather_lengths(int64_t mine, at::Device device, Communicator& comm);

// Floor/ceil parts of total, the larger ones first: the cut of slice_input_tensor. Throws
// std::invalid_argument when total is negative or ranks below 1. Not collective.
std::vector<int64_t> even_lengths(int64_t total, int64_t ranks);

// lengths as given; asked of the other ranks when empty (then collective). Throws c10::Error,
// naming `what`, when the given ones are not one per rank or do not say `mine` for this rank.
std::vector<int64_t> known_lengths(const std::vector<int64_t>& lengths, int64_t mine,
                                   at::Device device, Communicator& comm, const char* what);

// lengths as given, even_lengths of total when empty. Throws c10::Error, naming `what`, when the
// given ones are not one per rank or do not add up to total. Not collective.
std::vector<int64_t> cut_lengths(const std::vector<int64_t>& lengths, int64_t total,
                                 const Communicator& comm, const char* what);

}  // namespace ringside::sp
